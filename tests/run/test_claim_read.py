"""The claim with its sources; the number of records only where it is public."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.lints.settings import LoaderFacts
from lightning_audit.run.report_files import claim_of, claimed_mu


def read(claim: PrivacyClaim | None = None, norms: tuple[float, ...] = (1.0,)) -> dict[str, Any]:
    """The claim of optimizers with the clipping norms, over a loader of 500 records."""
    config: Any = SimpleNamespace(
        claim=claim,
        shuffled=claim is not None and claim.sampling == "shuffled",
        private_size=claim is not None and bool(claim.private_dataset_size),
        adjacency=(claim and claim.adjacency) or "add_remove",
    )
    own = SimpleNamespace(sample_rate=0.1, expected_batch_size=50)
    facts: Any = SimpleNamespace(
        optimizers=[own for _ in norms],
        accountants=(),
        loader=LoaderFacts("poisson", "a loader", 0.1, records=500),
    )
    sessions: Any = [
        SimpleNamespace(
            monitor=SimpleNamespace(history=()),
            planner=SimpleNamespace(known_claim=lambda norm=norm: StepClaim(1.5, norm, 50.0)),
        )
        for norm in norms
    ]
    told = claim_of(sessions, facts, config)
    return {name: (part.value, part.source) for name, part in told.items()}


def test_what_the_user_states_is_the_users() -> None:
    told = read(PrivacyClaim(noise_multiplier=1.2, adjacency="replace_one"))
    assert told["noise_multiplier"] == (1.2, "user")
    assert told["adjacency"] == ("replace_one", "user")
    assert told["max_grad_norm"] == (1.0, "optimizer")
    assert told["sampling"] == ("poisson", "default")
    assert told["accountant"] == (None, "optimizer")


def test_optimizers_that_differ_are_listed() -> None:
    assert read(norms=(1.0, 1.0))["max_grad_norm"] == (1.0, "optimizer")
    assert read(norms=(1.0, 2.0))["max_grad_norm"] == ([1.0, 2.0], "optimizer")


@pytest.mark.parametrize(
    ("claim", "records", "divisor"),
    [
        (None, None, 50),
        (PrivacyClaim(private_dataset_size=True), None, None),
        (PrivacyClaim(sampling="shuffled"), 500, 50),
        (PrivacyClaim(sampling="shuffled", private_dataset_size=True), None, None),
        (PrivacyClaim(adjacency="replace_one"), None, 50),
    ],
)
def test_the_number_of_records_is_shown_where_it_is_public_alone(
    claim: PrivacyClaim | None, records: int | None, divisor: int | None
) -> None:
    told = read(claim)
    assert told["records"] == (records, "loader")
    assert told["expected_batch_size"] == (divisor, "optimizer")


def test_the_claimed_mu_is_of_the_least_noise() -> None:
    assert claimed_mu([(2.0, 0.1, 5), (0.5, None, 5)]) == 2.0
    assert claimed_mu([(2.0, 0.1, 5), (0.0, None, 5)]) is None
    assert claimed_mu([]) is None
