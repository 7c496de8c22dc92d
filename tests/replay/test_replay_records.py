"""Examinations show that gradients depend on other records, and accuse no sound net."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from correct_steps import CORRECT
from hand_written_support import CLAIM, HandWritten, OneByOne, sample_norms
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from plain_step import OverTheBatch, PlainStep, asked, replay_of
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader
from training_support import (
    ManualModule,
    PrivateModule,
    digits,
    fit,
    mlp,
    status,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.replay import examiner
from lightning_audit.replay.question import Asked, tolerance
from lightning_audit.replay.records import (
    Judged,
    examine_independence,
    hands_all_over,
    is_noise,
    judge,
    largest_change,
    made_up_records,
    within_range,
)
from lightning_audit.replay.releases import Release
from lightning_audit.replay.step_replay import Replay
from lightning_audit.testing.faulty import OwnFactors

# --- Records that are made up have numbers that were seen, column by column.


def batch_of(columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return columns, torch.arange(len(columns)) % 3


def made(batch: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """All records that are made up beside a batch."""
    return [longer for _, longer in made_up_records(replay_of(PlainStep()), [batch], 1)]


COLUMNS = {
    "prices": torch.exp(6.0 + 2.0 * torch.randn(8, 6, generator=torch.Generator().manual_seed(1))),
    "counts": torch.randint(0, 9, (8, 6), generator=torch.Generator().manual_seed(2)).float(),
    "measurements": 1e3 * torch.randn(8, 6, generator=torch.Generator().manual_seed(3)),
    "one value": torch.full((8, 6), 3.5),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_number_was_seen_in_its_column(name):
    batch = batch_of(COLUMNS[name])
    records = [(x[-1], y[-1]) for x, y in made(batch)]
    assert within_range((batch[0], torch.arange(8)), 1)[1].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    records += list(zip(*within_range(batch, 5), strict=True))
    assert len(records) == 3 + 8
    for x, y in made(batch):
        assert torch.equal(x[:-1], COLUMNS[name])
        assert torch.equal(y[:-1], batch[1])
    for x, y in records:
        assert bool((x == batch[0]).any(0).all())
        assert y in batch[1]


FAULT = "records are not independent"


def audit(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"examinations": 1, "seed": 1, **kwargs})


def answer(module: Any, question: str = "coupling", **given: Any) -> Answer:
    return asked(module, question, **given)[question]


def coupling(report: AuditReport) -> Any:
    return next(check for check in report.checks if check.name == "coupling")


# ------------------------------------------------------------------ nets


class Noisy(nn.Module):
    """Dropout by function, and noise on the features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5, training=self.training) + 0.1 * torch.randn_like(x)


def layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), *between, nn.ReLU(), nn.Linear(32, 10))


SOUND = {
    "module dropout, LayerNorm": "bf16-mixed",
    "functional dropout": "32-true",
    "augmentation": "32-true",
    "embeddings": "bf16-mixed",
    "GRU with dropout": "32-true",
}


@pytest.mark.parametrize(
    "case", [case for case in CORRECT if case.name in SOUND], ids=lambda case: case.name
)
def test_sound_net_is_not_accused(case):
    found = answer(case.module(), precision=SOUND[case.name])
    assert found.asked
    assert (found.findings, found.reason) == ((), "")


def test_batch_normalisation_is_found_at_once(tmp_path):
    module = PrivateModule(layers(OverTheBatch()), dataset=digits())
    report = violation(tmp_path, module, audit(), max_steps=1)
    assert report.verdict.fault.startswith(FAULT)
    assert coupling(report).evidence["step"] == 0
    assert coupling(report).evidence["change"] > 0.2


@pytest.mark.usefixtures("all_numbers")
def test_each_examination_replays_a_batch(tmp_path):
    module = PrivateModule(layers(), dataset=digits())
    report = fit(tmp_path, module, audit(examinations=2), max_steps=4)
    assert coupling(report).evidence["replays"] == 2


# ------------------------------------------------------------------ losses


class Weighted(PrivateModule):
    """The loss is divided by the sum of the batch's class weights."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y, weight=torch.arange(1.0, 11.0))


class Contrastive(PrivateModule):
    """Each record is to be told from the others in its batch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        seen = functional.normalize(self.net(batch[0]))
        return functional.cross_entropy(seen @ seen.T, torch.arange(len(seen)))


