from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from declared import fault_of
from noise_steps import HEADER, noise_seen, noise_step, result_of
from simulated_record import (
    OVERSIZE,
    by_name,
    check,
    faults_of,
    header,
    monitor_of,
    names,
    simulate,
    verdict_of,
    violated,
)
from training_support import PrivateModule, digits, mlp, status, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.checks.check import Case, entailed, group
from lightning_audit.checks.noise import NOISE
from lightning_audit.checks.randomness import (
    COMPARED,
    NOISE_RESTARTED,
    NOISE_SHARED,
    RECURRENCE,
    REUSE_BROADCAST,
    REUSE_ENTRIES,
    REUSE_FORECAST,
    REUSE_LAG,
    REUSE_PAIR,
    NoiseRestart,
    reuse_is_seen,
)
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import Observation
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence import FORECAST_LAGS
from lightning_audit.verdict.diagnosis import likely_faults, loses_no_privacy


def found(part: float, lag: int = 1, *, steps: int = 40, every: int = 1) -> CheckResult:
    """Result for noise that takes so much of what it was so many steps before."""
    rng, check = np.random.default_rng(0), REUSE_FORECAST.new_statistic(HEADER, 1e-3)
    rows = rng.normal(size=(steps, 256))
    for step in range(steps):
        if step >= lag:
            rows[step] = part * rows[step - lag] + np.sqrt(1 - part**2) * rows[step]
        if step % every == 0:
            check.update(noise_step(rows[step], step))
    return result_of(check)


@pytest.mark.parametrize(
    ("part", "lag", "words"),
    [
        (0.5, 1, "is 0.5 times the noise of the step before, and leaves 7"),
        (-0.6, 1, "times the noise of the step before, and leaves 6"),
        (-0.5, FORECAST_LAGS, "times the noise of 16 steps before"),
    ],
)
def test_noise_that_depends_on_the_past_is_told_so(part, lag, words):
    new = found(0.0)
    assert (new.status, new.share) == ("ok", REUSE_FORECAST.share)
    apart = found(part, lag, every=FORECAST_LAGS + 1, steps=100)  # too far to be compared
    assert (apart.status, apart.message) == ("not_run", REUSE_FORECAST.needs)
    result = found(part, lag)
    assert result.status == "violated"
    assert words in result.message
    assert result.evidence["lag"] == lag
    assert result.evidence["coefficient"] == pytest.approx(part, abs=0.05)
    (rule,) = (rule for rule in REUSE_FORECAST.faults if rule.applies(result.evidence))
    assert rule.fault.name == "noise_correlated_over_steps"
    check, rng = REUSE_FORECAST.new_statistic(HEADER, 1e-3), np.random.default_rng(1)
    for step in range(30):  # noise that only is small
        check.update(noise_step(0.4 * rng.normal(size=256), step))
    result = result_of(check)
    assert result.status == "violated"
    assert not any(rule.applies(result.evidence) for rule in REUSE_FORECAST.faults)


ENTRIES = 256


def segments(
    seed: int, *, again: bool, alone: bool = True, data: float = 0.5, at: int = 40
) -> NoiseRestart:
    """The first segment, then a resumed one at a step, whose noise may start again."""
    first, rng = NoiseRestart(NOISE_RESTARTED, HEADER, 0.05), np.random.default_rng(seed)
    # The data of two early steps resemble each other.
    common = data * rng.normal(size=ENTRIES)
    noise = [rng.normal(size=ENTRIES) for _ in range(COMPARED)]

    def take(check: NoiseRestart, drawn: FloatArray, step: int) -> None:
        released = common + 0.3 * data * rng.normal(size=ENTRIES) + drawn
        own = drawn if alone else None
        check.update(noise_seen(released, None, step=step, noise=own))

    for step, drawn in enumerate(noise):
        take(first, drawn, step)
    then = NoiseRestart(NOISE_RESTARTED, HEADER, 0.05)
    then.resume(first.first, at)
    for step, drawn in enumerate(noise):
        take(then, drawn if again else rng.normal(size=ENTRIES), at + step)
    return then


def restart_status(check: NoiseRestart) -> str:
    assert check.resumed
    return result_of(check).status


