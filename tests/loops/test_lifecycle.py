"""What a loop must not notice of its audit, and how an audit ends."""

import atexit
import copy
import io
import pickle
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plain_loops
import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from plain_loops import Made, made
from stages import staged
from torch.nn.modules import module as modules
from torch.utils.data import DataLoader
from trained import failing

import lightning_audit
from lightning_audit import AuditReport, ClaimUsedUp, InconclusiveAudit, PrivacyViolation, attach
from lightning_audit.canaries import Mislabeled
from lightning_audit.loops.events import _HOOKS, Listening, listeners
from lightning_audit.loops.training import Unattached
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.earlier_fits import forget_fits
from lightning_audit.run.reads import Reads
from lightning_audit.testing.faulty import HalfNoise

GIVEN: dict[str, Any] = {"claimed_epsilon": 50.0, "seed": 1, "examinations": 0}
_OWN = DataLoader.__iter__, DPTensorFastGradientClipping.backward


def step(training: Made, batch: Any) -> None:
    training.optimizer.zero_grad()
    plain_loops.loss_of(training, batch).backward()
    training.optimizer.step()


def nothing_is_left(training: Made, before: set[str]) -> bool:
    """Whether classes, optimizer and torch's global hooks are as they were."""
    inner = training.optimizer.original_optimizer
    hooks = (
        modules._global_forward_hooks,
        modules._global_forward_pre_hooks,
        inner._optimizer_step_pre_hooks,
        inner._optimizer_step_post_hooks,
    )
    classes = DataLoader.__iter__, DPTensorFastGradientClipping.backward
    return classes == _OWN and not any(hooks) and vars(training.optimizer).keys() == before


@pytest.mark.parametrize(
    ("end", "examinations"), [("close", "auto"), ("raised by the user", 0), ("violation", 0)]
)
def test_nothing_is_left_of_an_audit_that_has_ended(tmp_path, end, examinations):
    training = made(HalfNoise if end == "violation" else None)
    before = vars(training.optimizer).keys() | set()
    given = {**GIVEN, "examinations": examinations}
    audit = attach(*training.training, **given, report_dir=tmp_path)
    assert not nothing_is_left(training, before)
    if end == "violation":
        with pytest.raises(PrivacyViolation):
            plain_loops.mnist_form(training)
    else:
        plain_loops.mnist_form(training, epochs=1)
        audit.close(RuntimeError() if end == "raised by the user" else None)
    assert nothing_is_left(training, before)
    plain_loops.mnist_form(training, epochs=1)  # it trains on
    assert AuditReport.load(tmp_path / "report.json").verdict == audit.report.verdict


def test_an_exception_of_the_loop_is_the_users_and_the_report_says_so(tmp_path):
    training = made()

    def train() -> None:
        for number, batch in enumerate(training.loader):
            training.optimizer.zero_grad()
            plain_loops.loss_of(training, batch).backward()
            if number == 5:
                _ = 1 / 0
            training.optimizer.step()

    with pytest.raises(ZeroDivisionError), attach(*training.training, **GIVEN, report_dir=tmp_path):
        train()
    report = AuditReport.load(tmp_path / "report.json")
    assert (report.verdict.outcome, report.steps) == ("INCONCLUSIVE", 5)
    assert "the training broke off with ZeroDivisionError" in report.verdict.pass_blockers
    assert training.model.training


@pytest.fixture(scope="module")
def alone():
    """A training without an audit."""
    training = made()
    plain_loops.mnist_form(training)
    return training


