"""Plain loops in the forms of public code, audited by two lines."""

import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from plain_loops import CLAIM, EPOCHS, STEPS, Made, made
from pytorch_lightning.loggers import TensorBoardLogger
from stages import staged

from lightning_audit import Allow, AuditReport, ClaimUsedUp, PrivacyViolation, attach
from lightning_audit.testing.faulty import ClipAfterAverage, HalfNoise

Form = Callable[[Made], None]


def audited(
    directory: Path, training: Made, form: Form, **given: Any
) -> tuple[AuditReport, BaseException | None]:
    """Train under an audit; the report on disk, and the verdict's exception."""
    raised: BaseException | None = None
    arguments = {"claimed_epsilon": 50.0, "seed": 1, "examinations": "auto", **given}
    try:
        with attach(*training.training, report_dir=directory, **arguments) as audit:
            form(training)
    except (PrivacyViolation, ClaimUsedUp) as error:
        raised = error
    report = AuditReport.load(directory / "report.json")
    known = audit.report if raised is None else raised.report
    assert report.verdict == known.verdict
    return report, raised


PASSING: dict[str, tuple[Any, ...]] = {
    "Opacus' first example": (plain_loops.mnist_form,),
    "memory manager": (plain_loops.memory_form,),
    "next(it)": (plain_loops.next_form,),
    "early break": (plain_loops.early_break_form,),
    "accuracy on the training loader": (plain_loops.train_accuracy_form,),
    "closure": (plain_loops.closure_form,),
    "make_private_with_epsilon, wrap_model=False": (
        plain_loops.mnist_form,
        lambda: made(target=20.0, wrap_model=False),
        None,
    ),
    "ghost clipping": (plain_loops.ghost_form, lambda: made(grad_sample_mode="ghost")),
    "hand-written": (plain_loops.hand_written_form, plain_loops.by_hand, None, CLAIM),
    "two optimizers": (plain_loops.two_form, plain_loops.two_made, None),
    "bf16 by autocast": (plain_loops.bf16_form,),
    "chunks of a batch": (plain_loops.micro_form,),
    "a trainer class with callbacks": (plain_loops.learner_form,),
    "logged and evaluated": (plain_loops.watched_form,),
    "workers": (
        plain_loops.mnist_form,
        lambda: made(loader=plain_loops.plain_loader(num_workers=2)),
    ),
}


def passing(
    folder: Path,
    form: Form,
    make: Callable[[], Made] = made,
    claimed: float | None = 50.0,
    claim: Any = None,
) -> tuple[AuditReport, BaseException | None]:
    return audited(folder, make(), form, claimed_epsilon=claimed, claim=claim)


#: Questions that such a step does not answer, in Lightning neither.
_WHOLE = {"replay.sensitivity", "replay.release"}
_ROWS = {"replay.noise", "replay.clipping"}
NOT_ASKED = {
    "ghost clipping": {*_ROWS, "coupling"},
    "chunks of a batch": _ROWS,
    "two optimizers": {*_WHOLE, *_ROWS, "coupling"},
}


#: One of a kind for each change.
EACH_CHANGE = (
    *("Opacus' first example", "memory manager", "next(it)", "closure", "ghost clipping"),
    *("make_private_with_epsilon, wrap_model=False", "hand-written", "two optimizers"),
    *("chunks of a batch", "a trainer class with callbacks", "workers"),
)


@pytest.mark.parametrize(
    "name", staged(EACH_CHANGE, nightly=[name for name in PASSING if name not in EACH_CHANGE])
)
def test_correct_training_passes_with_all_questions_asked(tmp_path, name):
    report, raised = passing(tmp_path, *PASSING[name])
    assert (report.verdict.outcome, raised) == ("PASS", None), report.verdict
    replays = [c for c in report.checks if c.name.startswith("replay.") or c.name == "coupling"]
    assert {c.name for c in replays if c.status == "not_run"} == NOT_ASKED.get(name, set())