@pytest.mark.parametrize(
    ("alone", "data"), [(True, 0.1), (True, 1.0), (True, 3.0), (False, 0.1), (False, 1.0)]
)
def test_noise_that_starts_again_is_found_by_the_first_releases(alone, data):
    assert restart_status(segments(0, again=True, alone=alone, data=data)) == "violated"


@pytest.mark.parametrize("alone", [True, False])
def test_fresh_noise_is_accused_at_the_stated_rate_whatever_the_data(alone):
    sizes = [0.1, 1.0, 3.0]
    found = [
        restart_status(segments(seed, again=False, alone=alone, data=sizes[seed % 3])) == "violated"
        for seed in range(300)
    ]
    assert sum(found) == 0  # its share of .05 is 1e-4


def test_where_the_first_steps_were_not_read_it_has_not_run():
    check = NoiseRestart(NOISE_RESTARTED, HEADER, 0.05)
    assert not check.resumed
    check.resume({}, 40)
    check.update(noise_step(np.zeros(4), 40))
    assert restart_status(check) == "not_run"


# --- What is said of a resume that repeats the noise can be done, and then nothing is found.


class Resumable(PrivateModule):
    """Private before a checkpoint is loaded, whose names are those of the private net."""

    def __init__(self) -> None:
        super().__init__(mlp(64), dataset=digits())
        self._private = super().configure_optimizers()

    def configure_optimizers(self) -> Any:
        return self._private


class KeepsState(Resumable):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        torch.set_rng_state(checkpoint["rng"])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("kind", "seed", "found"),
    [(Resumable, 1, "violated"), (Resumable, 2, "ok"), (KeepsState, 1, "ok")],
    ids=["the same seed", "another seed", "the state is kept"],
)
def test_a_seed_before_a_resume_repeats_the_noise_unless_it_is_another_or_the_state_is_kept(
    tmp_path, kind, seed, found
):
    for number, seeded in enumerate((1, seed), 1):
        pl.seed_everything(seeded)
        module, audit = kind(), PrivacyAudit(seed=3, on_violation="warn", examinations=0)
        trainer = trainer_for(tmp_path, audit, max_steps=12 * number)
        trainer.fit(module, ckpt_path=tmp_path / "a.ckpt" if number > 1 else None)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert status(audit.report, "reuse.resume") == found
    if found == "violated":
        (fault,) = (f for f in audit.report.verdict.faults if f.name == "noise_restarted")
        assert "leave seed_everything out there, give it a different seed" in fault.look_at
        assert "secure_mode=True" in fault.look_at


REUSE = {"reuse.lag", "reuse.broadcast", "reuse.pair"}


