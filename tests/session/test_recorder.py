"""What is recorded and checked does not depend on how steps are grouped, nor on a stop between."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hand_written_support import CLAIM, HandWritten
from opacus import GradSampleModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_matrix import Ghost
from training_support import (
    ManualModule,
    PrivateModule,
    fit,
    mlp,
    random_data,
    status,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.checks.probes import LAGS, Witnesses
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import (
    DROPPED,
    INJECTED,
    NOT_PLANNED,
    Observation,
    ObservationStore,
    RecordHeader,
    read_observations,
    restore,
    snapshot,
)
from lightning_audit.run.optimizers import to_arrays, to_tensors
from lightning_audit.session.recorder import LostSteps, Recorder, ReleasedShares

# --- A record whose gradient is not a number is found, and told from a training that diverged.

ROWS = 8


def data(*lost: int, value: float = torch.nan) -> TensorDataset:
    """Sixty-four records; the features of some have one that is not finite."""
    made = random_data(64)
    made.tensors[0][list(lost), 0] = value
    return made


class InOrder(PrivateModule):
    """Batches of eight, in order, so that it is known which records are in a step."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=ROWS)


def without_place(report: AuditReport, within: str = "support") -> dict[str, object]:
    """The evidence, without the user's code that it points to."""
    evidence = dict(finite(report).evidence)
    assert f".training_step at tests/{within}/" in str(evidence.pop("where"))
    return evidence


def finite(report: AuditReport) -> Any:
    return next(check for check in report.checks if check.name == "finite")


def audit(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"seed": 1, "allow": ["sampling.not_poisson"], **kwargs})


# ------------------------------------------------------------------ found


@pytest.mark.parametrize(
    ("value", "precision"), [(torch.nan, "32-true"), (torch.inf, "bf16-mixed")]
)
def test_nan_record_is_found_at_its_step(tmp_path, value, precision):
    module = InOrder(dataset=data(11, 13, value=value))
    report = violation(tmp_path, module, audit(), max_steps=4, precision=precision)
    assert report.verdict.fault.startswith("a record that is not finite")
    assert "in step 2 the gradients of 2 of 8 records" in finite(report).message
    assert finite(report).evidence["lost_steps"] == 3  # the weights are lost with the second step


def test_canary_in_the_batch_is_not_counted(tmp_path):
    module = InOrder(dataset=data(*range(3, 16)))
    allowed = audit(canaries=[Mislabeled(loss=_loss, num_classes=10, sampling_rate=0.999)])
    report = violation(tmp_path, module, allowed, max_steps=2)
    assert finite(report).evidence["records"] == 5
    assert finite(report).evidence["rows"] == ROWS


def _loss(module: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1])


class Manual(ManualModule, InOrder):
    pass


