"""Looks at the noise add up to one e-value, that goes on from a checkpoint without any noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_audit.checks.replayed_noise import (
    CERTAIN,
    FAMILIES,
    MISSING,
    NOTHING,
    OF_RECORDS,
    REPLAY_NOISE,
    TOGETHER,
    NoiseLog,
    NoiseLook,
    Seen,
)

FINE = NoiseLook({kind: Seen(0.0, "") for kind in FAMILIES}, draws=12, entries=30)
SURE = NoiseLook({**FINE.seen, MISSING: Seen(CERTAIN, "3 entries have none")}, 12, 30)


def test_the_looks_of_a_run_have_one_e_value() -> None:
    log, log_es = NoiseLog(), np.random.default_rng(0).normal(size=6)
    log.test.segment = 0  # without the weight of the first segment
    for step, log_e in enumerate(log_es):
        log.take(step, NoiseLook({"small": Seen(float(log_e), "small")}, kinds=1))
    number = np.arange(1, 7)
    weighted = np.sum(np.exp(log_es) / (number * (number + 1))) + 1.0 / 7.0
    last = log.test.log_e
    assert last <= math.log(1.5) + max(log_es)
    assert math.exp(log._log_sum) + 1.0 / 7.0 == pytest.approx(weighted)
    # Half of the whole is the product of one kind's values, which was not among these.
    by_step = np.cumsum(np.exp(log_es) / (number * (number + 1))) + 1.0 / (number + 1)
    assert math.exp(last) == pytest.approx((max(by_step) + 1.0) / 2.0)


def test_what_is_certain_is_found_and_named_by_the_sharpest_kind() -> None:
    log = NoiseLog()
    for step in range(40):
        log.take(step, FINE)
    assert not log.found(0.05)
    log.take(40, SURE)
    result = log.result(0.05)
    assert result.status == "violated"
    assert result.evidence["violated_at_step"] == 40
    assert result.evidence["of"] == MISSING
    rule = next(rule for rule in REPLAY_NOISE.faults if rule.applies(result.evidence))
    assert rule.name == "noise_missing_at_entries"
    assert "3 entries have none" in result.message


def test_entries_that_go_together_a_little_in_every_look_are_found() -> None:
    # No look alone would do: log e of 5 each, of which the product alone grows.
    log = NoiseLog()
    for step in range(3):
        assert not log.found(1e-3)
        log.take(step, NoiseLook({**FINE.seen, TOGETHER: Seen(5.0, "they go together")}, 12, 30))
    log.take(9, NoiseLook({OF_RECORDS: NOTHING}, 4, 30))  # a look of another kind
    result = log.result(1e-3)
    assert result.status == "violated"
    assert (result.evidence["of"], result.evidence["finding"]) == (TOGETHER, "they go together")
    rule = next(rule for rule in REPLAY_NOISE.faults if rule.applies(result.evidence))
    assert rule.name == "noise_alike_at_entries"


def test_a_kind_that_says_more_comes_before_a_larger_one() -> None:
    seen = {"small": Seen(900.0, "small"), OF_RECORDS: Seen(20.0, "of records")}
    assert NoiseLook(seen).largest == (OF_RECORDS, seen[OF_RECORDS])
    assert NoiseLook({**seen, OF_RECORDS: Seen(2.0, "")}).largest[0] == "small"


def test_one_look_alone_is_sure_at_one_in_a_thousand() -> None:
    assert NoiseLook({"small": Seen(math.log(999.0), "")}, kinds=1).findings == ()
    (found,) = NoiseLook({"small": Seen(math.log(1001.0), "small")}, kinds=1).findings
    assert found.describe() == "small"


def test_without_a_look_it_says_why() -> None:
    log = NoiseLog()
    log.take(0, None, "no noise is claimed")
    assert log.result(0.05, "examinations=0").message == "not asked: no noise is claimed"
    assert NoiseLog().result(0.05, "examinations=0").message == "not asked: examinations=0"