class Sorted(PrivateModule):
    """Records are sorted by something of their own, before random numbers are drawn."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        order = x.sum(1).argsort()
        return functional.cross_entropy(self.net(x[order]), y[order])


class Packed(nn.Module):
    """Sequences of several lengths; Opacus keeps a recurrent layer's rows in the order of these."""

    def __init__(self, *, ordered: bool = False) -> None:
        super().__init__()
        self.ordered = ordered
        self.lstm = DPLSTM(8, 16, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (1 + x.sum(1) % 7).long()
        packed = pack_padded_sequence(
            x.reshape(len(x), 8, 8), lengths, batch_first=True, enforce_sorted=self.ordered
        )
        return self.head(self.lstm(packed)[1][0][-1])


class ByLength(PrivateModule):
    """The batch is sorted before any layer sees it."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        order = (1 + x.sum(1) % 7).long().argsort(descending=True, stable=True)
        return functional.cross_entropy(self.net(x[order]), y[order])


def over_the_batch() -> nn.Module:
    return layers(OverTheBatch())


@pytest.mark.parametrize(
    ("kind", "net", "precision"),
    [
        (PrivateModule, over_the_batch, "bf16-mixed"),
        (ManualModule, over_the_batch, "32-true"),
        (Weighted, layers, "32-true"),
        (Contrastive, layers, "32-true"),
    ],
)
def test_gradients_that_depend_on_other_records_are_found(kind, net, precision):
    assert answer(kind(net(), dataset=digits()), precision=precision).findings


def test_sequences_that_opacus_puts_in_another_order_are_found(tmp_path):
    report = violation(tmp_path, PrivateModule(Packed(), dataset=digits()), audit(), max_steps=1)
    assert report.verdict.fault.startswith(FAULT)
    assert "enforce_sorted=False" in report.verdict.root.look_at


@pytest.mark.parametrize(
    ("kind", "net"), [(Sorted, lambda: layers(Noisy())), (ByLength, lambda: Packed(ordered=True))]
)
def test_sorted_records_are_fine(kind, net):
    found = answer(kind(net(), dataset=digits()))
    assert found.asked
    assert (found.findings, found.reason) == ((), "")


# ------------------------------------------------------------------ written by hand


class NormalisedByHand(HandWritten):
    """The module's own batch normalisation, with running statistics, before the private net."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, affine=False)

    def sample_gradients(self, batch: Any) -> Any:
        return super().sample_gradients((self.norm(batch[0]), batch[1]))


class InTwoParts(HandWritten):
    """A batch is handed over in two calls."""

    def sample_gradients(self, batch: Any) -> Any:
        x, y = batch
        half = len(x) // 2
        one = super().sample_gradients((x[:half], y[:half]))
        two = super().sample_gradients((x[half:], y[half:]))
        return {name: torch.cat([g, two[name]]) for name, g in one.items()}


def test_hand_written_batch_normalisation_is_found():
    module = NormalisedByHand()
    assert answer(module, claim=CLAIM, max_steps=1).findings
    assert int(module.norm.num_batches_tracked) == 1


class ClippedByTheLargest(HandWritten):
    """All gradients are scaled by the largest norm of the batch."""

    def clipped_sums(self, grads):
        factor = (1.0 / (sample_norms(grads).max() + 1e-9)).clamp(max=1.0)
        return {name: factor * g.sum(0) for name, g in grads.items()}


class Smoothed(HandWritten):
    """The noisy gradient is filtered so that a record may add twice as much, and so does noise."""

    def write_gradient(self, grads):
        super().write_gradient(grads)
        for p in self.net.parameters():
            flat = p.grad.flatten()
            p.grad = (flat + 0.5 * (flat.roll(1) + flat.roll(-1))).view_as(p)


def test_clipping_by_the_largest_norm_of_the_batch_is_found_by_hand():
    assert answer(ClippedByTheLargest(), "replay.sensitivity", claim=CLAIM).findings


def test_a_linear_filter_behind_the_noise_is_not_accused_by_hand():
    answers = asked(Smoothed(), claim=CLAIM, trials=8)
    assert not any(found.findings for found in answers.values())


def test_a_sound_training_by_hand_in_two_parts_is_not_accused():
    found = answer(InTwoParts(), claim=CLAIM)
    assert found.asked
    assert (found.findings, found.reason) == ((), "")


def test_what_cannot_be_compared_says_why(tmp_path):
    report = fit(tmp_path, OneByOne(), audit(claim=CLAIM), max_steps=2)
    assert status(report, "coupling") == "not_run"
    assert coupling(report).message == Reason.NO_ROWS


# ------------------------------------------------------------------ limits


@pytest.mark.usefixtures("all_numbers")
def test_a_batch_of_one_record_waits_for_the_next(tmp_path):
    class Alone(PrivateModule):
        def train_dataloader(self) -> Any:
            return DataLoader(self.dataset, batch_sampler=[[0], [0, 1, 2, 3]])

    module = Alone(layers(), dataset=digits())
    report = fit(tmp_path, module, audit(on_violation="warn"), max_steps=2)
    assert coupling(report).evidence["replays"] == 1


def test_the_argument_is_a_number_or_auto():
    for wrong in ("no", -1, True, 1.5):
        with pytest.raises(ValueError, match="must be 'auto' or a whole number >= 0"):
            PrivacyAudit(examinations=wrong)  # type: ignore[arg-type]


def test_a_training_step_that_fails_on_copies_trains_on(tmp_path):
    class Distinct(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if len(batch[0].unique(dim=0)) < len(batch[0]):
                raise ValueError("a record comes twice")
            return super().training_step(batch, batch_idx)

    report = fit(tmp_path, Distinct(layers(), dataset=digits()), audit(), max_steps=2)
    assert report.steps == 2
    assert coupling(report).message == "ValueError"


class Resumable(PrivateModule):
    """Wrapped before Lightning loads a checkpoint: the names of the weights are the same."""

    def __init__(self) -> None:
        super().__init__(layers(OverTheBatch()), dataset=digits())
        self.net = GradSampleModule(self.net)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_violation_is_kept_when_the_training_goes_on(tmp_path):
    first, again = (audit(on_violation="warn") for _ in range(2))
    trainer = trainer_for(tmp_path, first, max_steps=1)
    trainer.fit(Resumable())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    trainer = trainer_for(tmp_path, again, max_steps=2)
    trainer.fit(Resumable(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.report.steps == 2
    assert coupling(again.report).evidence == coupling(first.report).evidence
    assert again.report.verdict.fault.startswith(FAULT)


#: Gradients of four copies of a record, and of a batch with two copies, sorted by the user's code.
COPIES = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
MIXED = torch.tensor([[9.0, 0.0], [3.0, 4.0], [-2.0, 1.0], [3.0, 4.0]])


def test_the_larger_change_of_two_copies_counts_in_units_of_the_norm_wherever_they_lie():
    assert largest_change(COPIES, MIXED, 2) == 0.0
    assert largest_change(COPIES, MIXED.flip(0), 2) == 0.0
    moved = MIXED.clone()
    moved[3] = torch.tensor([3.0, 4.5])
    assert largest_change(COPIES, moved, 2) == pytest.approx(0.5 / math.hypot(3.0, 4.5))
    assert largest_change(COPIES, moved, 1) == 0.0


def test_rows_that_a_step_sorts_are_compared_with_the_nearest():
    generator = torch.Generator().manual_seed(0)
    copies = torch.randn(8, 5, generator=generator)
    mixed = copies.clone()
    mixed[4:] = torch.randn(4, 5, generator=generator)
    order = torch.randperm(8, generator=generator)
    assert largest_change(copies, mixed[order], 4) > 0.1
    assert largest_change(copies, mixed[order], 4, sorted_rows=True) == 0.0
    twice = mixed.clone()
    twice[1] = twice[0]  # one row cannot stand for two
    assert largest_change(copies, twice[order], 4, sorted_rows=True) > 0.1


def test_a_small_gradient_is_compared_in_units_of_the_usual_one():
    copies, mixed = 5.0 * torch.eye(4), 5.0 * torch.eye(4)
    copies[0], mixed[0] = 0.0, 0.0
    mixed[0, 0] = 1e-6
    assert largest_change(copies, mixed, 4) == pytest.approx(2e-7, rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_tell_of_copies_alone(value):
    broken = COPIES.clone()
    broken[1, 1] = value
    assert largest_change(broken, MIXED, 2) == math.inf
    assert largest_change(COPIES, broken, 2) is None
    assert largest_change(0 * COPIES, 0 * MIXED, 2) is None


class _Draws:
    """Replays whose records' gradients are drawn, as many numbers as ``counts`` says of a seed."""

    sizes = (2,)
    order = SimpleNamespace(seed=3, user=PlainStep)

    def __init__(self, counts: Callable[[int, int], int]) -> None:
        self._counts, self.steps = counts, 0

    def allow(self, steps: int) -> None:
        pass

    def usual(self, batches: Sequence[torch.Tensor], seed: int) -> Replay:
        return Replay()

    def run(self, batches: Sequence[torch.Tensor], seed: int, *, keep: int) -> Replay:
        (x,) = batches
        self.steps += 1
        mixed = int((x - x[0]).abs().sum())  # 0 for copies alone
        marks = [("start", 0), ("clipping", self._counts(seed, mixed))]
        draw = torch.Generator().manual_seed(seed + mixed)
        return Replay(rows=len(x), gradients=[torch.randn(len(x), 2, generator=draw)], marks=marks)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (lambda seed, mixed: 8, True),
        # Draws that follow the data, as by rejection, are as many under the first seed by chance.
        (lambda seed, mixed: 8 + mixed * (seed != 3), False),
        (lambda seed, mixed: 8 + mixed, False),
        # As many for each mixture, but each record gets other ones: noise under each seed.
        (lambda seed, mixed: 8 + (mixed > 0), False),
    ],
)
def test_draws_that_follow_the_data_are_no_coupling_where_they_are_as_many_by_chance(
    counts, *, found
):
    batch = torch.arange(16.0).reshape(8, 2)
    answer = examine_independence(Asked(_Draws(counts), [batch]))
    assert bool(answer.findings) == found
    assert bool(answer.reason) != found


# --- A batch that nobody reads tells nothing; random numbers that move are no sensitivity.


def test_tolerances_are_those_of_the_precision():
    assert tolerance([torch.float32], low_precision=False) == 2e-3
    assert tolerance([torch.float64], low_precision=False) == 1e-6
    assert tolerance([torch.float32, torch.bfloat16], low_precision=False) == 0.1
    assert tolerance([torch.float64], low_precision=True) == 0.1


def test_a_step_that_does_not_read_its_batch_is_not_asked():
    class Elsewhere(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = self.dataset.tensors
            return functional.cross_entropy(self.net(x[:16]), y[:16])

    answers = asked(Elsewhere(mlp(64), dataset=digits()), "replay.sensitivity", "replay.clipping")
    assert "gets its records elsewhere" in answers["replay.sensitivity"].reason
    assert not answers["replay.clipping"].findings


# --- A difference of two replays stands only if it is the same vector under a second seed.


def drawn(
    change: Callable[[torch.Tensor, int], torch.Tensor], size: int, *, mark: int = 0
) -> Callable[[int], list[Replay]]:
    """A pair whose second release is a change of the first; `mark` is that of its own numbers."""

    def draw(seed: int) -> list[Replay]:
        noise = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
        marks = [("start", 0)], [("start", mark)]
        releases = noise, change(noise, seed)
        return [Replay([Release(r)], marks=m) for r, m in zip(releases, marks, strict=True)]

    return draw


def record(far: float, size: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    direction = torch.ones(size).double() / math.sqrt(size)
    return lambda noise, _: noise + far * direction


def other_noise(noise: torch.Tensor, seed: int) -> torch.Tensor:
    own = torch.Generator().manual_seed(seed + 77)
    return torch.randn(len(noise), generator=own).double()


@pytest.mark.parametrize("size", [1, 2, 10, 24, 25, 100, 5000])
@pytest.mark.parametrize("by_row", [False, True])
def test_what_a_record_adds_is_a_finding_in_any_dimension(size, by_row):
    judged = judge(drawn(record(3.0, size), size), 1, 1.0, by_row=by_row)
    assert judged == Judged(pytest.approx(3.0))


@pytest.mark.parametrize("size", [1, 2, 10, 24, 25, 100, 5000])
@pytest.mark.parametrize("by_row", [False, True])
def test_other_noise_is_no_finding_in_any_dimension(size, by_row):
    draw = drawn(other_noise, size)
    found = [judge(draw, seed, 1e-3, by_row=by_row).tells for seed in range(0, 3000, 10)]
    # One entry: three differences of one size within a tenth come by chance in 1 of 2,000.
    assert sum(found) <= (3 if size == 1 else 1)


@pytest.mark.parametrize("size", [25, 64, 400, 6400, 100_000])
def test_independent_differences_pass_for_a_record_in_one_of_thirty_thousand(size):
    least = min(max(0.05, 4.0 / math.sqrt(size)), 0.9)
    assert is_noise(least - 1e-9, size)
    assert not is_noise(least, size)
    generator = torch.Generator().manual_seed(size)
    count = 2_000_000 // size
    one, other = torch.randn(2, count, size, generator=generator)
    cosines = torch.nn.functional.cosine_similarity(one, other)
    assert sum(not is_noise(float(cosine), size) for cosine in cosines) <= 1 + count / 10_000


def test_other_marks_and_failures_tell_nothing():
    assert judge(drawn(record(3.0, 50), 50, mark=1), 1, 1.0).shifted
    assert judge(lambda _: [Replay(error="no"), Replay()], 1, 1.0) == Judged(failed=True)


def test_a_small_part_in_common_is_no_finding_unless_a_row_alone_differs():
    def rounded(noise: torch.Tensor, seed: int) -> torch.Tensor:
        far = torch.randn(400, generator=torch.Generator().manual_seed(seed + 5)).double() / 20.0
        return record(0.8, 400)(noise, seed) + 0.9 * far

    assert judge(drawn(rounded, 400), 1, 1.0).shifted
    assert judge(drawn(rounded, 400), 1, 1.0, by_row=True).far > 1.0
    assert judge(drawn(rounded, 400), 1, 1.0, by_row=True, least_cosine=0.9).shifted


def test_a_pair_that_is_not_too_far_apart_is_replayed_once():
    seeds, draw = [], drawn(record(0.9, 50), 50)
    judge(lambda seed: seeds.append(seed) or draw(seed), 1, 1.0)
    assert seeds == [1]


class AddsMean(DPOptimizer):
    """Adds the mean of the batch to the release, beside what is clipped."""

    mean = 0.0

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad += self.mean


class Adds(PlainStep):
    """Tells its optimizer the mean of the batch."""

    def take(self, batches: Sequence[Any]) -> None:
        for x, _ in batches:
            self.optimizers[0].mean = float(x.mean())
        super().take(batches)


@pytest.mark.parametrize("kind", [DPOptimizer, AddsMean])
def test_what_is_added_beside_the_hand_over_is_seen(kind):
    user = Adds(kind)
    assert hands_all_over(replay_of(user), user.batch(), 1) == (kind is DPOptimizer)


# --- All records of a batch at once: what their factors are.


class Factors(OwnFactors):
    """Clips by its own factors."""

    losses = torch.zeros(0)


class OneIsWhole(Factors):
    """The 17th record of a batch is not clipped."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        factors = super().factors(rows).clone()
        factors[16:17] = 1.0
        return factors


class HardOnesAreWhole(Factors):
    """Records of a large loss are not clipped."""

    #: No record of the data's range has it before its loss is raised: those at random have 3.16.
    limit = 3.2

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        hard = self.losses[: len(rows)] > self.limit
        return torch.where(hard, torch.ones(()), super().factors(rows))


class KnowsItsLosses(PrivateModule):
    """Shows each record's loss to its optimizer."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        losses = functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        Factors.losses = losses.detach()
        return losses.mean()


@pytest.mark.parametrize(
    ("kind", "which"), [(Factors, ""), (OneIsWhole, "of the batch"), (HardOnesAreWhole, "range")]
)
@pytest.mark.parametrize("forked", [True, False])
def test_the_factors_of_all_records_are_seen(monkeypatch, kind, which, forked):
    if not forked:
        monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    module = KnowsItsLosses(
        net, dataset=digits(256), batch_size=32, max_grad_norm=0.3, optimizer_class=kind
    )
    answers = asked(module, "coupling", "replay.sensitivity", "replay.factors", max_steps=1)
    names = [f.name for f in answers["replay.sensitivity"].findings]
    found = bool(which) and (forked or kind is not HardOnesAreWhole)  # inputs with gradients
    assert any(which in name and "instead of one gradient" in name for name in names) == found


class IgnoresHalf(PrivateModule):
    """The mean is over the records that are not ignored."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        ignored = x[:, 0] > x[:, 1]
        return functional.cross_entropy(self.net(x), y.masked_fill(ignored, -100))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_record_that_is_ignored_is_not_the_one_that_is_copied(seed):
    assert answer(IgnoresHalf(nn.Linear(8, 10)), seed=seed, max_steps=1).findings