@pytest.mark.parametrize("place", ["start_batch", "inject", "end_batch", "prepare", "end_epoch"])
def test_a_failure_of_the_audit_does_not_reach_the_loop(tmp_path, monkeypatch, alone, place):
    own, calls = getattr(AuditRun, place), []

    def failing(run: Any, *given: Any, **named: Any) -> Any:
        calls.append(place)
        if len(calls) == (1 if place == "end_epoch" else 5):
            raise RuntimeError("of the audit")
        return own(run, *given, **named)

    monkeypatch.setattr(AuditRun, place, failing)
    training = made()
    before = vars(training.optimizer).keys() | set()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training)
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    assert audit.report.verdict.pass_blockers[0].startswith("the audit failed: RuntimeError")
    assert nothing_is_left(training, before)
    for p, q in zip(training.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_a_failure_within_a_call_of_the_loops_is_named(tmp_path, monkeypatch, alone):
    monkeypatch.setattr(Reads, "_is_near", failing(KeyError()))
    training = made()
    before = vars(training.optimizer).keys() | set()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training)
    assert audit.report.verdict.summary.startswith("the audit failed: KeyError in run.reads.")
    assert nothing_is_left(training, before)
    for p, q in zip(training.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def hooks_of(model: torch.nn.Module) -> list[Any]:
    """All hooks on the parts of a module."""
    each = [
        (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        for part in model.modules()
    ]
    return [hook for hooks in each for hook in hooks]


def test_model_and_optimizer_can_be_copied_and_saved_while_audited(tmp_path):
    training = made()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training, epochs=1)
        copied = copy.deepcopy(training.model)
        assert not any(hook.__module__.startswith("lightning_audit") for hook in hooks_of(copied))
        pickle.dumps(training.model)
        pickle.dumps(training.optimizer)
        torch.save((training.model.state_dict(), training.optimizer.state_dict()), io.BytesIO())
        assert copy.deepcopy(SimpleNamespace(audit=audit)).audit is audit
        with pytest.raises(TypeError, match=r"save audit\.state_dict\(\) instead"):
            pickle.dumps(audit)
        plain_loops.mnist_form(training, epochs=1)
    assert audit.report.verdict.outcome == "PASS"


def test_a_second_audit_of_the_same_parameters_is_refused(tmp_path):
    training = made()
    first = attach(*training.training, **GIVEN, report_dir=tmp_path)
    with pytest.raises(UnauditableTraining, match=r"by the audit of .*test_lifecycle\.py:\d+"):
        attach(*training.training, **GIVEN, report_dir=tmp_path / "second")
    first.close()
    attach(*training.training, **GIVEN, report_dir=tmp_path / "third").close()


def test_audits_of_other_parameters_may_be_nested_and_interleaved(tmp_path):
    outer, inner = made(), made(seed=2)
    with (
        attach(*outer.training, **GIVEN, report_dir=tmp_path / "outer") as one,
        attach(*inner.training, **GIVEN, report_dir=tmp_path / "inner") as other,
    ):
        for _ in range(2):
            for batch, own in zip(outer.loader, inner.loader, strict=True):
                step(outer, batch)
                step(inner, own)
    assert {one.report.verdict.outcome, other.report.verdict.outcome} == {"PASS"}
    assert one.report.steps == other.report.steps == 64
    assert DataLoader.__iter__ is _OWN[0]


@pytest.mark.nightly
def test_audits_in_two_threads_do_not_disturb_each_other(tmp_path):
    outcomes = {}

    def work(seed: int) -> None:
        training = made(seed=seed)
        with attach(*training.training, **GIVEN, report_dir=tmp_path / str(seed)) as audit:
            plain_loops.mnist_form(training)
        outcomes[seed] = (audit.report.verdict.outcome, audit.report.steps)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {1: ("PASS", 64), 2: ("PASS", 64)}
    assert DataLoader.__iter__ is _OWN[0]


def test_batches_of_no_torch_loader_are_given_by_hand(tmp_path):
    training = made()
    with attach(*training.training[:2], **GIVEN, report_dir=tmp_path) as audit:
        for _ in range(2):
            for batch in audit.batches([*training.loader]):
                step(training, batch)
            audit.end_epoch()
    assert audit.report.steps == 64
    assert "sampling.not_poisson" in "; ".join(audit.report.verdict.pass_blockers)


def test_fp16_is_refused_in_the_first_forward_pass(tmp_path):
    training = made()
    before = vars(training.optimizer).keys() | set()
    attach(*training.training, **GIVEN, report_dir=tmp_path)
    batch = next(iter(training.loader))
    with (
        pytest.raises(UnauditableTraining, match=r"torch\.autocast\(dtype=torch\.bfloat16\)"),
        torch.autocast("cpu", dtype=torch.float16),
    ):
        plain_loops.loss_of(training, batch)
    assert nothing_is_left(training, before)


def test_an_audit_whose_names_are_deleted_unclosed_writes_its_report_at_exit(tmp_path, monkeypatch):
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(atexit, "unregister", lambda _: None)
    training = made()
    training.engine.accountant.step(noise_multiplier=7.0, sample_rate=1.0)  # a query, and no step
    attach(*training.training, **GIVEN, report_dir=tmp_path)
    plain_loops.mnist_form(training)
    del training
    (at_exit,) = registered
    at_exit()
    report = AuditReport.load(tmp_path / "report.json")
    assert (report.verdict.outcome, report.complete) == ("PASS", True)


@pytest.mark.parametrize("form", [plain_loops.mnist_form, plain_loops.bf16_form])
def test_a_training_goes_on_from_its_state(tmp_path, form):
    training = made()
    audit = attach(*training.training, **GIVEN, report_dir=tmp_path)
    form(training, epochs=1)
    buffer = io.BytesIO()
    accountant = training.engine.accountant.state_dict()
    torch.save((audit.state_dict(), training.model.state_dict(), accountant), buffer)
    audit.close(RuntimeError())  # the process is gone
    state, weights, accountant = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    again = made(seed=2)
    again.model.load_state_dict(weights)
    again.engine.accountant.load_state_dict(accountant)
    given = {**GIVEN, "report_dir": tmp_path, "state": state}
    with attach(*again.training, **given, precision=audit.report.run.precision) as audit:
        form(again, epochs=1)
    assert (audit.report.verdict.outcome, audit.report.steps) == ("PASS", 64)
    expected = "bf16-mixed" if form is plain_loops.bf16_form else "32-true"
    assert audit.report.run.precision == expected


@pytest.mark.parametrize(
    "before", staged(["PASS", "another process"], nightly=["averaged", "VIOLATION"])
)
def test_steps_before_the_audit_keep_a_pass_away_unless_this_process_saw_them(tmp_path, before):
    training = made(HalfNoise if before == "VIOLATION" else None)
    given = {**GIVEN, "report_dir": tmp_path, "on_violation": "warn"}
    with attach(*training.training, **given):
        plain_loops.mnist_form(training)
    if before == "another process":
        forget_fits()
    if before == "averaged":  # as the server of a federated learning does between rounds
        for p in training.model.parameters():
            p.data.mul_(0.99)
    training.optimizer.__class__ = DPOptimizer
    with attach(*training.training, **given) as audit:
        plain_loops.mnist_form(training)
    missing = [item for item in audit.report.pass_blockers if "state=" in item]
    assert audit.report.verdict.outcome == ("INCONCLUSIVE" if missing else "PASS")
    assert bool(missing) == (before not in ("PASS", "averaged"))
    if missing:
        assert missing[0].startswith("the accountant holds 64 steps from before this audit")


def test_a_new_optimizer_over_the_same_parameters_is_followed(tmp_path):
    training = made()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training, epochs=1)
        inner = torch.optim.SGD(training.model.parameters(), lr=0.02)
        optimizer = type(training.optimizer)(
            inner,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=training.optimizer.expected_batch_size,
        )
        optimizer.attach_step_hook(training.optimizer.step_hook)
        training.optimizer = optimizer
        audit.follow(optimizer=optimizer)
        plain_loops.mnist_form(training, epochs=1)
    assert (audit.report.verdict.outcome, audit.report.steps) == ("PASS", 64)


