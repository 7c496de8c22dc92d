"""Canaries: what an audit adds to a step before gradients are clipped."""

from __future__ import annotations

from lightning_audit.canaries.gradient import BlockPair as BlockPair
from lightning_audit.canaries.gradient import Constant as Constant
from lightning_audit.canaries.gradient import Dirac as Dirac
from lightning_audit.canaries.gradient import GradientCanary as GradientCanary
from lightning_audit.canaries.gradient import Random as Random
from lightning_audit.canaries.gradient import Spread as Spread
from lightning_audit.canaries.inputs import Adversarial as Adversarial
from lightning_audit.canaries.inputs import Blank as Blank
from lightning_audit.canaries.inputs import Crafted as Crafted
from lightning_audit.canaries.inputs import InputCanary as InputCanary
from lightning_audit.canaries.inputs import Mislabeled as Mislabeled
