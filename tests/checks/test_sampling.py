import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from declared import fault_of
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, IterableDataset
from training_support import digits

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.checks import sampling
from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.checks.check import evidence_in
from lightning_audit.lints.settings import loader_facts
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.divergences import isotropic_pair_epsilon

RECORDS, RATE = 512, 1 / 32


def check_of(batches: Any, records: int = RECORDS, rate: float = RATE) -> sampling.BatchCheck:
    check = sampling.BatchCheck(records, 1e-3)
    for t, batch in enumerate(batches):
        if t % 32 == 0:
            check.start_epoch()
        check.take(batch)
    return check


def results(check: sampling.BatchCheck, rate: float = RATE) -> dict[str, CheckResult]:
    found = sampling.sampling_results("unknown", "MySampler", None, rate, [], check)
    return {result.name: result for result in found}


def poisson(steps: int, rate: float = RATE, records: int = RECORDS) -> Iterator[list[int]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield np.flatnonzero(rng.random(records) < rate).tolist()


def shuffled(size: int = 16) -> Iterator[list[int]]:
    order = np.random.default_rng(0).permutation(RECORDS)
    for start in range(0, RECORDS, size):
        yield order[start : start + size].tolist()


def test_poisson_batches_of_an_unknown_sampler_are_found_to_agree():
    found = results(check_of(poisson(64)))
    assert [found[name].status for name in ("sampling.not_poisson", "sampling.rate")] == ["ok"] * 2
    assert "batches of MySampler agree with Poisson" in found["sampling.not_poisson"].message
    assert found["sampling.not_poisson"].share == sampling.NOT_POISSON.share


def test_a_shuffled_epoch_is_a_violation_with_what_to_write_instead():
    found = results(check_of(shuffled()))["sampling.not_poisson"]
    assert (found.status, found.kind) == ("violated", "accounting")
    assert "DPDataLoader.from_data_loader" in found.advice
    assert found.evidence["violated_at_step"] < 16
    assert found.log_e_value >= -math.log(0.01 * 1e-3)
    steps = [step for test in evidence_in(check_of(shuffled())) for step, _ in test.growth]
    assert max(steps) == RECORDS // 16 - 1


@pytest.mark.parametrize(
    ("batches", "rate", "why"),
    [
        (lambda: poisson(4), RATE, "4 batches are too few or too small"),
        (lambda: poisson(300, rate=4 / RECORDS), 4 / RECORDS, "too few or too small"),
        (lambda: poisson(64, rate=0.6), 0.6, "too high to test"),
        *(
            (lambda no=no: [*poisson(64), no, [1, 1]], RATE, "not lists of record numbers")
            for no in (["a", "b"], [RECORDS])
        ),
    ],
)
def test_batches_that_tell_nothing_leave_it_open(batches, rate, why):
    found = results(check_of(batches()), rate)["sampling.not_poisson"]
    assert found.status == "not_run"
    assert why in found.message


@pytest.mark.parametrize(("factor", "status"), [(1.5, "violated"), (1.0, "ok"), (0.5, "ok")])
def test_only_more_records_than_accounted_for_are_a_violation(factor, status):
    found = results(check_of(poisson(128, rate=factor * RATE)))
    assert (found["sampling.rate"].status, found["sampling.not_poisson"].status) == (status, "ok")


def test_favoured_records_are_more_than_the_accountant_is_told():
    rng = np.random.default_rng(0)
    batches = (np.flatnonzero(rng.random(RECORDS // 4) < 4 * RATE) for _ in range(128))
    assert results(check_of(batches))["sampling.rate"].status == "violated"


def test_a_record_that_stands_twice_in_a_batch_is_a_violation():
    found = results(check_of([*poisson(64), [3, 4, 3]]))["sampling.not_poisson"]
    assert found.status == "violated"
    assert "contain a record twice" in found.message


def test_batches_of_tensors_and_empty_ones_are_read():
    batches = [torch.tensor(batch) for batch in poisson(60)]
    check = check_of([*batches, [], torch.tensor([], dtype=torch.long), [torch.tensor(3)]])
    assert check.obstacle == ""
    assert results(check)["sampling.not_poisson"].evidence["batches"] == 63


def test_looks_at_the_rate_are_as_good_as_one():
    often, once = check_of([]), check_of(poisson(60, rate=1.3 * RATE))
    for batch in poisson(60, rate=1.3 * RATE):
        if often.batches % 32 == 0:
            often.start_epoch()
        often.take(batch)
        often.settle(RATE)
    once.settle(RATE)
    assert often._rate_wealth == pytest.approx(once._rate_wealth)


PUBLIC = sampling.Promise(3.0, 1e-5)
PRIVATE = dataclasses.replace(PUBLIC, private_size=True)


def of_512(promise: sampling.Promise, coordinates: int = 100_000) -> CheckResult:
    """One record less, and the divisor is 15 and not 16."""
    result = sampling.batch_size_result(16, 512, 1 / 32, coordinates, promise)
    assert result is not None
    return result


def blocks(result: CheckResult) -> str:
    return sampling.EXPECTED_BATCH_SIZE.blocks(result)


@pytest.mark.parametrize(
    ("expected", "records", "rate", "of_neighbours"),
    [
        (16, 512, 1 / 32, [15]),  # a round number of records: one less, and the divisor is smaller
        (255, 59_999, 1 / 235, []),
        (255, 60_159, 1 / 235, [256]),  # one more, and it is larger
    ],
)
def test_divisor_of_neighbouring_data_sets_is_told_and_never_fails(
    expected, records, rate, of_neighbours
):
    result = sampling.batch_size_result(expected, records, rate, 10**9, PUBLIC)
    assert result.status == "ok"
    assert not blocks(result)
    if not of_neighbours:
        free = sampling.batch_size_result(expected, records, rate, 10**9, PRIVATE)
        assert (free.status, blocks(free)) == ("ok", "")
        said = "one record more or less does not change the divisor of the gradients"
        assert free.message == said
    assert result.evidence["of_neighbours"] == of_neighbours
    assert ("set expected_batch_size to a constant" in result.message) == bool(of_neighbours)
    assert ("epsilon_of_divisor" in result.evidence) == bool(of_neighbours)


def test_of_two_neighbours_the_costlier_one_counts():
    assert sampling.batch_size_result(20, 512, 1 / 32, 1000, PRIVATE) is None  # set by hand
    assert sampling.batch_size_result(2, 4, 0.5, 50, PRIVATE).evidence["of_neighbours"] == [1]
    every = sampling.batch_size_result(4, 4, 1.0, 50, PRIVATE)
    assert every.evidence["of_neighbours"] == [3, 5]
    assert every.evidence["epsilon_of_divisor"] == isotropic_pair_epsilon(4 / 3, 50, 1e-5)


def test_a_private_number_of_records_is_violated_where_the_divisor_alone_costs_more():
    # The cost is that of telling the noise of both divisors apart.
    cost = isotropic_pair_epsilon(15 / 16, 100_000, 1e-5)
    for promise in (PUBLIC, PRIVATE):
        result = of_512(promise)
        assert result.evidence["epsilon_of_divisor"] == pytest.approx(cost, rel=1e-9)
        assert f"alone costs epsilon {cost:.4g} at delta 1e-05" in result.message
    assert (result.status, result.kind) == ("violated", "accounting")
    assert not blocks(result)
    assert "by 15, and the number of records is private: the different size of" in result.message
    assert result.message.endswith("(1e+05 parameters times steps), and 3 is claimed")
    assert "PrivacyClaim(expected_batch_size=...)" in result.advice


def test_a_cost_within_a_private_claim_is_neither_violated_nor_paid_for():
    result = of_512(PRIVATE, coordinates=10)
    assert result.evidence["epsilon_of_divisor"] < 3.0
    unclaimed = of_512(dataclasses.replace(PRIVATE, claimed_epsilon=None))
    for found in (result, unclaimed):
        assert found.status == "ok"
        assert blocks(found)
    found = of_512(PRIVATE, coordinates=0)  # before the first step nothing is spent
    assert (found.evidence["epsilon_of_divisor"], found.status) == (0.0, "ok")


def test_replacing_a_record_costs_nothing():
    result = of_512(dataclasses.replace(PUBLIC, adjacency="replace_one"))
    assert result.status == "ok"
    assert "epsilon_of_divisor" not in result.evidence
    assert result.message.endswith("= 16, which replacing a record does not change")


def test_a_neighbour_without_a_divisor_is_told_apart_surely():
    result = sampling.batch_size_result(1, 1, 1.0, 10, PRIVATE)
    assert (result.evidence["epsilon_of_divisor"], result.status) == (math.inf, "violated")


# --- Batches count when their rate is known, and what cannot be read says so.

DRAWN_RECORDS, DRAWN_RATE = 500, 0.04


def poisson_batches(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(DRAWN_RECORDS) < DRAWN_RATE).tolist() for _ in range(count)]


def taken(batches: list[Any], rate: float | None = DRAWN_RATE) -> sampling.DrawnBatches:
    drawn = sampling.DrawnBatches(DRAWN_RECORDS, 0.05)
    for batch in batches:
        drawn.take(batch)
    drawn.rate = rate
    return drawn


@pytest.mark.parametrize(
    ("batches", "rate", "why"),
    [
        (poisson_batches(300), DRAWN_RATE, ""),
        ([[], [], [3]], 0.0005, ""),  # empty batches are batches
        ([["a"]], DRAWN_RATE, "not lists of record numbers"),
        ([[1, 2]], None, "the sample rate is unknown"),
        ([[1, 2]], 1.0, "all records are taken"),
    ],
)
def test_new_batches_are_fine_and_what_cannot_be_told_says_why(batches, rate, why):
    found = taken(batches, rate).result()
    assert found.status == ("not_run" if why else "ok")
    assert why in found.message


@pytest.mark.parametrize("known_first", [True, False])
def test_an_epoch_that_comes_again_is_found(known_first):
    epoch, drawn = poisson_batches(25), sampling.DrawnBatches(DRAWN_RECORDS, 0.05)
    drawn.rate = DRAWN_RATE if known_first else None
    for batch in (*epoch, *(list(reversed(b)) for b in epoch)):  # in any order
        drawn.take(batch)
    drawn.rate = DRAWN_RATE
    found = drawn.result()
    assert (found.status, found.evidence["of"]) == ("violated", "again")
    assert found.message.startswith("25 of 50 batches")


def test_records_in_every_batch_are_found():
    found = taken([sorted({*batch, 7}) for batch in poisson_batches(60)]).result()
    assert (found.status, found.evidence["of"]) == ("violated", "favoured")


def statuses(*args: object) -> dict[str, str]:
    return {c.name: c.status for c in sampling.sampling_results(*args)}  # type: ignore[arg-type]


def test_poisson_loader_at_the_accounted_rate_is_fine():
    assert statuses("poisson", "UniformWithReplacementSampler", 0.01, 0.01, [60, 70]) == {
        "sampling.not_poisson": "ok",
        "sampling.rate": "ok",
    }
    assert statuses("poisson", "a", None, 0.01, []) == {"sampling.not_poisson": "ok"}
    for rate in (None, 1.0):  # no subsampling is accounted for
        (found,) = sampling.sampling_results("not_poisson", "BatchSampler", None, rate, [64] * 99)
        assert found.status == "not_run"


@pytest.mark.parametrize(("rate", "status"), [(0.0102, "violated"), (0.01005, "ok"), (0.001, "ok")])
def test_only_a_loader_that_draws_more_often_is_a_violation(rate, status):
    assert statuses("poisson", "a", rate, 0.01, [])["sampling.rate"] == status


def test_shuffled_loader_is_a_violation_with_what_to_write_instead():
    (found,) = sampling.sampling_results("not_poisson", "BatchSampler", None, 0.01, [64])
    assert (found.status, found.kind) == ("violated", "accounting")
    assert "BatchSampler" in found.message
    assert "DPDataLoader.from_data_loader" in found.advice


@pytest.mark.parametrize(
    "sizes", [[], [64], [64] * 4, [64] * 30 + [63], [1] * 20, list(range(50, 80))]
)
def test_unknown_sampler_is_left_open_where_its_sizes_prove_nothing(sizes):
    (found,) = sampling.sampling_results("unknown", "MySampler", None, 0.01, sizes)
    assert found.status == "not_run"
    assert "MySampler" in found.message


@pytest.mark.parametrize("kind", ["poisson", "unknown"])
def test_batches_of_a_poisson_sampler_are_never_taken_for_equal(kind):
    rng = np.random.default_rng(0)
    for size in (2, 20, 200):
        for _ in range(200):
            sizes = rng.binomial(100 * size, 0.01, size=100).tolist()
            assert statuses(kind, "a", None, 0.01, sizes)["sampling.not_poisson"] != "violated"


def test_number_of_equal_batches_that_proves_it_is_that_of_the_poisson_law():
    def proves(number: int) -> bool:
        return statuses("unknown", "a", None, 0.01, [64] * number)["sampling.not_poisson"] == (
            "violated"
        )

    (found,) = sampling.sampling_results("unknown", "MySampler", None, 0.01, [64] * 30)
    assert "with batches all of one size" in found.message
    first = next(n for n in range(1, 50) if proves(n))
    chance = 1 / math.sqrt(2 * math.pi * 64 * 0.99)
    assert chance ** (first - 1) < 1e-9 <= chance ** (first - 2)


@pytest.mark.parametrize(("sigma", "passes"), [(1.0, 1), (2.0, 10), (0.7, 3)])
def test_passes_over_shuffled_batches_cost_as_steps_on_all_do(sigma, passes):
    told = sampling.what_holds(sigma, passes, passes, 1e-5)
    steps = [Phase(sigma, 1.0, passes)]
    zeroed = epsilon_of_history(steps, 1e-5)
    replaced = epsilon_of_history(steps, 1e-5, adjacency="replace_one")
    assert f"epsilon {zeroed:.4g} at delta 1e-05 if a record is zeroed out" in told
    assert f"{replaced:.4g} if it is replaced" in told
    assert ("one epoch costs" in told) == (passes == 1)
    # Of a training that has not ended, the whole is told, and what was seen is named as such.
    seen = sampling.what_holds(sigma, 1, passes + 1, 1e-5)
    whole = sampling.what_holds(sigma, passes + 1, passes + 1, 1e-5)
    whole = whole.replace(f"{passes + 1} epochs", f"the {passes + 1} planned epochs")
    assert seen.startswith(f"{whole} (1 seen so far: ")


def test_a_loader_that_was_chosen_is_said_to_be():
    given = ("not_poisson", "BatchSampler", None, 0.01, [64])
    (dropped,) = sampling.sampling_results(*given)
    (chosen,) = sampling.sampling_results(*given, by_choice=True, holds=". What holds: so much")
    said = "; make_private was called with poisson_sampling=False. What holds: so much"
    assert chosen.message == dropped.message + said
    assert chosen.advice == dropped.advice


@pytest.mark.parametrize(
    ("kind", "once", "status", "said"),
    [
        ("not_poisson", True, "ok", "per epoch, as claimed: a loader"),
        ("poisson", False, "not_run", "leave sampling out of the claim"),
        ("not_poisson", False, "not_run", "it is unknown whether"),
        ("unknown", False, "not_run", "it is unknown whether"),
    ],
)
def test_shuffled_ones_are_claimed_or_block(kind, once, status, said):
    found = sampling.shuffled_result(kind, "a loader", once=once)
    assert found.status == status
    assert said in found.message
    assert bool(sampling.NOT_POISSON.blocks(found)) == (status == "not_run")


class _Stream(IterableDataset[tuple[torch.Tensor, ...]]):
    def __iter__(self):
        return iter(digits(64))


def test_what_is_said_of_an_iterable_data_set_can_be_done():
    stream = DataLoader(_Stream(), batch_size=8)
    facts = loader_facts(stream)
    (found,) = sampling.sampling_results(facts.kind, facts.description, None, 0.125, [])
    assert found.status == "violated"
    assert "DataLoader(list(dataset), batch_size=...)" in found.advice
    with pytest.raises(ValueError, match="not supported for IterableDataset"):
        DPDataLoader.from_data_loader(stream)
    loader = DPDataLoader.from_data_loader(DataLoader(list(_Stream()), batch_size=8))
    facts = loader_facts(loader)
    assert statuses(facts.kind, facts.description, facts.sample_rate, 0.125, []) == {
        "sampling.not_poisson": "ok",
        "sampling.rate": "ok",
    }
    plain = loader_facts(DataLoader(range(64), batch_size=8))
    (found,) = sampling.sampling_results(plain.kind, plain.description, None, 0.125, [])
    assert "list(dataset)" not in found.advice


def divisor(cost: float, claimed: float | None, *, private: bool = True) -> dict[str, Any]:
    return {"private_dataset_size": private, "claimed_epsilon": claimed, "epsilon_of_divisor": cost}


@pytest.mark.parametrize(
    ("check", "evidence", "fault"),
    [
        (ACCOUNTING, {"epsilon_spent": 2.9, "claimed_epsilon": 3.0}, None),
        (ACCOUNTING, {"epsilon_spent": 3.0, "claimed_epsilon": 3.0}, None),
        (ACCOUNTING, {"epsilon_spent": 3.5, "claimed_epsilon": 3.0}, "wrong_accounting"),
        (ACCOUNTING, {"epsilon_spent": math.inf, "claimed_epsilon": 3.0}, "wrong_accounting"),
        (
            ACCOUNTING,
            {"epsilon_spent": 6.0, "claimed_epsilon": 3.0, "epsilon_by_removal": 2.9},
            "replacement_accounted_as_removal",
        ),
        # The claim would not hold for a record more or less either.
        (
            ACCOUNTING,
            {"epsilon_spent": 8.0, "claimed_epsilon": 3.0, "epsilon_by_removal": 3.9},
            "wrong_accounting",
        ),
        (sampling.NOT_POISSON, {"poisson": True}, None),
        (sampling.NOT_POISSON, {"poisson": False}, "not_poisson"),
        (sampling.SAMPLING_RATE, {"loader_rate": 0.1005, "accounted_rate": 0.1}, None),
        (
            sampling.SAMPLING_RATE,
            {"loader_rate": 0.102, "accounted_rate": 0.1},
            "sampled_too_often",
        ),
        (sampling.SAMPLING_RATE, {"loader_rate": 0.05, "accounted_rate": 0.1}, None),
        (sampling.REPEATED, {"processes": 1}, None),
        (sampling.REPEATED, {"processes": 2}, "sampled_by_every_process"),
        (sampling.EXPECTED_BATCH_SIZE, divisor(5.0, 3.0, private=False), None),
        (sampling.EXPECTED_BATCH_SIZE, divisor(5.0, None), None),
        (sampling.EXPECTED_BATCH_SIZE, divisor(2.0, 3.0), None),
        (sampling.EXPECTED_BATCH_SIZE, divisor(5.0, 3.0), "divisor_tells_the_number_of_records"),
    ],
)
def test_what_is_wrong_is_named(check, evidence, fault):
    assert fault_of(check, evidence) == fault


def test_unknown_sampling_blocks_a_pass_only_where_subsampling_is_accounted_for():
    blocks = sampling.NOT_POISSON.blocks
    unknown = sampling.NOT_POISSON.not_run("how it draws is unknown", {"accounted_rate": 0.1})
    assert blocks(unknown) == (
        "how it draws is unknown; if it does, set allow='sampling.not_poisson'"
    )
    assert blocks(dataclasses.replace(unknown, evidence={"accounted_rate": None})) == ""
    assert blocks(dataclasses.replace(unknown, status="ok")) == ""
    assert sampling.SAMPLING_RATE.blocks is None


def test_what_a_private_size_costs_within_the_claim_is_unpaid_and_blocks_a_pass():
    blocks = sampling.EXPECTED_BATCH_SIZE.blocks
    found = sampling.EXPECTED_BATCH_SIZE.judged(divisor(2.0, 3.0), "it tells")
    found = dataclasses.replace(found, advice="a divisor")
    said = "it tells: the epsilon of both together is unknown; look at a divisor"
    assert blocks(found) == said
    assert blocks(dataclasses.replace(found, evidence=divisor(2.0, 3.0, private=False))) == ""
    assert blocks(dataclasses.replace(found, status="violated")) == ""


# --- What a sampler yields is read as record numbers, or not at all.


@pytest.mark.parametrize(
    "batch", [[3, 0, 9], (3, 0, 9), torch.tensor([3, 0, 9]), np.array([3, 0, 9], dtype=np.uint8)]
)
def test_numbers_of_any_kind_are_read_in_their_order(batch):
    read = sampling.record_numbers(batch, 10)
    assert (read.dtype, read.tolist()) == (np.int64, [3, 0, 9])


class Refuses:
    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("not an array")


@pytest.mark.parametrize(
    "batch",
    [
        [0, 10],
        [-1, 2],
        ["0", "1"],
        [0.0, 1.0],
        [[0, 1], [2, 3]],
        [[0], [1, 2]],
        3,
        None,
        iter([0, 1]),
        Refuses(),
    ],
)
def test_what_is_no_list_of_record_numbers_is_not_read(batch):
    assert sampling.record_numbers(batch, 10) is None
    for empty in ([], (), torch.zeros(0), np.zeros((0, 2))):
        assert sampling.record_numbers(empty, 10).tolist() == []
    if isinstance(batch, Iterator):
        assert list(batch) == [0, 1]  # it is left as it is


def test_a_record_of_several_items_changes_the_divisor_by_more():
    promises = (sampling.Promise(8.0, 1e-5, private_size=True, items=items) for items in (1, 40))
    few, many = (sampling.batch_size_result(30, 600, 0.05, 1000, each) for each in promises)
    assert few.evidence["of_neighbours"] == [29]
    assert many.evidence["of_neighbours"] == [28, 32]
    assert many.evidence["epsilon_of_divisor"] > few.evidence["epsilon_of_divisor"]
