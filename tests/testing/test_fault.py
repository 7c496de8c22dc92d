import pytest
import torch
from opacus.optimizers import DPOptimizer
from planted import private

from lightning_audit.testing import trainings
from lightning_audit.testing.fault import Fault, fault
from lightning_audit.testing.faults import plant

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


def test_a_planted_fault_keeps_the_accountant_the_generator_and_the_settings():
    generator = torch.Generator().manual_seed(1)
    optimizer = private(noise_generator=generator, noise_multiplier=1.5)
    before, faulty = dict(vars(optimizer)), plant(optimizer, "half_noise")
    assert faulty.generator is generator
    assert faulty.step_hook is not None
    assert faulty.noise_multiplier == 1.5
    assert dict(vars(faulty)) == before


def test_a_fault_is_planted_in_the_optimizers_of_every_form_that_lightning_takes():
    for form in (
        lambda o: {"optimizer": o, "monitor": "loss"},
        lambda o: ([o], []),
        lambda o: ({"optimizer": o}, plain_optimizer()),
    ):
        optimizer = private()
        given = form(optimizer)
        assert plant(given, "half_noise") is given
        assert type(optimizer).__name__ == "HalfNoise"


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_planted_fault_changes_the_optimizers_own_class(mode):
    torch.manual_seed(0)
    optimizer = private(mode)
    kind, faulty = type(optimizer), plant(optimizer, "half_noise")
    assert isinstance(faulty, kind)
    for p in faulty.params:
        p.summed_grad = torch.zeros_like(p)
    faulty.add_noise()
    drawn = torch.cat([p.grad.flatten() for p in faulty.params])
    assert drawn.std() == pytest.approx(0.5, rel=0.05)  # 5,898 draws: an error of 0.01


def test_a_class_that_has_a_fault_declares_it(monkeypatch):
    monkeypatch.setattr("lightning_audit.testing.fault.DECLARED", declared := {})

    @fault("a review", named="no_noise", steps=5)
    class NoNoiseAtNight(DPOptimizer):
        """No noise is added at night.

        A second paragraph.
        """

    assert declared["no_noise_at_night"] == Fault(
        "no_noise_at_night",
        "no noise is added at night",
        "a review",
        NoNoiseAtNight,
        steps=5,
        named="no_noise",
    )

    @fault("a review", wrong=f"{2} records are left out", ends="INCONCLUSIVE", sentence="a note")
    class LeavesOut(trainings.Training):
        """Leaves records out."""

    told = declared["leaves_out"]
    assert (told.optimizer, told.training) == (None, LeavesOut)
    assert (told.wrong, told.likely) == ("2 records are left out", "leaves_out")


@pytest.mark.parametrize(
    ("changes", "warns", "remarks"),
    [
        ({}, False, False),
        ({"ends": "INCONCLUSIVE", "check": "noise.excess"}, True, False),
        ({"ends": "INCONCLUSIVE", "check": "opacus_defects"}, True, True),
        ({"ends": "INCONCLUSIVE", "sentence": "a note"}, True, True),
    ],
)
def test_a_fault_that_loses_no_privacy_is_one_of_a_warning_or_of_a_remark(changes, warns, remarks):
    made = Fault("made", "nothing", "nowhere", **changes)
    assert (made.warn_only, made.remarked) == (warns, remarks)


def plain_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(trainings.net().parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("made", "name", "told"),
    [
        (lambda: private("ghost"), "clip_at_twice", "use a fault of the noise"),
        (private, "parts_share_memory", "must be a DPOptimizerFastGradientClipping"),
        # It would do no harm.
        (lambda: private(max_grad_norm=2.0), "noise_of_squared_norm", r"norm=2\.0 must be < 1"),
        (private, "noisy", r"name='noisy' must be one of .*'half_noise'"),
        (private, "not_a_number", r"train FAULTS\['not_a_number'\]\.module\(\)"),
        (plain_optimizer, "half_noise", "SGD must be the DPOptimizer"),
    ],
)
def test_a_fault_is_planted_only_where_it_can_be_and_harms(made, name, told):
    wrong_type = name in ("not_a_number", "half_noise")
    with pytest.raises(TypeError if wrong_type else ValueError, match=told):
        plant(made(), name)
