from __future__ import annotations

import dataclasses
import json

from lightning_audit import PrivacyAudit, PrivacyClaim, Resolution
from lightning_audit.callbacks.audit_arguments import terms_of
from lightning_audit.run.terms import Terms
from lightning_audit.verdict.pass_blockers import Asked


def terms(**arguments: object) -> Terms:
    return terms_of(PrivacyAudit(seed=3, **arguments))  # type: ignore[arg-type]


def test_settings_in_a_report_give_again_what_the_outcome_rests_on() -> None:
    asked = terms(claimed_epsilon=3.0, delta=1e-6, resolution=Resolution(0.5, 4.0), allow=["noise"])
    written = json.loads(json.dumps(asked.settings()))
    assert Asked.of(written) == asked.asked
    assert written["seed"] == 3


def test_what_a_checkpoint_keeps_differs_exactly_where_the_terms_do() -> None:
    claim = PrivacyClaim(noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16)
    before, after = terms(claim=claim), terms(claim=dataclasses.replace(claim, max_grad_norm=2.0))
    kept, other = before.kept(), after.kept()
    assert {name for name in kept if kept[name] != other[name]} == {"claim.max_grad_norm"}
    assert terms(claim=claim).kept() == kept


def test_adjacency_and_private_size_are_the_claims_and_usual_without_one() -> None:
    assert (terms().adjacency, terms().private_size) == ("add_remove", False)
    assert terms(claim=PrivacyClaim(adjacency="replace_one")).adjacency == "replace_one"
    assert terms(claim=PrivacyClaim(private_dataset_size=True)).private_size


def test_every_term_is_a_setting_of_the_report_under_its_own_name() -> None:
    names = {field.name for field in dataclasses.fields(Terms)}
    assert names == set(terms(on_violation="stop").settings())