@pytest.mark.parametrize("data", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_fresh_noise_is_not_flagged(seed, data):
    assert not violated(monitor_of(simulate(80, seed=seed, data=data))) & REUSE


@pytest.mark.parametrize(
    ("reuse", "check", "steps", "fault"),
    [
        ("same", "reuse.lag", 6, "noise re-used: the same noise is added at every step"),
        ("lag 10", "reuse.lag", 16, "noise re-used: the same noise is added every 10 steps"),
        ("broadcast", "reuse.broadcast", 2, "noise re-used: one noise value is shared by all"),
        ("pair", "reuse.pair", 2, "noise re-used: one noise key is used for several tensors"),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_reused_noise_is_flagged_within_the_published_steps_and_named(
    reuse, check, steps, fault, seed
):
    record = simulate(60, seed=seed, reuse=reuse, data=0.1)
    found = by_name(monitor_of(record))[check]
    assert found.status == "violated"
    assert found.evidence["violated_at_step"] < steps
    assert verdict_of(record).fault.startswith(fault)


def test_a_cycle_is_told_by_its_length_whatever_data_and_noise_do():
    record = simulate(80, reuse="lag 5", data=0.1)
    monitor, fault = monitor_of(record), faults_of(record)[0]
    assert monitor.reuse.lag == fault.evidence["lag"] == 5
    assert "as if the noise recurred every 5 steps" in by_name(monitor)["reuse.lag"].message
    assert fault.evidence["difference_ratio"] == pytest.approx(0.1, abs=0.02)
    assert 5 <= fault.place.step < 16  # it shows from the sixth step on
    for seen in (
        simulate(60, reuse="same", data=[6.0, 0.1, 0.1]),  # the data of one tensor dominate
        simulate(60, reuse="lag 2", sigma=np.geomspace(1.0, 0.9, 60)),
    ):
        assert "reuse.lag" in violated(monitor_of(seen))
    assert "reuse.lag" not in violated(monitor_of(simulate(60, reuse="lag 17")))
    assert verdict_of(simulate(60, noise=0.5)).fault.startswith("noise scale too small")


@pytest.mark.parametrize(
    ("means", "lag"),
    [
        ([2.0, 0.3, 0.04, 0.05], 3),  # far below the others: within sqrt(0.04) = 0.2
        ([2.0, 0.19, 0.04, 0.05], 2),
        ([2.0, 0.49, 0.26, 2.0], 2),  # up to 0.5 at most, though sqrt(0.26) is more
        ([2.0, 0.51, 0.26, 2.0], 3),
        ([1.9, 0.67, 0.55, 2.0], 3),  # within a fifth of the smallest, where that is more
        ([1.9, 0.65, 0.55, 2.0], 2),
        ([0.0, 0.0, 0.0, 0.0], 1),
    ],
)
def test_lag_is_the_first_that_reads_about_as_little_as_any(means, lag):
    made = header(lags=len(means))
    check, entry = REUSE_LAG.new_statistic(made, 1e-3), np.zeros((), dtype=made.dtype)
    entry["lag_count"], entry["lag_squares"] = 10.0, 10.0 * np.array(means)
    check.update(Observation.of(entry))
    assert check.lag == lag


BY_E_VALUE = (REUSE_LAG, REUSE_BROADCAST, REUSE_PAIR, RECURRENCE, REUSE_FORECAST, REUSE_ENTRIES)


@pytest.mark.parametrize(
    ("check", "evidence", "fault"),
    [
        (NOISE_SHARED, {"shared": False}, None),
        (NOISE_SHARED, {"shared": True}, "noise_shared_by_optimizers"),
    ],
)
def test_a_generator_that_is_seen_again_is_a_fault_for_certain(check, evidence, fault):
    assert fault_of(check, evidence) == fault
    assert check.share == 0
    assert all(rule.rank < 0 for rule in check.faults)


def test_those_of_the_readings_are_one_group_and_say_by_what_they_were_not_tested():
    assert set(group("reuse")) == {check.name for check in BY_E_VALUE}
    assert len({check.needs for check in BY_E_VALUE}) == len(BY_E_VALUE)
    for one in BY_E_VALUE:
        assert one.doubtful
        assert one.size_of is None
        silent = one.result(one.test(1e-3), {})
        assert silent.message == one.needs


def test_a_restart_explains_noise_that_comes_back_and_not_that_of_one_step():
    (rule,) = NOISE_RESTARTED.faults
    assert rule.rank < 0
    assert set(entailed(rule)) == {REUSE_LAG.name, RECURRENCE.name}


@pytest.mark.parametrize("check", [REUSE_FORECAST, REUSE_ENTRIES])
def test_noise_that_others_tell_is_a_fault_and_explains_other_re_use(check):
    (rule,) = check.faults
    assert rule.applies({"left": 0.84})
    assert not rule.applies({"left": 0.99})  # the noise is small as a whole
    assert {*group("reuse"), *group("channel")} <= set(entailed(rule))
    assert rule.rank > 0  # what is told by several checks comes first


@pytest.mark.parametrize("lag", [5, 16])
def test_small_noise_that_comes_back_is_named_re_used_and_never_harmless(lag):
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.7, reuse=f"lag {lag}"))
    found = [check for check in monitor.results() if check.status == "violated"]
    assert likely_faults(found, monitor, OVERSIZE)[0].finding == "reuse.lag"
    assert not loses_no_privacy(found, monitor)


def lagged(difference: float, **forecast: float) -> dict[str, dict[str, Any]]:
    """What is seen of noise whose part of the step before comes back."""
    found = {"lag": 1, "ratio": 1.0, **forecast}
    return {"reuse.recurrence": {"difference_ratio": difference}, "reuse.forecast": found}


def alike(**evidence: float) -> dict[str, dict[str, Any]]:
    return {"reuse.recurrence": evidence}


#: With few seeds some step soon repeats one of the last 32, which `reuse.lag` flags as well.
AT_A_LAG = {"reuse.lag": {}, **alike(difference_ratio=0.0)}


@pytest.mark.parametrize(
    ("record", "seen", "first", "others"),
    [
        # Noise that is shared in a step is not taken for another divisor.
        (
            {"reuse": "broadcast", "data": 0.1},
            {"batch_normalised": {}},
            "one_value_for_all_coordinates",
            [],
        ),
        # Small noise is not taken for few seeds.
        ({"noise": 0.5}, alike(difference_ratio=0.45), "noise_too_small", []),
        ({"noise": 0.5}, alike(difference_ratio=0.01), "few_seeds", ["noise_too_small"]),
        ({"noise": 0.7}, alike(), "few_seeds", ["noise_too_small"]),
        # A pair that happens to lie at a lag is not taken for a cycle.
        ({"reuse": ""}, AT_A_LAG, "few_seeds", []),
        ({"reuse": "lag 3"}, AT_A_LAG, "noise_in_a_cycle", []),
        ({"reuse": "same"}, AT_A_LAG, "same_noise_at_every_step", []),
        # Few seeds are not seen in noise that is missing.
        ({"noise": 0.0, "data": 0.05}, alike(), "no_noise", None),
        # A part of earlier noise is told from all of it.
        (
            {"reuse": "same"},
            lagged(0.45, coefficient=0.8, left=0.4),
            "noise_correlated_over_steps",
            None,
        ),
        (
            {"reuse": "same"},
            lagged(0.1, coefficient=0.98, left=0.4),
            "same_noise_at_every_step",
            None,
        ),
        # Beside data a coefficient is smaller than the part that comes back.
        (
            {"reuse": "same"},
            lagged(0.4, coefficient=0.8, left=0.4, ratio=1.15),
            "same_noise_at_every_step",
            None,
        ),
        # Steps that resemble each other in part are not taken for few seeds.
        ({}, lagged(0.45, coefficient=0.5, left=0.7), "noise_correlated_over_steps", []),
        ({}, lagged(0.01, coefficient=0.5, left=0.7), "few_seeds", []),
    ],
)
def test_noise_that_is_used_again_has_its_own_name(record, seen, first, others):
    found = [check(name, **evidence) for name, evidence in seen.items()]
    named = names(faults_of(simulate(80, **record), *found))
    assert named[0] == first
    assert others is None or named[1:] == others


@pytest.mark.parametrize(
    ("alike_at", "expected"),
    [(151, ["noise_missing_in_steps"]), (90, ["few_seeds", "noise_missing_in_steps"])],
)
def test_steps_without_noise_are_no_few_seeds(alike_at, expected):
    found = [
        check("noise.step", violated_at_step=150),
        check("reuse.recurrence", violated_at_step=alike_at),
    ]
    assert names(likely_faults(found, monitor_of(simulate(20)), OVERSIZE)) == expected


@pytest.mark.parametrize(
    ("distances", "name", "sentence"),
    [
        ([40, 40, 40], "noise_in_a_cycle", "the same noise is added every 40 steps"),
        ([40], "few_seeds", "the noise of an earlier step comes back"),
        ([40, 7, 40], "few_seeds", "the noise comes back at irregular steps"),
    ],
)
def test_noise_that_comes_back_is_named_by_the_distances_at_which_it_does(
    distances, name, sentence
):
    found = check("reuse.recurrence", difference_ratio=0.001, distances=distances)
    (fault,) = faults_of(simulate(80), found)
    assert fault.name == name
    assert sentence in fault.sentence


@pytest.mark.parametrize(("noise", "reuse", "seen"), [(0.4, "", False), (0.4, "same", True)])
def test_noise_that_is_small_without_the_data_is_not_taken_for_noise_that_comes_back(
    noise, reuse, seen
):
    monitor = monitor_of(simulate(20, noise=noise, reuse=reuse))
    monitor.witness_noise.test = NOISE.test(1e-3)  # as under loud data that stay the same
    small = check("noise.whole", flagged=[], tensors=3, added_ratio=noise)
    lag = check("reuse.lag", violated_at_step=1)
    for others, expected in (([small], seen), ([], True)):
        case = Case({c.name: c for c in [lag, *others]}, monitor, OVERSIZE)
        assert reuse_is_seen(case, monitor, "reuse.lag") == expected
