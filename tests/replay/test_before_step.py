"""Records that meet before the step are found, by place; records that do not are innocent."""

import functools
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plain_step
import pytest
import pytorch_lightning as pl
import torch
from opacus.data_loader import DPDataLoader
from plain_loops import Made, averaged_form, made, mnist_form, once_form, raw_steps_form
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from training_matrix import Ghost
from training_support import PrivateModule, random_data, status, trainer_for

import lightning_audit
from lightning_audit import Examination, PrivacyAudit, PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.checks.replay import Answer
from lightning_audit.replay import before_step, examiner
from lightning_audit.report.text import epsilons as describe_epsilons
from lightning_audit.verdict import gate
from lightning_audit.verdict.judge import describe_examined

COUNT, WIDE, LONG = 96, 6, 12


def numbers(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (COUNT,), generator=generator)
    return torch.randn(COUNT, WIDE, generator=generator), labels


class Held(Dataset):
    """Records in two tensors; a subclass makes items of them."""

    def __init__(self) -> None:
        self.x, self.y = numbers()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> Any:
        return self.x[key], self.y[key]


class Mixed(Held):
    """Mixup with a record drawn at random."""

    def __getitem__(self, key: int) -> Any:
        other = int(torch.randint(0, COUNT, ()))
        return 0.7 * self.x[key] + 0.3 * self.x[other], self.y[key]


class BatchTransform(Held):
    """As a transform of Hugging Face's data sets: of all records of a batch."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        x = self.x[keys]
        return list(zip(x - x.mean(0), self.y[keys], strict=True))


class Window(Held):
    """A fixed window of records."""

    def __getitem__(self, key: int) -> Any:
        return self.x[key] + self.x[(key + 1) % COUNT], self.y[key]


class Longer(Dataset):
    """Items of ``width`` rows of a series, at a stride; with tables that all items look up."""

    def __init__(self, width: int, stride: int, *, tokens: bool = False) -> None:
        self.width, self.stride = width, stride
        rows = (COUNT - 1) * stride + width
        generator = torch.Generator().manual_seed(1)
        self.series = torch.randn(rows, generator=generator)
        if tokens:  # a twentieth of them are equal
            self.series = torch.randint(0, 20, (rows,), generator=generator)
        self.y = numbers()[1]
        self.names = [f"class {number}" for number in range(200)]
        self.begins = np.arange(COUNT + 1) * stride

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> Any:
        begin = self.begins[key]
        rows = self.series[begin : begin + self.width].float()
        assert self.names[int(self.y[key])]
        return nn.functional.pad(rows, (0, WIDE))[:WIDE], self.y[key]


class Ragged(Longer):
    """Parts of a series, from one place to the next."""

    def __init__(self) -> None:
        super().__init__(3, 4)
        lengths = np.random.default_rng(0).integers(2, 5, COUNT)
        self.begins = np.concatenate([[0], np.cumsum(lengths)])

    def __getitem__(self, key: int) -> Any:
        rows = self.series[self.begins[key] : self.begins[key + 1]]
        return nn.functional.pad(rows, (0, WIDE))[:WIDE], self.y[key]


class Embedded(Held):
    """Rows of a table, longer than the data set, that the records select."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(3 * COUNT, WIDE)
        self.words = torch.randint(0, 3 * COUNT, (COUNT, 2))

    def __getitem__(self, key: int) -> Any:
        return self.table[self.words[key]].sum(0), self.y[key]


class Permuted(Held):
    """Records in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.random.default_rng(0).permutation(COUNT)

    def __getitem__(self, key: int) -> Any:
        return super().__getitem__(self.order[key])


class Centered(Held):
    """Items minus the mean of all."""

    def __getitem__(self, key: int) -> Any:
        return self.x[key] - self.x.mean(0), self.y[key]


class Noisy(Held):
    """Augmentation from torch and from an own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.count = np.random.default_rng(3), 0

    def __getitem__(self, key: int) -> Any:
        self.count += 1
        x = self.x[key] + 0.1 * torch.randn(WIDE)
        return x * float(self.own.uniform(0.9, 1.1)), self.y[key]


class Counted(Held):
    """Items depend on how many were made, in the whole process."""

    count = 0

    def __getitem__(self, key: int) -> Any:
        Counted.count += 1
        return self.x[key] + Counted.count, self.y[key]


