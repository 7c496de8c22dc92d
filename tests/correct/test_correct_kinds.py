"""The audit accuses no correct training of the kinds in `correct_kinds`."""

from pathlib import Path

import pytest
from correct_kinds import KINDS
from correct_kinds.base import STEPS, Kind
from correct_kinds.run import audited, train, violated

pytestmark = pytest.mark.training

#: Of these the first two were accused before.
QUICK = (
    "zeroth-order-one-number",
    "diffusion-own-generator",
    "variational-autoencoder",
    "dropout-in-vmap-released",
)

NAMES = tuple(kind.name for kind in KINDS)
BY_NAME = dict(zip(NAMES, KINDS, strict=True))


def _not_accused(kind: Kind, seed: int, folder: Path) -> None:
    report = audited(kind, seed, folder)
    assert report.verdict.outcome != "VIOLATION", (violated(report), kind.why)


def test_there_are_fifty_kinds_of_names_of_their_own_that_say_why_they_are_correct():
    assert len(KINDS) >= 50
    assert len(set(NAMES)) == len(KINDS)
    assert set(QUICK) <= set(NAMES)
    assert [kind.name for kind in KINDS if "Correct: " not in kind.why] == []


@pytest.mark.parametrize("name", QUICK)
def test_a_correct_kind_is_not_accused(name, tmp_path):
    _not_accused(BY_NAME[name], 0, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [n for n in NAMES if n not in QUICK][::5])
def test_one_in_five_correct_kinds_is_not_accused(name, tmp_path):
    _not_accused(BY_NAME[name], 0, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_no_correct_kind_is_accused_with_any_seed(name, seed, tmp_path):
    _not_accused(BY_NAME[name], seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_correct_kind_trains_without_the_audit_and_without_warnings(name, tmp_path):
    assert train(BY_NAME[name], 0, tmp_path).global_step == STEPS