class InParts(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for i, part in enumerate(zip(*(t.chunk(4) for t in batch), strict=True)):
            optimizer.optimizer.signal_skip_step(do_skip=i < 3)
            optimizer.zero_grad()
            self.manual_backward(InOrder.training_step(self, part, batch_idx))
            optimizer.step()


class GhostInOrder(Ghost):
    train_dataloader = InOrder.train_dataloader


class ByHand(HandWritten):
    """Hands over in two calls, and may drop what is not finite."""

    drops = False
    train_dataloader = InOrder.train_dataloader

    def sample_gradients(self, batch: Any) -> Any:
        x, y = batch
        parts = [super(ByHand, self).sample_gradients((x[i::2], y[i::2])) for i in range(2)]
        grads = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if self.drops:
            grads = {name: g.nan_to_num(0.0, 0.0, 0.0) for name, g in grads.items()}
        return grads


@pytest.mark.parametrize(
    ("kind", "lost", "steps", "lost_steps", "rows"),
    [
        (Manual, (2,), 1, 1, ROWS),
        (InParts, (1,), 1, 1, 3),  # in an early part of a batch
        (GhostInOrder, (9,), 2, 1, ROWS),
        (ByHand, (8, 11, 12), 3, 2, ROWS),
    ],
)
def test_every_way_to_train_is_looked_at(tmp_path, kind, lost, steps, lost_steps, rows):
    own = audit(claim=CLAIM) if kind is ByHand else audit()
    report = violation(tmp_path, kind(dataset=data(*lost)), own, max_steps=steps)
    found = without_place(report, "session" if kind is InParts else "support")
    expected = {"step": min(lost) // ROWS, "records": len(lost), "rows": rows}
    assert found == {"lost_steps": lost_steps, **expected}


def test_records_that_hand_written_code_drops_do_no_harm(tmp_path):
    module = ByHand(dataset=data(8, 11, 12))
    module.drops = True
    assert status(fit(tmp_path, module, audit(claim=CLAIM), max_steps=3), "finite") == "ok"


class TwoNets(InOrder):
    """Two nets with a private optimizer each; one of them sees what is not finite."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nn.ModuleDict({"one": mlp(), "two": mlp()}), **kwargs)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        made = []
        for name in self.net:
            self.net[name], optimizer, _ = self.engine.make_private(
                module=self.net[name],
                optimizer=torch.optim.SGD(self.net[name].parameters(), lr=0.05),
                data_loader=self.plain_loader(),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
            made.append(optimizer)
        return made

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        for optimizer, name in zip(self.optimizers(), self.net, strict=True):
            optimizer.zero_grad()
            scores = self.net[name](x if name == "two" else x.nan_to_num(0.0))
            self.manual_backward(functional.cross_entropy(scores, y))
            optimizer.step()


def test_one_of_two_optimizers_is_named(tmp_path):
    report = violation(tmp_path, TwoNets(dataset=data(2)), audit(), max_steps=2)
    found = [check for check in report.checks if check.name == "finite"]
    assert sorted(check.status for check in found) == ["ok", "violated"]
    assert "finite: optimizer 2 (`net.two" in report.verdict.summary


# ------------------------------------------------------------------ not called so


@pytest.mark.parametrize("canaries", [None, [Mislabeled(loss=_loss, num_classes=10)]])
def test_batch_that_is_lost_as_a_whole_tells_of_no_record(tmp_path, canaries):
    module = InOrder(dataset=data(*range(8, 64)))
    report = fit(tmp_path, module, audit(canaries=canaries), max_steps=4)
    assert finite(report).status == "not_run"
    assert finite(report).evidence == {"lost_steps": 3}
    assert report.verdict.outcome == "INCONCLUSIVE"


def test_training_that_diverges_is_not_said_to_tell_of_a_record(tmp_path):
    class Diverging(InOrder):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                for p in self.net.parameters():
                    p.data.fill_(torch.nan)

    report = fit(tmp_path, Diverging(dataset=data()), audit(), max_steps=4)
    assert finite(report).status == "not_run"
    assert finite(report).evidence == {"lost_steps": 2}


def test_healthy_training_is_not_looked_at(tmp_path, monkeypatch):
    looked: list[int] = []
    monkeypatch.setattr(LostSteps, "add", lambda *_: looked.append(1))
    assert status(fit(tmp_path, InOrder(dataset=data()), audit(), max_steps=4), "finite") == "ok"
    assert not looked


# ------------------------------------------------------------------ kept


class Resumable(InOrder):
    """Wrapped before Lightning loads a checkpoint: the names of the weights are the same."""

    def __init__(self) -> None:
        super().__init__(dataset=data(2))
        self.net = GradSampleModule(self.net)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for value in checkpoint["state_dict"].values():
            value.nan_to_num_(0.0)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_finding_is_kept_when_the_training_goes_on(tmp_path):
    trainer = trainer_for(tmp_path, audit(on_violation="warn"), max_steps=1)
    trainer.fit(Resumable())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = audit(on_violation="warn")
    trainer = trainer_for(tmp_path, again, max_steps=2)
    trainer.fit(Resumable(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.report.steps == 2
    assert finite(again.report).evidence["step"] == 0


def _rows(lost: int, rows: int) -> torch.Tensor:
    return torch.arange(rows) < lost


def test_processes_add_up_what_they_saw_of_a_step():
    ranks = [LostSteps(), LostSteps()]
    for step, shares in {3: (0, 0), 5: (4, 0), 7: (2, 1)}.items():
        for rank, lost in zip(ranks, shares, strict=True):
            rank.add(step, _rows(lost, 4))
    assert ranks[1].first == (7, 1, 4)  # of itself it knows no better
    told = [rank.numbers() for rank in ranks]
    for _ in range(2):  # what was told counts once
        for rank in ranks:
            rank.hear(told)
        assert [rank.first for rank in ranks] == [(5, 4, 8)] * 2
        told = [rank.numbers() for rank in ranks]
    again = LostSteps()
    again.load(ranks[0].state())
    assert (again.first, again.count) == (None, 3)  # no checkpoint holds numbers of samples


K = 3
WITNESSES = Witnesses({0: np.arange(12), 1: np.arange(5)})
HEADER = RecordHeader(("a", "b", "c"), ("weight", "bias"), WITNESSES.counts, LAGS)


def seen(count: int, *, sigma: float = 1.0, shift: float = 1.0, seed: int = 0) -> list[Observation]:
    """Steps of every kind: without canaries, dropped, lost, without noise, of two epochs."""
    rng, steps = np.random.default_rng(seed), []
    for t in range(count):
        coins = rng.integers(0, 2, K).astype(float)
        status = DROPPED if t % 41 == 40 else INJECTED if t % 3 else NOT_PLANNED
        witnesses = rng.standard_normal(17) * sigma
        if t % 67 == 66:
            witnesses[3] = np.nan
        readings = coins * shift + sigma * rng.standard_normal(K)
        steps.append(
            Observation(
                noise_multiplier=0.0 if t % 53 == 52 else sigma,
                max_grad_norm=0.5,
                scale=16.0,
                canaries=status,
                coins=coins if status == INJECTED else np.zeros(K),
                readings=readings if status == INJECTED else np.zeros(K),
                witnesses=witnesses,
                epoch=t // 60,
                sample_rate=np.nan if t % 2 else 0.1,
            )
        )
    return steps


def recorder(directory: Path | None = None, significance: float = 1e-3) -> Recorder:
    store = ObservationStore(directory, HEADER, "run") if directory else None
    return Recorder(HEADER, significance, WITNESSES, store)


def entries_of(made: Recorder, directory: Path) -> bytes:
    made.flush()
    made.store.close(archive=False)
    return read_observations(directory / RECORD_NAME)[1].tobytes()


def numbers(made: Recorder) -> str:
    """Every number of the checks, sums included."""
    return repr(snapshot(made.monitor))


@pytest.mark.parametrize(("block", "prompt"), [(10, 100), (7, 0), (1000, 5), (1, 0)])
def test_entries_and_checks_do_not_depend_on_the_grouping(tmp_path, block, prompt, monkeypatch):
    steps, at_once = seen(150), recorder(tmp_path / "at once")
    for step in steps:
        at_once.take(step)
        at_once.digest()
    monkeypatch.setattr(Recorder, "BLOCK", block)
    monkeypatch.setattr(Recorder, "PROMPT", prompt)
    grouped = recorder(tmp_path / "grouped")
    for t, step in enumerate(steps):
        grouped.take(step)
        assert grouped.steps == t + 1
        if t in (11, 12, 77):
            assert grouped.monitor.steps == t + 1  # asking for the checks feeds what waits
    grouped.digest()
    assert numbers(grouped) == numbers(at_once)
    assert entries_of(grouped, tmp_path / "grouped") == entries_of(at_once, tmp_path / "at once")
    assert read_observations(tmp_path / "grouped" / RECORD_NAME)[1]["step"].tolist() == list(
        range(150)
    )


def test_steps_wait_after_the_first_for_a_full_block(monkeypatch):
    monkeypatch.setattr(Recorder, "BLOCK", 10)
    monkeypatch.setattr(Recorder, "PROMPT", 4)
    made, fed = recorder(), []
    for step in seen(25):
        made.take(step)
        fed.append(made._monitor.steps)
    assert fed == [1, 2, 3, 4, 4, 4, 4, 4, 4, *[10] * 10, *[20] * 6]


def dead_at(count: int, live: list[float], **more: Any) -> Observation:
    """A step without noise at every second of its probe coordinates."""
    mask, k = np.arange(count) % 2 == 0, len(live)
    return Observation(
        **{
            "canaries": INJECTED,
            "noise_multiplier": 3.0,
            "coins": np.ones(k),
            "readings": np.full(k, 2.0),
            "witnesses": np.full(count, 7.0),
            "dead_witnesses": mask,
            "dead_canary": True,
            "live": np.array(live),
            **more,
        }
    )


def test_what_was_not_released_reads_as_the_claimed_noise(monkeypatch):
    made, seen = recorder(), dead_at(17, [1.0, 0.25, 0.0])
    read: list[np.ndarray] = []
    fed: list[Observation] = []
    monkeypatch.setattr(made._monitor, "update", fed.append)
    monkeypatch.setattr(made._reducer, "reduce", lambda witnesses, *_: read.append(witnesses) or {})
    for _ in range(400):
        made.take(seen)
    made.digest()
    witnesses, readings = np.concatenate(read), np.concatenate([block.readings for block in fed])
    dead = seen.dead_witnesses
    assert (witnesses[:, ~dead] == 7.0).all()
    assert witnesses[:, dead].std() == pytest.approx(3.0, rel=0.1)
    # A canary is read along the part that was released.
    assert readings[0, :2].tolist() == [2.0, 4.0]
    assert np.std(readings[:, 2]) == pytest.approx(3.0, rel=0.2)


def test_zeros_count_as_released_until_an_inserted_canary_was_zero(monkeypatch):
    made, fed = recorder(), list[np.ndarray]()
    monkeypatch.setattr(made._reducer, "reduce", lambda witnesses, *_: fed.extend(witnesses) or {})
    for canaries, whole in ((INJECTED, False), (NOT_PLANNED, False), (NOT_PLANNED, True)):
        zeros = {"canaries": canaries, "dead_canary": False, "dead_tensors": whole}
        made.take(dead_at(17, [1.0, 0.25, 0.0], **zeros))
    made.digest()
    assert [witnesses[0] == 7.0 for witnesses in fed] == [True, True, False]


def test_shares_are_those_of_all_steps():
    shares = ReleasedShares((2, 2), 2)
    assert shares.canaries.tolist() == [1.0, 1.0]
    shares.update(None, np.zeros(2))
    shares.update(np.array([True, True, False, False]), np.array([0.0, 0.5]))
    assert (shares.canaries.tolist(), shares.tensors.tolist()) == ([0.5, 0.75], [0.5, 1.0])
    assert restore(snapshot(shares)).tensors.tolist() == [0.5, 1.0]


def striking(kind: str) -> Observation:
    usual = seen(2)[1]
    changes: dict[str, Any] = {
        "too large": {"readings": usual.coins + np.array([0.0, 11.1, 0.0])},
        "too small": {"readings": usual.coins - np.array([0.0, 0.0, 11.1])},
        "lost": {"readings": np.full(K, np.nan)},
        "replaced": {"replaced": True},
        "large": {"readings": usual.coins + np.array([0.0, 10.9, 0.0])},
    }
    return replace(usual, **changes[kind])


@pytest.mark.parametrize("kind", ["too large", "too small", "lost", "replaced", "large"])
def test_what_no_correct_step_gives_comes_first(kind, monkeypatch):
    monkeypatch.setattr(Recorder, "PROMPT", 0)
    made = recorder()
    for step in seen(13):
        made.take(step)
    assert made._monitor.steps == 10
    made.take(striking(kind))
    assert made._monitor.steps == (10 if kind == "large" else 14)


def test_broken_clipping_is_known_at_the_step_showing_it(monkeypatch):
    monkeypatch.setattr(Recorder, "PROMPT", 0)
    made, prompt = recorder(), recorder()
    flags = []
    for step in seen(40, shift=500.0):
        for each in (made, prompt):
            each.take(step)
        prompt.digest()
        assert made.clipping_is_broken == prompt.monitor.clipping_is_broken
        flags.append(made.clipping_is_broken)
    assert flags.index(True) < 30


def test_asking_for_checks_changes_nothing_for_canaries(monkeypatch):
    monkeypatch.setattr(Recorder, "PROMPT", 0)
    monkeypatch.setattr(Recorder, "BLOCK", 50)
    flags = []
    for ask in (False, True):
        made, now = recorder(), []
        for step in seen(60, shift=6.0):  # flagged soon, by readings that are no ten sigma off
            made.take(step)
            if ask:
                assert made.monitor.steps == made.steps
            now.append(made.clipping_is_broken)
        assert made.monitor.clipping_is_broken
        flags.append(now)
    assert flags[0] == flags[1]
    assert flags[0].index(True) == 49


def torch_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(to_tensors(state), file)
    file.seek(0)
    loaded: dict[str, Any] = to_arrays(torch.load(file, weights_only=True))
    return loaded


@pytest.mark.parametrize("stop", [0, 33, 127])
def test_a_resumed_run_is_one_without_a_stop(tmp_path, stop):
    steps, whole = seen(150), recorder(tmp_path / "whole")
    first = recorder(tmp_path / "parts")
    for step in steps:
        whole.take(step)
    for step in steps[:stop]:
        first.take(step)
    state = torch_round_trip(first.state())
    first.take(striking("too large"))  # a step after the checkpoint, undone by the stop
    first.flush()
    first.store.close(archive=False)
    store = ObservationStore.resume(tmp_path / "parts", HEADER, "run", stop)
    assert store is not None
    second = Recorder(HEADER, 1e-3, WITNESSES, store)
    second.resume(state)
    assert second.steps == stop
    for step in steps[stop:]:
        second.take(step)
    assert numbers(second) == numbers(whole)
    assert second.clipping_is_broken == whole.clipping_is_broken
    assert entries_of(second, tmp_path / "parts") == entries_of(whole, tmp_path / "whole")


def test_a_state_is_a_copy_that_later_steps_leave_alone():
    made, steps = recorder(), seen(30)
    for step in steps[:20]:
        made.take(step)
    state = made.state()
    before = repr(state)
    for step in steps[20:]:
        made.take(step)
    assert repr(state) == before
    again = recorder()
    again.resume(state)
    for step in steps[20:]:
        again.take(step)
    assert repr(state) == before
    assert numbers(again) == numbers(made)


def test_a_run_that_goes_on_has_the_significance_that_is_asked_for_now():
    made = recorder(significance=1e-3)
    for step in seen(10):
        made.take(step)
    again = recorder(significance=0.05)
    again.resume(made.state())
    assert again.monitor.significance == 0.05


def test_a_state_of_another_version_is_an_error():
    state = recorder().state()
    state["reducer"]["object"] = "lightning_audit.checks.probes:Gone"
    with pytest.raises(ValueError, match="resume with the version that wrote it"):
        recorder().resume(state)
