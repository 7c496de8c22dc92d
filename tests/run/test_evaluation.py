"""What the report of a training is put together of."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_support import PrivateModule, trainer_for

from lightning_audit import PrivacyAudit


@pytest.mark.parametrize("names", [(), ("eps_cp", "fdp_cp")])
def test_only_the_bounds_that_are_asked_for_are_computed(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    audit = PrivacyAudit(bounds=list(names), seed=1)
    trainer_for(tmp_path, audit, max_steps=32).fit(PrivateModule())
    betting, mu, *others = audit.report.bounds
    assert (betting.looks, betting.epsilon_lower) == ("anytime", audit.report.epsilon_lower)
    assert (mu.name, mu.looks) == ("mu", "single")
    assert {bound.name for bound in others} == set(names)
    assert list(audit.report.settings["bounds"]) == sorted(names, reverse=True)


def test_report_holds_nothing_of_a_single_batch(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, max_steps=32).fit(PrivateModule())
    text = (tmp_path / "audit" / "report.json").read_text()
    assert "batch_sizes" not in text
    assert "summed_grad" not in text
