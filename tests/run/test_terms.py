"""What is claimed and asked for goes into the report and into checkpoints."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.run.terms import Terms


def terms_of(**arguments: object) -> Terms:
    audit = PrivacyAudit(**arguments)
    return Terms(**{field.name: getattr(audit, field.name) for field in dataclasses.fields(Terms)})


def test_every_term_is_a_setting_of_the_report_under_its_own_name() -> None:
    settings = terms_of(seed=3, claimed_epsilon=2.0, on_violation="stop").settings()
    assert {field.name for field in dataclasses.fields(Terms)} == set(settings)
    assert (settings["claimed_epsilon"], settings["on_violation"], settings["seed"]) == (
        2.0,
        "stop",
        3,
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"significance": 0.01}, "significance"),
        ({"delta": 1e-6}, "delta"),
        ({"oversize": 10.0}, "oversize"),
        ({"allow": ["noise"]}, "allow"),
        ({"bounds": ["fdp_cp"]}, "bounds"),
        ({"claim": PrivacyClaim(neighbouring="replace")}, "neighbouring"),
        ({"claim": PrivacyClaim(private_dataset_size=True)}, "private_dataset_size"),
        ({"claim": PrivacyClaim(sample_rate=0.1)}, "claim.sample_rate"),
    ],
)
def test_a_term_that_changes_changes_what_a_checkpoint_holds_of_it(
    change: dict[str, object], name: str
) -> None:
    before, after = terms_of(seed=1).kept(), terms_of(seed=1, **change).kept()
    assert {key for key, value in after.items() if before[key] != value} == {name}
    assert json.loads(json.dumps(after)) == after  # it loads under weights_only=True


def test_the_seed_and_the_reactions_are_no_terms_that_the_past_steps_rest_on() -> None:
    assert terms_of(seed=1).kept() == terms_of(seed=2, on_violation="warn").kept()
