import json
import math

import numpy as np
import pytest
from refused_calls import refusals, refused_changes

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase

MECHANISM = {"noise_multiplier": 2.0, "sample_rate": 0.01, "steps": 100}


def test_each_part_can_be_claimed_alone():
    values = {**MECHANISM, "delta": 1e-5, "max_grad_norm": 1.2, "expected_batch_size": 64}
    values |= {"adjacency": "replace_one", "private_dataset_size": True}
    for name, value in values.items():
        claim = PrivacyClaim(**{name: value})
        stated = claim.to_dict()
        assert stated.pop("items_per_record") == 1
        assert {k: v for k, v in stated.items() if v is not None} == {name: value}


def test_mu_and_history_are_those_of_the_mechanism():
    assert PrivacyClaim(epsilon=8, delta=1e-5).epsilon == 8.0
    assert PrivacyClaim(noise_multiplier=4.0).mu == 0.25
    assert PrivacyClaim(**MECHANISM).history() == [Phase(2.0, 0.01, 100)]


CORRELATED = PrivacyClaim(delta=1e-5, noise_coefficients=(1.0, -0.5), **MECHANISM)
PROMISE = PrivacyClaim(epsilon=1.0, delta=1e-5)
test_what_a_claim_does_not_say_is_asked_for = refusals(
    (lambda: PROMISE.mu, r"noise_multiplier=None must be a number for mu; state"),
    (
        lambda: PrivacyClaim(noise_multiplier=1.0).history(),
        r"sample_rate=None and steps=None must .* PrivacyClaim\(sample_rate=\.\.\., steps=",
    ),
    (PrivacyClaim(**MECHANISM).composed_epsilon, "delta=None must be a number for composed_eps"),
    (PROMISE.composed_epsilon, r"noise_multiplier=None"),
    (lambda: CORRELATED.mu, r"noise_coefficients=\[1\.0, -0\.5\] must be None for mu"),
    (CORRELATED.composed_epsilon, "must be None for history, which needs independent noise"),
)


def test_composed_epsilon_is_that_of_the_mechanism_not_the_promise():
    claim = PrivacyClaim(epsilon=50.0, delta=1e-5, **MECHANISM)
    assert claim.composed_epsilon() == epsilon_of_history(claim.history(), 1e-5)
    assert claim.composed_epsilon(1e-7) == epsilon_of_history(claim.history(), 1e-7)


def test_composed_epsilon_is_between_the_neighbours_of_the_claim():
    replaced = PrivacyClaim(delta=1e-5, adjacency="replace_one", **MECHANISM)
    wanted = epsilon_of_history(replaced.history(), 1e-5, adjacency="replace_one")
    removed = PrivacyClaim(delta=1e-5, adjacency="add_remove", **MECHANISM)
    assert replaced.composed_epsilon() == wanted > removed.composed_epsilon()
    assert removed.composed_epsilon() == PrivacyClaim(delta=1e-5, **MECHANISM).composed_epsilon()


@pytest.mark.parametrize("given", [(1, -0.5), [1.0, -0.5], np.array([1.0, -0.5])])
def test_goes_into_json_and_back_as_plain_numbers(given):
    claim = PrivacyClaim(noise_coefficients=given, steps=np.int64(7), max_grad_norm=np.float32(1.5))
    assert claim.noise_coefficients == (1.0, -0.5)
    assert PrivacyClaim(**json.loads(json.dumps(claim.to_dict()))) == claim


RECOVERED = r"must be coefficients from which the draws can be recovered step by step"
test_arguments_out_of_range_are_refused = refused_changes(
    PrivacyClaim,
    {},
    ({}, r"claims nothing; give at least one of epsilon, delta"),
    ({"epsilon": 8}, r"delta=None must be in \(0, 1\); epsilon=8\.0 is claim"),
    ({"epsilon": 0.0, "delta": 1e-5}, r"epsilon=0\.0 must be a finite number > 0; leave it"),
    ({"epsilon": 1.0, "delta": 0.0}, r"delta=0\.0 must be in \(0, 1\); such as 1e-5"),
    ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0 must be .*; training without noise"),
    ({"sample_rate": 1.2}, r"sample_rate=1\.2 must be in \(0, 1\]; expected batch size over"),
    ({"steps": 0}, "steps=0 must be a whole number >= 1; count optimizer steps"),
    ({"expected_batch_size": 0}, "expected_batch_size=0 must be a finite number > 0"),
    ({"adjacency": "swap"}, r"adjacency='swap' must be one of \['add_remove', 'replace_one'\]"),
    ({"private_dataset_size": 1}, "=1 must be True or False; True if the number of records must "),
    (
        {"private_dataset_size": True, "adjacency": "replace_one"},
        "private_dataset_size=True contradicts adjacency='replace_one': if a record is",
    ),
    ({"noise_coefficients": 1.0}, r"noise_coefficients=1\.0 must be a list of numbers; such"),
    ({"noise_coefficients": [1.0, math.nan]}, r"\[1\]=nan must be a finite number; such as \(1\."),
    ({"noise_coefficients": []}, r"noise_coefficients=\[\] must hold a number other than 0"),
    ({"noise_coefficients": [1.0, 0.0]}, "other than 0 after the first; leave it out if the noise"),
    ({"noise_coefficients": [0.0, 1.0]}, r"\[0\]=0\.0 must be > 0: a step's own draw"),
    ({"delta": 1e-5, "items_per_record": 1.5}, r"^items_per_record=1\.5"),
    ({"items_per_record": 1}, "claims nothing"),
    ({"noise_coefficients": [1.0, -2.0]}, rf"noise_coefficients=\[1\.0, -2\.0\] {RECOVERED}"),
)


def test_items_of_a_record_are_a_setting_of_a_claim_that_says_more():
    assert PrivacyClaim(items_per_record=2).items_per_record == 2
    mechanism = {"noise_multiplier": 2.0, "sample_rate": 0.05, "steps": 40, "delta": 1e-5}
    one, two = (PrivacyClaim(**mechanism, items_per_record=items) for items in (1, 2))
    assert PrivacyClaim(**two.to_dict()) == two
    assert one.composed_epsilon() == PrivacyClaim(**mechanism).composed_epsilon()
    assert two.composed_epsilon() > 1.5 * one.composed_epsilon()


def test_all_items_of_a_record_may_be_in_one_shuffled_batch():
    mechanism = {"sample_rate": 0.05, "steps": 40, "delta": 1e-5, "sampling": "shuffled"}
    three = PrivacyClaim(noise_multiplier=3.0, **mechanism, items_per_record=3)
    assert (
        three.composed_epsilon()
        == PrivacyClaim(noise_multiplier=1.0, **mechanism).composed_epsilon()
    )