class Position(Held):
    """Items depend on the position of an iterator, which cannot be restored."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def __getitem__(self, key: int) -> Any:
        return self.x[key] + next(self.numbers), self.y[key]


class LeastRecent(Held):
    """A cache of functools, a file that stays open, and rows of a memory map."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        (folder / "x.bin").write_bytes(self.x.numpy().tobytes())
        self.file = os.open(folder / "x.bin", os.O_RDONLY)
        self.mapped = np.memmap(folder / "x.bin", np.float32, "r+", shape=(COUNT, WIDE))
        self.cached = functools.lru_cache(4)(self.read)

    def read(self, key: int) -> torch.Tensor:
        row = np.frombuffer(os.pread(self.file, 4 * WIDE, 4 * WIDE * key), np.float32)
        return torch.from_numpy(row + self.mapped[key])

    def __getitem__(self, key: int) -> Any:
        return self.cached(key), self.y[key]


class Locked(Held):
    """A lock can be neither copied nor pickled; views of a record are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.views = threading.Lock(), np.zeros(COUNT)

    def __getitem__(self, key: int) -> Any:
        with self.lock:
            self.views[key] += 1
            return self.x[key] * (1.0 + 0.1 * self.views[key]), self.y[key]


class RunningMean(Held):
    """Subtracts the mean of all records that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(WIDE)

    def __getitem__(self, key: int) -> Any:
        self.mean += 0.1 * (self.x[key] - self.mean)
        return self.x[key] - self.mean, self.y[key]


class RunningArray(Held):
    """Scales by the largest number that was read, held in an array of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = np.ones(1)

    def __getitem__(self, key: int) -> Any:
        self.largest[0] = max(self.largest[0], float(self.x[key].abs().max()))
        return self.x[key] / self.largest[0], self.y[key]


class Cached(Held):
    """Items are made once."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}

    def __getitem__(self, key: int) -> Any:
        return self.made.setdefault(key, (self.x[key] * 2.0, self.y[key]))


class Numbers(Held):
    """The module holds the records on its device, and gets their numbers."""

    def __getitem__(self, key: int) -> Any:
        return torch.tensor(key), self.y[key]


class Texts(Dataset):
    """Sequences, of which one in twelve is long."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        lengths = [LONG if key % 12 == 0 else 3 for key in range(COUNT)]
        self.texts = [torch.randint(1, 20, (n,), generator=generator) for n in lengths]
        self.y = numbers()[1]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> Any:
        return self.texts[key], self.y[key]


class Stream(IterableDataset):
    """Records without numbers; they are no Poisson samples."""

    def __iter__(self) -> Any:
        return zip(*numbers(), strict=True)

    def __len__(self) -> int:
        return COUNT


class Once(Held):
    """Gives every record once, as a queue would; Opacus looks at the first."""

    def __init__(self) -> None:
        super().__init__()
        self.left = set(range(COUNT))

    def __getitem__(self, key: int) -> Any:
        if key:
            self.left.remove(key)
        return super().__getitem__(key)


class SizeBatches:
    """Batches of records of like size."""

    def __init__(self, data: Held) -> None:
        self.sizes = data.x.norm(dim=1).tolist()

    def __iter__(self) -> Any:
        order = sorted(range(COUNT), key=lambda key: self.sizes[key])
        return iter([order[place : place + 12] for place in range(0, COUNT, 12)])

    def __len__(self) -> int:
        return COUNT // 12


def padded(items: list[Any]) -> Any:
    return pad_sequence([x for x, _ in items], batch_first=True), torch.stack([y for _, y in items])


def standardized(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return x - x.mean(0), y


def cut_mix(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return torch.where(torch.rand(x.shape) < 0.3, x[torch.randperm(len(x))], x), y


def sometimes_mixed(items: list[Any]) -> Any:
    """Mixes every second batch."""
    x, y = default_collate(items)
    return (0.6 * x + 0.4 * x.roll(1, 0) if torch.rand(()) < 0.5 else x), y


def standardized_if_many(items: list[Any]) -> Any:
    """Standardizes large batches alone."""
    return standardized(items) if len(items) > 40 else default_collate(items)


class MixesWithLast:
    """Mixes each batch with the mean of the last one."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, items: list[Any]) -> Any:
        x, y = default_collate(items)
        last, self.last = self.last, x.mean(0)
        return (x if last is None else 0.7 * x + 0.3 * last), y


LAST: torch.Tensor | None = None