class HalfGhost:
    """Half the noise of ghost clipping, by a function that is put on the optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.own = optimizer, optimizer.add_noise

    def __call__(self) -> None:
        self.optimizer.noise_multiplier = 0.5
        self.own()
        self.optimizer.noise_multiplier = 1.0


def half(**more: Any) -> Made:
    return made(HalfNoise, **more)


FAULTY: dict[str, tuple[Form, Callable[[], Made], str]] = {
    "half the noise": (plain_loops.mnist_form, half, "noise scale too small"),
    "clipping after averaging": (
        plain_loops.mnist_form,
        lambda: made(ClipAfterAverage),
        "clipping after averaging",
    ),
    "half the noise, memory manager": (plain_loops.memory_form, half, "noise scale too small"),
    "half the noise by hand": (
        plain_loops.half_hand_written_form,
        plain_loops.by_hand,
        "noise scale too small",
    ),
    "records change each other": (plain_loops.coupled_form, made, "records are not independent"),
    "rate by the last loss": (plain_loops.rate_by_last_loss_form, made, "more than the release"),
    "running mean of inputs": (plain_loops.running_mean_form, made, "more than the release"),
    "a step named log": (plain_loops.step_in_log_form, made, "more than the release"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_raised_in_the_loop_at_the_first_step(tmp_path, name):
    form, make, fault = FAULTY[name]
    training = make()
    given = {} if training.engine else {"claimed_epsilon": None, "claim": CLAIM}
    report, raised = audited(tmp_path, training, form, **given)
    assert isinstance(raised, PrivacyViolation)
    assert (report.steps, report.complete) == (1, True)
    assert report.verdict.fault.startswith(fault)


def test_what_a_step_shows_is_raised_by_the_users_own_step(tmp_path):
    _, raised = audited(tmp_path, half(), plain_loops.mnist_form, examinations=0)
    frames = traceback.extract_tb(raised.__traceback__)
    (*_, users) = [one for one in frames if one.filename == plain_loops.__file__]
    assert "optimizer.step()" in users.line
    assert [one for one in frames if "/lightning_audit/" in one.filename] == []


def test_half_the_noise_of_ghost_clipping_is_found(tmp_path):
    training = made(grad_sample_mode="ghost")
    training.optimizer.add_noise = HalfGhost(training.optimizer)
    report, raised = audited(tmp_path, training, plain_loops.ghost_form, examinations=0)
    assert isinstance(raised, PrivacyViolation)
    assert report.steps < 20
    assert report.verdict.fault.startswith("noise scale too small")


@pytest.mark.parametrize("response", ["warn", "stop"])
def test_a_loop_can_look_whether_it_should_stop(tmp_path, response):
    training = made(HalfNoise)
    audit = attach(
        *training.training, 50.0, on_violation=response, examinations=0, report_dir=tmp_path
    )
    assert not audit.should_stop
    for batch in training.loader:
        plain_loops.loss_of(training, batch).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        if audit.should_stop:
            break
    report = audit.close()
    assert report.steps < 20
    assert report.verdict.outcome == "VIOLATION"
    assert report.ended.reason == ("violation" if response == "stop" else "planned")


def test_shuffled_batches_are_known_before_the_first_step(tmp_path):
    training = made(poisson_sampling=False)
    report, raised = audited(tmp_path, training, plain_loops.mnist_form)
    assert isinstance(raised, PrivacyViolation)
    assert (report.steps, report.verdict.root.finding) == (0, "sampling.not_poisson")
    assert any("test_attach.py" in place.file for place in report.verdict.root.place.code)


def test_accumulated_batches_under_a_poisson_accountant_are_named(tmp_path):
    training = made(poisson_sampling=False)
    form = plain_loops.accumulation_form
    report, _ = audited(tmp_path, training, form, on_violation="warn", examinations=0)
    assert report.verdict.root.finding == "sampling.not_poisson"
    assert report.steps == STEPS // 2


def test_virtual_steps_that_merge_two_batches_cannot_pass(tmp_path):
    report, _ = audited(tmp_path, made(), plain_loops.virtual_form)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "sample rate" in "; ".join(report.verdict.pass_blockers)


def test_the_step_that_would_exceed_the_claim_is_not_taken(tmp_path):
    training = made()
    report, raised = audited(
        tmp_path / "more", training, plain_loops.mnist_form, claimed_epsilon=1.5, examinations=0
    )
    assert isinstance(raised, ClaimUsedUp)
    assert 0 < report.steps < STEPS
    assert report.epsilon_spent <= 1.5
    recorded = sum(steps for *_, steps in training.engine.accountant.history)
    assert recorded == report.steps  # the accountant saw no step more
    assert report.ended.reason == "budget"

    again = made()  # a loop that ends at its claim is no used-up claim

    def exactly(training: Made) -> None:
        it = iter(training.loader)
        for _ in range(report.steps):
            training.optimizer.zero_grad()
            plain_loops.loss_of(training, next(it)).backward()
            training.optimizer.step()

    ended, raised = audited(tmp_path / "own", again, exactly, claimed_epsilon=1.5)
    assert raised is None
    assert (ended.steps, ended.ended.reason) == (report.steps, "planned")


def test_should_stop_keeps_a_loop_within_its_claim(tmp_path):
    training = made()
    given = {"claimed_epsilon": 1.5, "on_budget": "stop", "examinations": 0}
    with attach(*training.training, report_dir=tmp_path, **given) as audit:
        while not audit.should_stop:
            for batch in training.loader:
                training.optimizer.zero_grad()
                plain_loops.loss_of(training, batch).backward()
                training.optimizer.step()
                if audit.should_stop:
                    break
    assert audit.report.epsilon_spent <= 1.5
    assert audit.report.ended.reason == "budget"


def test_planned_epochs_above_the_claim_are_told_before(tmp_path, caplog):
    audit = attach(*made().training, 1.5, epochs=9, examinations=0, report_dir=tmp_path)
    audit.close()
    assert "the 288 planned steps cost more than claimed_epsilon=1.5" in caplog.text


@pytest.mark.parametrize(
    ("form", "given"),
    [(plain_loops.scaled_form, {}), (plain_loops.mnist_form, {"loader": None})],
    ids=["a generator changes the batch", "no loader"],
)
def test_a_body_that_cannot_be_run_again_leaves_the_audit_inconclusive(tmp_path, form, given):
    training = made()
    known = training if not given else Made(training.model, training.optimizer, None)
    arguments = {"claimed_epsilon": 50.0, "seed": 1, "report_dir": tmp_path}
    with attach(*known.training, **arguments) as audit:
        form(training)
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    missing = "; ".join(audit.report.verdict.pass_blockers)
    assert "cannot be run again" in missing
    assert "; pass step=" in missing
    assert ("plain_loops.py:" in missing) == (not given)
    assert ("whether the loop's own code draws Poisson batches" in missing) == bool(given)


def test_without_examinations_a_loop_of_functions_passes_and_says_so(tmp_path):
    report, _ = audited(tmp_path, made(), plain_loops.functions_form, examinations=0)
    assert report.verdict.outcome == "PASS"
    assert "examinations=0" in report.verdict.summary


@pytest.mark.parametrize("way", ["step=", "audit.step"])
def test_a_step_function_is_the_sure_way(tmp_path, way):
    training, calls = made(), []

    def step(batch: Any) -> float:
        training.optimizer.zero_grad()
        loss = plain_loops.loss_of(training, batch)
        loss.backward()
        training.optimizer.step()
        calls.append(len(batch[1]))
        return loss.item()

    given = {"step": step} if way == "step=" else {}
    with attach(*training.training, 50.0, seed=1, report_dir=tmp_path, **given) as audit:
        for _ in range(EPOCHS):
            for pair in zip(training.loader, range(1000), strict=False):
                losses = step(pair[0]) if given else audit.step(step, pair[0])
                assert losses > 0.0
    assert audit.report.verdict.outcome == "PASS"
    assert len(calls) == audit.report.steps == STEPS  # replays left no trace


def test_gan_with_a_private_discriminator_passes(tmp_path):
    training, generator, own = plain_loops.gan_made()
    training.engine = (generator, own)
    both = torch.nn.ModuleDict({"critic": training.model, "generator": generator})
    exempt = Allow("no_dp", optimizer="Adam", reason="it sees no record")
    with attach(
        training.model,
        [training.optimizer, own],
        training.loader,
        50.0,
        root=both,
        allow=[exempt],
        seed=1,
        report_dir=tmp_path,
    ) as audit:
        plain_loops.gan_form(training)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict


def fakes_first(training: plain_loops.Made, rows: torch.Tensor, *, again: bool) -> None:
    """As Opacus' dcgan.py: the discriminator steps on fakes, and then on the batch."""
    for x, y in training.loader:
        fakes = torch.zeros(len(rows), dtype=torch.long)
        for batch in ((x, y) if again else (rows, fakes), (x, y)):
            training.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(training.model(batch[0]), batch[1]).backward()
            training.optimizer.step()