def test_a_plain_optimizer_is_refused_its_first_step(tmp_path):
    model = plain_loops.mlp()
    training = Made(model, torch.optim.SGD(model.parameters(), lr=0.1), plain_loops.plain_loader())
    before = [p.clone() for p in model.parameters()]
    audit = attach(*training.training, **GIVEN, report_dir=tmp_path)
    with pytest.raises(PrivacyViolation, match="no_dp"), audit:
        plain_loops.mnist_form(training)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_violation": "explode"}, "on_violation='explode'"),
        ({"claimed_epsilon": -1.0}, "claimed_epsilon=-1.0"),
        ({"examinations": -1}, "examinations=-1"),
        ({"epochs": 0.5}, "epochs=0.5 must be a whole number >= 1; these are whole passes"),
        ({"precision": "float32"}, "precision='float32' must be one of"),
        ({"root": "net"}, "root='net' must be a torch.nn.Module"),
        ({"step": 3}, "step=3 must be a function of a batch"),
        ({"state": [1]}, r"state=\[1\] must be that of Audit.state_dict"),
        ({"report_dir": 3}, "report_dir=3 must be the path of a directory"),
        ({"log_prefix": None}, "log_prefix=None must be text"),
        ({"allow": "sampling.poisson"}, "did you mean 'sampling.not_poisson'"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_attached(tmp_path, given, message):
    training = made()
    before = vars(training.optimizer).keys() | set()
    with pytest.raises(ValueError, match=message):
        attach(*training.training, **{**GIVEN, "report_dir": tmp_path, **given})
    assert nothing_is_left(training, before)
    assert not list(Path(tmp_path).iterdir())


def ahead(training: Made, epochs: int) -> None:
    """Fetch each batch before the last one is trained on."""
    for _ in range(epochs):
        batches = iter(training.loader)
        coming = next(batches, None)
        while coming is not None:
            batch, coming = coming, next(batches, None)
            step(training, batch)


def test_batches_that_are_fetched_ahead_are_trained_once_each(tmp_path):
    training = made()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        for _ in range(2):
            for batch in list(training.loader):
                step(training, batch)
            ahead(training, 1)
    assert (audit.report.verdict.outcome, audit.report.steps) == ("PASS", 128)


def test_a_pass_ends_with_the_batch_that_was_fetched_ahead(tmp_path):
    training = made()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        ahead(training, 3)
        audit.end_epoch()
        assert audit._loop.epoch == 3


def test_an_input_canary_is_refused_where_batches_are_fetched_ahead(tmp_path):
    training = made()
    canaries = [Mislabeled(amplitude=100.0)]
    with (
        pytest.raises(UnauditableTraining, match="before it trains on the last one"),
        attach(*training.training, **GIVEN, canaries=canaries, report_dir=tmp_path),
    ):
        ahead(training, 1)


def test_a_claim_ends_a_loop_under_autocast_before_the_step_that_exceeds_it(tmp_path):
    training = made()
    with (
        pytest.raises(ClaimUsedUp),
        attach(*training.training, **{**GIVEN, "claimed_epsilon": 1.5}, report_dir=tmp_path),
    ):
        plain_loops.bf16_form(training, epochs=6)


def test_an_optimizer_over_more_parameters_ends_the_audit_and_not_the_training(tmp_path):
    training = made()
    first, *rest = training.model.parameters()
    first.requires_grad_(False)

    def replace_optimizer(params: list[Any]) -> None:
        inner = torch.optim.SGD(params, lr=0.05)
        sigma, loader = training.optimizer.noise_multiplier, training.loader
        training.optimizer = DPOptimizer(
            inner, noise_multiplier=sigma, max_grad_norm=1.0, expected_batch_size=16
        )
        training.optimizer.attach_step_hook(
            training.engine.accountant.get_optimizer_hook_fn(loader.sample_rate)
        )

    replace_optimizer(rest)
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training, epochs=1)
        first.requires_grad_(True)
        replace_optimizer([first, *rest])
        audit.follow(optimizer=training.optimizer)
        before = first.detach().clone()
        plain_loops.mnist_form(training, epochs=1)
    assert not first.equal(before)  # it trains on
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    why = "; ".join(audit.report.verdict.pass_blockers)
    assert "cannot follow an optimizer over other parameters" in why


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("of the audit")


