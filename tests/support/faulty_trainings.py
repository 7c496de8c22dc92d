"""Trainings that break off, for the tests of the selftest."""

import os

from lightning_audit.testing.fault import Fault
from lightning_audit.testing.selftest import Row
from lightning_audit.testing.trainings import Training


class Dies(Training):
    def training_step(self, batch, batch_idx):
        os._exit(11)


def row(training, steps=2):
    fault = Fault("broken", "it breaks off", "", training=training)
    return Row("fault", fault, "Opacus")
