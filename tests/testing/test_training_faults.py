from __future__ import annotations

import pytest
from planted import private

from lightning_audit.testing.faults import BY_HAND_CLAIM, OF_THE_TRAINING
from lightning_audit.testing.trainings import BATCH_SIZE, RECORDS, HandWritten, Training

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


def test_faults_of_a_training_differ_from_a_sound_one_in_what_their_entry_states() -> None:
    for fault in OF_THE_TRAINING:
        own = fault.optimizer is not None or fault.training is not Training
        assert own or fault.audit or fault.settings or fault.trainer or fault.remarked, fault.name


def test_a_training_by_hand_comes_with_a_claim_since_no_engine_tells_its_noise() -> None:
    by_hand = [fault for fault in OF_THE_TRAINING if issubclass(fault.training, HandWritten)]
    assert len(by_hand) > 2
    assert all(fault.audit["claim"].noise_multiplier > 0 for fault in by_hand)
    assert BY_HAND_CLAIM.sample_rate == BATCH_SIZE / RECORDS


def test_a_fault_of_the_training_alone_can_be_planted_nowhere() -> None:
    optimizer = private()
    for fault in OF_THE_TRAINING:
        if fault.optimizer is None:
            with pytest.raises(TypeError, match="is no optimizer fault"):
                fault.apply(optimizer)
