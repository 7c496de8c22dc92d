from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest

from lightning_audit import PrivacyAudit, PrivacyClaim, Resolution
from lightning_audit.config import AuditConfig
from lightning_audit.verdict.judge import OutcomeSettings


def config(**arguments: Any) -> AuditConfig:
    return PrivacyAudit(seed=3, **arguments).config


def test_settings_in_a_report_give_again_what_the_outcome_rests_on() -> None:
    asked = config(
        claimed_epsilon=3.0, delta=1e-6, resolution=Resolution(0.5, 4.0), allow=["noise"]
    )
    written = json.loads(json.dumps(asked.settings()))
    read = OutcomeSettings.of(written)
    assert dataclasses.asdict(read).items() <= dataclasses.asdict(asked).items()
    assert written["seed"] == 3


def test_adjacency_and_private_size_are_the_claims_and_usual_without_one() -> None:
    assert (config().adjacency, config().private_size) == ("add_remove", False)
    assert config(claim=PrivacyClaim(adjacency="replace_one")).adjacency == "replace_one"
    assert config(claim=PrivacyClaim(private_dataset_size=True)).private_size


def test_every_field_is_an_argument_and_a_setting_of_the_report_under_its_own_name() -> None:
    names = {field.name for field in dataclasses.fields(AuditConfig)}
    # A drawn seed is no argument; see `test_privacy_audit_seed.py`. `given` lists arguments.
    assert names - {"drawn_seed", "given"} == set(config(on_violation="stop").settings())
    arguments = set(inspect.signature(PrivacyAudit).parameters)
    assert arguments - names == {"num_canaries", "report_dir", "log_prefix", "verbose"}
    # A scope and a reason are said in ``allow``.
    assert names - arguments == {"exemptions", "drawn_seed", "given"}


def test_a_changed_copy_is_checked_anew() -> None:
    assert dataclasses.replace(config(), significance=1e-4).significance == 1e-4
    with pytest.raises(ValueError, match="significance=2 must be in"):
        dataclasses.replace(config(), significance=2)