def mixed_with_global(items: list[Any]) -> Any:
    global LAST
    x, y = default_collate(items)
    last, LAST = LAST, x.mean(0)
    return (x if last is None else 0.7 * x + 0.3 * last), y


def mixed_with_default(items: list[Any], held: dict[str, torch.Tensor] = {}) -> Any:  # noqa: B006
    x, y = default_collate(items)
    mean = held.setdefault("mean", torch.zeros(WIDE))
    mean.mul_(0.5).add_(x.mean(0))
    return x - mean, y


def by_size(items: list[Any]) -> Any:
    """Sort a batch, as for packed sequences."""
    x, y = default_collate(items)
    order = x.norm(dim=1).argsort()
    return x[order], y[order]


def dropped_words(items: list[Any]) -> Any:
    """Draws as many random numbers as the batch has words."""
    x, y = padded(items)
    return x * (torch.rand(x.shape) < 0.9), y


class Net(nn.Module):
    """Averages over positions of texts, padding included unless it is masked."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.masked, self.embedding, self.out = masked, nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        if not self.masked:
            return self.out(h.mean(1))
        kept = (x > 0).unsqueeze(-1)
        return self.out((h * kept).sum(1) / kept.sum(1).clamp(min=1))


class Trained(PrivateModule):
    """A training on a data set and a collate function."""

    def __init__(
        self, data: Any, collate: Any = None, net: nn.Module | None = None, size: int = 12
    ) -> None:
        super().__init__(net or nn.Linear(WIDE, 3), dataset=data, batch_size=size)
        self.collate = collate

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, collate_fn=self.collate)


class AfterTransfer(Trained):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return x - x.mean(0), y


class ReadsOthers(Trained):
    """Mixes every record with one that is not in its batch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return super().training_step((0.8 * x + 0.2 * self.dataset.x[: len(x)], y), batch_idx)


class NotFinite(Trained):
    """Records that are not in the first batch are no numbers."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        x = self.dataset.x
        x[~(x[:, None] == batch[0]).all(-1).any(1)] = float("nan")


class BySize(Trained):
    batches = SizeBatches

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_sampler=self.batches(self.dataset))


class Streamed(Trained):
    def __init__(self, data: IterableDataset) -> None:
        super().__init__(data)
        self.poisson = self.make_poisson = False


class GhostTexts(Ghost):
    """Ghost clipping of padded texts."""

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, collate_fn=padded)


class LooksUp(Trained):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, y = batch
        return super().training_step((self.dataset.x[rows.long()], y), batch_idx)


def asked(module: pl.LightningModule) -> Answer:
    return plain_step.asked(module, "coupling", max_steps=1)["coupling"]


FAULTS: dict[str, tuple[Callable[[], Trained], str]] = {
    "padding": (lambda: Trained(Texts(), padded, Net(masked=False)), "padded at"),
    "statistics": (lambda: Trained(Held(), standardized), "standardized at"),
    "mixing": (lambda: Trained(Held(), cut_mix), "cut_mix at"),
    "mixing at times": (lambda: Trained(Held(), sometimes_mixed), "sometimes_mixed at"),
    "transfer": (lambda: AfterTransfer(Held()), "AfterTransfer.on_after_batch_transfer at"),
    "items": (lambda: Trained(Mixed()), "Mixed.__getitem__ at"),
    "a part of it": (lambda: Trained(Subset(Mixed(), range(50))), "Mixed.__getitem__ at"),
    "items of a batch": (lambda: Trained(BatchTransform()), "BatchTransform.__getitems__ at"),
    "other records": (lambda: ReadsOthers(Held()), "the step itself"),
    "many": (lambda: Trained(Held(), standardized_if_many, size=64), "standardized_if_many at"),
    "a running mean": (lambda: Trained(RunningMean()), "RunningMean.__getitem__ at"),
    "a running array": (lambda: Trained(RunningArray()), "RunningArray.__getitem__ at"),
    "the last batch": (lambda: Trained(Held(), MixesWithLast()), "MixesWithLast.__call__ at"),
    "a global": (lambda: Trained(Held(), mixed_with_global), "mixed_with_global at"),
    "a default": (lambda: Trained(Held(), mixed_with_default), "mixed_with_default at"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_place_where_records_meet_is_found(name):
    make, place = FAULTS[name]
    answer = asked(make())
    assert answer.findings
    assert answer.where.startswith(place)
    assert answer.where in answer.findings[0].name
    assert place.endswith("itself") or re.search(r"test_before_step\.py:\d+$", answer.where)


class Rereads(Trained):
    """Reads the clean view of its own records, by their numbers."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, rows = batch
        return super().training_step((x + self.dataset.x[rows.long()], y), batch_idx)