def test_an_audit_that_fails_when_it_is_attached_lets_the_loop_run(
    tmp_path, monkeypatch, caplog, alone
):
    training = made()
    monkeypatch.setattr("lightning_audit.loops.audit.LoopStep", fails)
    with attach(*training.training, 50.0, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training)
    assert "attach failed" in caplog.text
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    assert "audit failed" in AuditReport.load(tmp_path / "report.json").verdict.summary
    assert (audit.state_dict(), audit.should_stop, listeners()) == ({}, False, [])
    for one, other in zip(training.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(InconclusiveAudit):
        attach(*made().training, 50.0, report_dir=tmp_path, on_inconclusive="raise").close()


def test_an_audit_whose_arguments_cannot_be_read_lets_the_loop_run(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_audit.config._bounds", lambda bounds: {(): ()}[bounds])
    given = {"bounds": ("fdp_cp",), "on_inconclusive": "raise", "report_dir": tmp_path}
    audit = attach(*made().training, 50.0, **given)
    assert "KeyError in config" in audit.report.verdict.summary
    with pytest.raises(InconclusiveAudit):
        audit.close()


@pytest.mark.parametrize("name", ["transformers", "loops/rounds"])
def test_an_audit_that_could_not_begin_has_what_others_call_of_an_audit(name):
    source = (Path(lightning_audit.__file__).parent / f"{name}.py").read_text()
    called = set(re.findall(r"\baudit\.(\w+)\(", source))
    assert called >= {"close", "state_dict"}
    assert called <= {*dir(Unattached)}


@pytest.mark.parametrize(
    "part",
    [
        "run.audit_run.AuditRun.detach",
        "run.audit_run.AuditRun.state",
        "run.report_files.ReportFiles.release",
        "loops.audit.Audit._forget_batch",
    ],
)
def test_what_fails_while_an_audit_is_put_away_ends_no_loop(tmp_path, monkeypatch, part):
    training = made()
    with attach(*training.training, 50.0, report_dir=tmp_path, examinations=0) as audit:
        plain_loops.mnist_form(training, epochs=1)
        monkeypatch.setattr(f"lightning_audit.{part}", fails)
    assert audit.report.steps == 32
    assert listeners() == []


def test_a_listener_that_cannot_be_registered_leaves_no_hook(monkeypatch):
    monkeypatch.setattr(_HOOKS[1], "add", fails)
    with pytest.raises(RuntimeError):
        Listening(object())
    assert listeners() == []