@pytest.mark.parametrize("again", [False, True], ids=["fakes", "the batch again"])
def test_a_step_on_rows_of_no_record_is_none_on_a_batch_that_had_made_a_step(tmp_path, again):
    training, rows = made(), torch.randn(plain_loops.BATCH, 8)
    own = {"seed": 1, "report_dir": tmp_path, "examinations": 0, "on_violation": "warn"}
    with attach(*training.training, 50.0, **own) as audit:
        fakes_first(training, rows, again=again)
    steps = {check.name: check for check in audit.report.checks}["ledger.steps"]
    assert steps.status == ("violated" if again else "ok")
    assert audit.report.verdict.outcome == ("VIOLATION" if again else "INCONCLUSIVE")


def moved(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((p - q).abs().max() / q.abs().max()) for p, q in pairs)


@pytest.mark.parametrize(
    ("form", "make"),
    staged(
        [
            (plain_loops.mnist_form, made),
            (plain_loops.ghost_form, lambda **more: made(grad_sample_mode="ghost", **more)),
        ],
        nightly=[(plain_loops.memory_form, made)],
    ),
    ids=["plain", "ghost", "memory manager"],
)
def test_the_model_is_what_it_is_without_the_audit(tmp_path, form, make):
    alone = make(dtype=torch.float64)
    form(alone)
    training = make(dtype=torch.float64)
    report, _ = audited(tmp_path, training, form)
    assert report.verdict.outcome == "PASS"
    assert moved(training.model, alone.model) < 1e-6