class WithNumber(Noisy):
    def __getitem__(self, key: int) -> Any:
        return *super().__getitem__(key), torch.tensor(key)


INNOCENT: dict[str, Callable[[], Trained]] = {
    "a counter": lambda: Trained(Counted()),
    "a lock": lambda: Trained(Locked()),
    "a file": lambda: Trained(LeastRecent(Path(tempfile.mkdtemp()))),
    "large batches": lambda: Trained(Noisy(), by_size, size=64),
    "tensors": lambda: Trained(TensorDataset(*numbers())),
    "a masked padding": lambda: Trained(Texts(), padded, Net(masked=True)),
    "augmentation": lambda: Trained(Noisy()),
    "a part with augmentation": lambda: Trained(Subset(Noisy(), range(1, 60))),
    "windows that do not overlap": lambda: Trained(Longer(4, 4)),
    "tokens of their own": lambda: Trained(Longer(4, 4, tokens=True)),
    "one window in three": lambda: Trained(Subset(Longer(3, 1), range(0, COUNT, 3))),
    "parts of any length": lambda: Trained(Ragged()),
    "a long table": lambda: Trained(Embedded()),
    "another order": lambda: Trained(Permuted()),
    "two data sets": lambda: Trained(ConcatDataset([Held(), Permuted()])),
    "a cache": lambda: Trained(Cached()),
    "numbers of records": lambda: LooksUp(Numbers()),
    "records read again": lambda: Rereads(WithNumber()),
    "a sorted batch": lambda: Trained(Noisy(), by_size),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_records_that_do_not_meet_are_innocent(name):
    answer = asked(INNOCENT[name]())
    assert answer.asked
    assert not answer.findings
    assert answer.before == answer.reason == ""
    assert answer.shared == 1


def test_records_that_are_no_numbers_are_no_records_of_other_batches():
    answer = asked(NotFinite(Held()))
    assert answer.asked
    assert not answer.findings


SHARED: dict[str, tuple[Callable[[], Dataset], int]] = {
    "a row and the next": (Window, 2),
    "windows": (lambda: Longer(4, 1), 4),
    "windows at a stride that is no part": (lambda: Longer(5, 3), 2),
    "tokens": (lambda: Longer(4, 1, tokens=True), 4),
    "a part of the windows": (lambda: Subset(Longer(6, 1), range(0, COUNT, 2)), 3),
    "a mean of all rows": (Centered, COUNT),
}


@pytest.mark.parametrize("name", SHARED)
def test_items_that_share_rows_are_counted(name):
    make, items = SHARED[name]
    answer = asked(Trained(make()))
    assert not answer.findings
    assert answer.shared == items


@pytest.mark.parametrize("name", ["items", "a part of it", "items of a batch", "other records"])
def test_of_many_records_the_rows_are_moved_at_once(monkeypatch, name):
    monkeypatch.setattr(before_step, "_MANY", 0)
    make, place = FAULTS[name]
    assert asked(make()).where.startswith(place)


@pytest.mark.parametrize("name", ["tensors", "a part with augmentation", "one window in three"])
def test_of_many_records_those_that_do_not_meet_are_innocent(monkeypatch, name):
    monkeypatch.setattr(before_step, "_MANY", 0)
    answer = asked(INNOCENT[name]())
    assert (answer.asked, answer.findings, answer.before, answer.shared) == (1, (), "", 1)
    assert answer.seconds > 0.0


def test_of_many_records_items_that_share_rows_are_counted(monkeypatch):
    monkeypatch.setattr(before_step, "_MANY", 0)
    assert asked(Trained(Window())).shared == 2


LARGE: dict[str, tuple[Callable[[], Trained], str]] = {
    "single rows": (lambda: Trained(Held()), "only 1,000 rows of other records"),
    "a window": (lambda: Trained(Window()), "an item reads several rows"),
    "a step": (lambda: ReadsOthers(Held()), "the step itself"),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("many", [0, 16])
def test_of_large_data_some_rows_are_moved_and_the_report_says_so(monkeypatch, name, many):
    monkeypatch.setattr(before_step, "_BYTES", 1000)
    monkeypatch.setattr(before_step, "_MANY", many)
    make, said = LARGE[name]
    answer = asked(make())
    assert bool(answer.findings) == (name == "a step")
    assert (answer.where or answer.before).startswith(said)


UNKNOWN: dict[str, tuple[Callable[[], Trained], str]] = {
    "no numbers": (lambda: Streamed(Stream()), "the data set has no record numbers"),
    "other bits": (lambda: Trained(Position()), "a record fetched twice"),
    "draws": (lambda: Trained(Texts(), dropped_words, Net(masked=True)), "how many random numbers"),
    "an error": (lambda: Trained(Once()), "fetching a record again raised KeyError"),
    "by content": (lambda: BySize(Held()), "how SizeBatches chooses the records of a batch"),
}


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`")
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_asked_is_said(name):
    make, why = UNKNOWN[name]
    answer = asked(make())
    assert answer.asked
    assert not answer.findings
    assert answer.before.startswith(why)


def test_a_fetched_data_set_and_the_training_stay_as_they_were():
    plain, examined = Noisy(), Noisy()
    weights = []
    for data, callbacks in ((plain, []), (examined, [Examination()])):
        torch.manual_seed(0)
        module = Trained(data)
        trainer_for(Path(), *callbacks, max_steps=4).fit(module)
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)
    assert plain.count == examined.count
    assert plain.own.random() == examined.own.random()


@pytest.mark.parametrize("kind", [Noisy, Cached, BatchTransform])
def test_so_they_do_without_a_fork(monkeypatch, kind):
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    data = kind()
    before = kind()
    answer = asked(Trained(data))
    assert bool(answer.findings) == (kind is BatchTransform)
    again = Trained(before)
    torch.manual_seed(0)
    trainer_for(Path(), max_steps=1).fit(again)
    assert torch.equal(data.x, before.x)
    assert getattr(data, "count", 0) == getattr(before, "count", 0)
    assert getattr(data, "made", {}).keys() == getattr(before, "made", {}).keys()


class Data(pl.LightningDataModule):
    """Augments in a transfer hook, from a generator of its own, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.own, self.count = Held(), torch.Generator().manual_seed(5), 0

    def train_dataloader(self) -> DataLoader:
        return DPDataLoader.from_data_loader(DataLoader(self.data, batch_size=12))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.count += 1
        x, y = batch
        return x + 0.1 * torch.randn(x.shape, generator=self.own), y


@pytest.mark.parametrize("forked", [True, False])
def test_a_data_module_stays_as_it_was(monkeypatch, forked):
    if not forked:
        monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    weights = []
    for callbacks in ([], [Examination()]):
        torch.manual_seed(0)
        module, data = Trained(Held()), Data()
        trainer_for(Path(), *callbacks, max_steps=3).fit(module, datamodule=data)
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
        assert data.count == 3
    assert torch.equal(*weights)


def test_with_ghost_clipping_the_release_decides():
    found = asked(GhostTexts(Net(masked=False), dataset=Texts(), max_grad_norm=0.05))
    assert found.where.startswith("padded at")
    assert found.findings[0].allowed == 1.0
    small = asked(GhostTexts(Net(masked=False), dataset=Texts(), max_grad_norm=100.0))
    assert small.before.startswith("records meet in padded at")


def test_the_first_line_and_the_verdict_say_it(tmp_path):
    torch.manual_seed(0)
    audit = PrivacyAudit(on_violation="warn", examinations=1, bounds=[])
    trainer_for(tmp_path, audit, max_steps=3).fit(Trained(Held(), standardized))
    assert audit.report.verdict.outcome == "VIOLATION"
    assert "records meet before the step" in audit.report.verdict.summary
    assert "test_before_step.py:" in audit.report.verdict.summary
    audit = PrivacyAudit(examinations=1, bounds=[])
    module = Trained(Texts(), dropped_words, Net(masked=True))
    trainer_for(tmp_path, audit, max_steps=3).fit(module)
    said = "what is before the step (how many random numbers are drawn depends on the records"
    assert said in describe_examined(audit.report.checks)


def trained_on(data: Dataset, collate: Any = None, **claim: Any) -> lightning_audit.AuditReport:
    """Train in a plain loop, with a claim, and return the report."""
    loader = DataLoader(data, batch_size=12, collate_fn=collate)
    training = made(seed=0, net=lambda: nn.Linear(WIDE, 3), loader=loader, lr=0.1)
    stated = {"claim": PrivacyClaim(delta=1e-5, **claim)} if claim else {}
    settings = {"on_violation": "warn", "examinations": 1, "bounds": [], **stated}
    with lightning_audit.attach(*training.training, **settings) as audit:
        mnist_form(training, epochs=2)
    return audit.report


def test_a_plain_loop_is_asked_as_well():
    assert "standardized at" in trained_on(Held(), standardized).verdict.summary


def test_rows_of_two_items_lack_a_pass_until_the_claim_states_them():
    (blocker,) = [b for b in trained_on(Window()).verdict.pass_blockers if "coupling" in b]
    assert "state PrivacyClaim(items_per_record=2)" in blocker


def test_a_claim_of_two_items_a_record_is_composed_for_both():
    report = trained_on(Window(), items_per_record=2)
    assert not [b for b in report.verdict.pass_blockers if "coupling" in b]
    assert report.epsilon_spent == pytest.approx(report.claimed_epsilon, rel=1e-9)
    phases = [Phase(*phase) for phase in report.history]
    assert report.epsilon_spent == pytest.approx(epsilon_of_history(phases, 1e-5, items=2))
    assert gate.contradictions(report) == []
    assert gate.contradiction_of_epsilon(report) == ""
    assert "with up to 2 items a record" in describe_epsilons(report)
    assert report.assumptions["epsilon_spent"][-1].sentence.endswith("2 items a record")


def test_an_epsilon_of_single_items_does_not_cover_records_of_two():
    report = trained_on(Window(), items_per_record=2, epsilon=5.0)
    one = epsilon_of_history([Phase(*phase) for phase in report.history], 1e-5)
    assert one < 5.0 < report.epsilon_spent
    assert report.verdict.root.finding == "accounting"
    assert "with up to 2 items a record" in report.verdict.summary


def test_a_record_that_is_in_the_data_set_twice_counts_as_two():
    twice = Subset(Held(), [*range(COUNT), *range(30)])
    assert trained_on(twice, items_per_record=1).verdict.root.finding == "ledger.records"
    assert trained_on(twice, items_per_record=2).verdict.outcome != "VIOLATION"


# --- A step is replayed from the state before it: what is done once is done again.


def calibrates(training: Made, batch: Any) -> None:
    """Sets the clipping norm by the first batch."""
    training.optimizer.max_grad_norm = float(batch[0].norm(dim=1).median())


@torch.no_grad()
def initializes(training: Made, batch: Any) -> None:
    next(training.model.parameters()).copy_(batch[0].mean(0))


def scales(training: Made, batch: Any) -> None:
    training.optimizer.param_groups[0]["lr"] = 0.05 / float(batch[0].std())


def counts(training: Made, batch: Any) -> None:
    """Nothing that depends on records."""
    training.optimizer.param_groups[0]["lr"] = 0.04


class First(PrivateModule):
    """Does something on its first batch alone."""

    def __init__(self, first: Callable[[Made, Any], None]) -> None:
        super().__init__(nn.Linear(8, 10), batch_size=12)
        self.first, self.done = first, False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if not self.done:
            self.first(Made(self.net, self.optimizers().optimizer, None), batch)
            self.done = True
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("first", "found"), [(calibrates, True), (initializes, True), (scales, True), (counts, False)]
)
def test_what_is_done_once_is_done_again(first, found):
    answers = plain_step.asked(First(first), trials=8)
    assert any(answer.findings for answer in answers.values()) == found


def released_in(form: Callable[..., None], *given: Any) -> str:
    """The status of what a plain loop releases."""
    data = DataLoader(random_data(96), batch_size=12)
    training = made(seed=0, net=lambda: nn.Linear(8, 10), loader=data)
    settings = {"on_violation": "warn", "examinations": 1, "bounds": []}
    with lightning_audit.attach(*training.training, **settings) as audit:
        form(training, *given)
    return status(audit.report, "replay.release")


@pytest.mark.parametrize(("first", "said"), [(initializes, "violated"), (counts, "ok")])
def test_in_a_plain_loop_as_well(first, said):
    assert released_in(once_form, first) == said


@pytest.mark.parametrize(("form", "said"), [(raw_steps_form, "violated"), (averaged_form, "ok")])
def test_what_follows_the_step_of_a_loop_is_replayed(form, said):
    assert released_in(form) == said