@pytest.mark.whole_report
def test_a_logger_of_lightning_gets_metrics_and_the_figure(tmp_path):
    training, logged = made(), []
    board = TensorBoardLogger(tmp_path, name="board")
    given = {"log": [board, logged.append], "examinations": 0}
    with attach(*training.training, 50.0, report_dir=tmp_path / "audit", **given):
        plain_loops.mnist_form(training)
    assert (tmp_path / "audit" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "board").rglob("events*"))
    assert len(logged) == EPOCHS


def test_each_epoch_sends_a_row_and_a_logger_that_fails_is_a_note(tmp_path, monkeypatch):
    # As if each computation took long: none is due before the end.
    monkeypatch.setattr("lightning_audit.run.audit_run.EPOCH_SHARE", 0.0)

    def fails(metrics: dict[str, float]) -> None:
        raise ConnectionError("no network")

    training, rows = made(), []
    given = {"log": [fails, rows.append], "examinations": 0, "log_prefix": "dp"}
    with attach(*training.training, 50.0, report_dir=tmp_path, **given) as audit:
        plain_loops.mnist_form(training, epochs=3)
    assert audit.report.verdict.outcome == "PASS"
    assert [row["dp/step"] for row in rows] == [32.0, 64.0, 96.0]
    assert ["dp/epsilon_lower" in row for row in rows] == [False, False, True]
    assert audit.metrics == rows[-1]
    assert math.isfinite(audit.metrics["dp/epsilon_lower"])


@pytest.mark.whole_report
def test_the_page_shows_the_call_of_attach_and_the_line_of_the_step(tmp_path):
    training = made(HalfNoise)
    training.optimizer.__class__ = type("Own", (HalfNoise,), {"__module__": "own"})
    report, _ = audited(tmp_path, training, plain_loops.mnist_form, examinations=0)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "attach( model, optimizer, loader, claimed_epsilon=50.0" in " ".join(page.split())
    assert report.run.strategy == "plain loop"
    assert report.run.name == "Sequential"
    (place,) = (each for each in report.verdict.root.place.code if "plain_loops" in each.file)
    assert place.source == "optimizer.step()"


@pytest.mark.parametrize("enabled", [True, False])
def test_a_gradient_scaler_is_named_if_it_scales(tmp_path, enabled):
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)

    def form(training: Made) -> None:
        for batch in training.loader:
            training.optimizer.zero_grad()
            scaler.scale(plain_loops.loss_of(training, batch)).backward()
            scaler.step(training.optimizer)
            scaler.update()

    own = torch.amp.GradScaler.step
    report, raised = audited(tmp_path, made(), form, examinations=0)
    assert raised is None
    assert any(note.startswith("a gradient scaler") for note in report.notes) is enabled
    assert torch.amp.GradScaler.step is own


def test_swapped_arguments_are_refused_by_name_at_the_call(tmp_path):
    training = made()
    with pytest.raises(ValueError, match=r"^optimizer=<.*DPDataLoader.*must be an optimizer"):
        attach(training.model, training.loader, training.optimizer, 50.0, report_dir=tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "optimizer"}, r"^model=.* must be a torch.nn.Module: attach\(model, opt"),
        ({"loader": 8.0}, r"^loader=8.0 must be what the training iterates, the loader of make_"),
        ({"loader": "data"}, r"^loader=<.*TensorDataset.* must be what the training iterates"),
        ({"log": "wandb"}, r"^log='wandb' must be a function of metrics, such as wandb.log,"),
        (
            {"model": torch.nn.Linear(2, 2)},
            r"^model=Linear\(.* must be what the optimizer trains: a",
        ),
    ],
)
def test_what_is_no_part_of_this_training_is_refused_at_the_call(tmp_path, given, said):
    training = made()
    parts = {"optimizer": training.optimizer, "data": training.loader.dataset}
    given = {
        name: parts.get(one, one) if isinstance(one, str) else one for name, one in given.items()
    }
    arguments = dict(zip(("model", "optimizer", "loader"), training.training, strict=True))
    with pytest.raises(ValueError, match=said):
        attach(**{**arguments, **given}, report_dir=tmp_path)
    assert not any(tmp_path.iterdir())
