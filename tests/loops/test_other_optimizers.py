"""Optimizers that `attach` was not given and that step in the loop; ghost mode without its loss."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from plain_loops import BATCH, EPOCHS, Made, loss_of, made, plain_loader
from torch import nn
from torch.nn import functional
from training_support import random_data

from lightning_audit import Allow, AuditReport, PrivacyViolation, attach

Adam, SGD = torch.optim.Adam, torch.optim.SGD
#: Public records.
PUBLIC = random_data(BATCH, seed=9).tensors


def audited(directory: Any, training: Made, loop: Callable[[], None], **given: Any) -> AuditReport:
    """Train under an audit without replays, which would find some of the faults by other ways."""
    arguments = {"claimed_epsilon": 50.0, "seed": 1, "examinations": 0, **given}
    try:
        with attach(*training.training, report_dir=directory, **arguments) as audit:
            loop()
    except PrivacyViolation as error:
        return error.report
    assert audit.report is not None
    return audit.report


def batches(training: Made, epochs: int = EPOCHS) -> Iterator[Any]:
    for _ in range(epochs):
        yield from training.loader


def private_step(training: Made, batch: Any) -> None:
    training.optimizer.zero_grad()
    loss_of(training, batch).backward()
    training.optimizer.step()


def public_step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(PUBLIC[0]), PUBLIC[1]).backward()
    optimizer.step()


# ------------------------------------------------------------------ what is found


def encoder(training: Made) -> None:
    """Only the decoder is private, and each of its inputs depends on the encoder's weights."""
    net = nn.Linear(8, 8)
    own = Adam(net.parameters())
    for x, y in batches(training):
        training.optimizer.zero_grad()
        own.zero_grad()
        functional.cross_entropy(training.model(net(x)), y).backward()
        own.step()  # another
        training.optimizer.step()


def head(training: Made) -> None:
    """A head follows the private module, whose gradients pass through it."""
    last = nn.Linear(10, 10)
    own = Adam(last.parameters())
    for x, y in batches(training):
        training.optimizer.zero_grad()
        own.zero_grad()
        functional.cross_entropy(last(training.model(x)), y).backward()
        training.optimizer.step()
        own.step()  # another


def generator(training: Made) -> None:
    """As Opacus' dcgan.py with the two lines of the README: only the discriminator is given."""
    net = nn.Linear(4, 8)
    own = Adam(net.parameters())
    for x, y in batches(training):
        fake = net(torch.randn(len(x), 4))
        training.optimizer.zero_grad()
        loss = loss_of(training, (x, y)) + training.model(fake.detach()).mean()
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.model(fake).mean().backward()
        own.step()  # another


def raw_beside(training: Made) -> None:
    """A second optimizer steps on the raw gradients of the private parameters."""
    own = Adam(training.model.parameters())
    for batch in batches(training):
        training.optimizer.zero_grad()
        loss_of(training, batch).backward()
        own.step()  # another
        training.optimizer.step()


def public_between(training: Made) -> None:
    """Public records, whose gradients no release covers, train the private parameters too."""
    own = Adam(training.model.parameters())
    for batch in batches(training):
        private_step(training, batch)
        training.model.disable_hooks()
        own.zero_grad()
        functional.cross_entropy(training.model(PUBLIC[0]), PUBLIC[1]).backward()
        own.step()  # another
        training.model.enable_hooks()


def raw_afterwards(training: Made) -> None:
    """The model is tuned on raw records after the private training."""
    for batch in batches(training):
        private_step(training, batch)
    own, public = Adam(training.model.parameters()), training.model
    training.optimizer.zero_grad()
    public.disable_hooks()
    for x, y in plain_loader():
        own.zero_grad()
        functional.cross_entropy(public(x), y).backward()
        own.step()  # another


@pytest.mark.parametrize(
    "loop", [encoder, head, generator, raw_beside, public_between, raw_afterwards]
)
def test_optimizer_that_was_not_given_is_named_with_its_line(tmp_path, loop):
    training = made()
    report = audited(tmp_path, training, lambda: loop(training))
    assert report.verdict.faults[0].name == "no_dp"
    assert report.steps == (64 if loop is raw_afterwards else 1)
    (found,) = [check for check in report.checks if check.name == "no_dp"]
    assert found.message.startswith("Adam took ")
    assert report.verdict.root.place.code[0].source.endswith("own.step()  # another")


def test_the_encoder_of_a_ghost_training_is_named(tmp_path):
    training, net = made(grad_sample_mode="ghost"), nn.Linear(8, 8)
    own = Adam(net.parameters())

    def loop() -> None:
        for x, y in batches(training):
            own.zero_grad()
            training.criterion(training.model(net(x)), y).backward()
            own.step()
            training.optimizer.step()

    assert audited(tmp_path, training, loop).verdict.faults[0].name == "no_dp"


def test_another_part_of_the_module_is_named_unless_it_is_allowed(tmp_path):
    def train(name: str, **given: Any) -> AuditReport:
        training = made()
        root = nn.ModuleDict({"private": training.model, "bias": nn.Linear(1, 1)})
        own = SGD(root["bias"].parameters(), lr=0.1)

        def loop() -> None:
            for batch in batches(training):
                private_step(training, batch)
                own.zero_grad()
                root["bias"](torch.ones(1)).sum().backward()
                own.step()

        return audited(tmp_path / name, training, loop, root=root, **given)

    assert train("named").verdict.faults[0].name == "no_dp"
    allowed = Allow("unaudited", parameters="bias.*", reason="it counts steps")
    assert train("allowed", allow=[allowed]).verdict.outcome == "PASS"


def from_before(training: Made) -> None:
    """The loop trains the objects from before `make_private` (opacus #313)."""
    net, raw = training.model._module, training.optimizer.original_optimizer
    for x, y in batches(training):
        raw.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        raw.step()


def public_inside(training: Made) -> None:
    """Public steps by what the private optimizer wraps."""
    for batch in batches(training):
        private_step(training, batch)
        training.optimizer.zero_grad()
        functional.cross_entropy(training.model(PUBLIC[0]), PUBLIC[1]).backward()
        training.optimizer.original_optimizer.step()


@pytest.mark.parametrize(("loop", "steps"), [(from_before, 1), (public_inside, 2)])
def test_step_of_the_wrapped_optimizer_alone_is_named(tmp_path, loop, steps):
    training = made()
    report = audited(tmp_path, training, lambda: loop(training))
    assert (report.verdict.faults[0].name, report.steps) == ("no_dp", steps)
    assert any(place.source.endswith(".step()") for place in report.verdict.root.place.code)


# ------------------------------------------------------------------ what passes


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, in the form of public code."""

    def __init__(self, inner: Any, every: int = 5) -> None:
        self.inner, self.count, self.every = inner, 0, every
        self.param_groups, self.defaults, self.state = inner.param_groups, {}, inner.state
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self._patch_step_function()
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def step(self, closure: Any = None) -> None:
        self.inner.step(closure)
        self.count += 1
        if self.count % self.every:
            return
        params = [p for g in self.param_groups for p in g["params"]]
        with torch.no_grad():
            for slow, p in zip(self.slow, params, strict=True):
                p.copy_(slow.add_(p - slow, alpha=0.5))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad()


def lookahead(training: Made) -> None:
    outer = Made(training.model, Lookahead(training.optimizer), training.loader)
    for batch in batches(training):
        private_step(outer, batch)


def around_parts(training: Made) -> None:
    """A wrapper steps at each physical batch, and most of its steps only clip and sum."""
    outer = Lookahead(training.optimizer, every=10_000)
    for _ in range(EPOCHS):
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=6, optimizer=training.optimizer
        ) as parts:
            for batch in parts:
                private_step(Made(training.model, outer, None), batch)


def probe(training: Made) -> None:
    """A probe learns from what the private model returns, and gives it no gradient."""
    net = nn.Linear(10, 10)
    own = Adam(net.parameters())
    for batch in batches(training):
        private_step(training, batch)
        with torch.no_grad():
            seen = training.model(batch[0])
        own.zero_grad()
        functional.cross_entropy(net(seen), batch[1]).backward()
        own.step()


def adversarial(training: Made) -> None:
    """Each record's input is changed by an optimizer before it is trained on."""
    for x, y in batches(training):
        delta = torch.zeros_like(x, requires_grad=True)
        own = SGD([delta], lr=0.1)
        training.model.disable_hooks()
        loss = functional.cross_entropy(training.model(x + delta), y, reduction="sum")
        (-loss).backward()
        own.step()
        training.model.enable_hooks()
        private_step(training, (x + delta.detach(), y))


def on_releases(training: Made) -> None:
    """A second optimizer steps on what the private one releases."""
    own = Adam(training.model.parameters(), lr=1e-4)
    for batch in batches(training):
        private_step(training, batch)
        own.step()


def other_folds(training: Made) -> None:
    """A second private training, without an audit of its own, in the same loop."""
    other = made(seed=2)
    for batch, second in zip(batches(training), batches(other), strict=False):
        private_step(training, batch)
        private_step(other, second)


@pytest.mark.parametrize("loop", [lookahead, around_parts, probe, adversarial, other_folds])
def test_other_optimizers_of_a_correct_loop_cost_no_pass(tmp_path, loop):
    training = made()
    report = audited(tmp_path, training, lambda: loop(training))
    assert (report.verdict.outcome, report.steps) == ("PASS", 64), report.verdict


def test_a_second_step_on_the_release_is_not_accused(tmp_path):
    training = made()
    report = audited(tmp_path, training, lambda: on_releases(training))
    (found,) = [check for check in report.checks if check.name == "no_dp"]
    assert (found.status, report.steps) == ("ok", 64)


def test_two_audits_do_not_accuse_each_other(tmp_path):
    one, two = made(), made(seed=2)
    second = attach(*two.training, 50.0, seed=2, examinations=0, report_dir=tmp_path / "two")

    def loop() -> None:
        for batch, other in zip(batches(one), batches(two), strict=False):
            private_step(one, batch)
            private_step(two, other)

    report = audited(tmp_path / "one", one, loop)
    assert (report.verdict.outcome, second.close().verdict.outcome) == ("PASS", "PASS")


@pytest.mark.parametrize("peek", [False, True])
def test_public_pretraining_before_the_first_private_step_is_not_accused(tmp_path, peek):
    training = made()
    net = training.model._module

    def loop() -> None:
        if peek:
            next(iter(training.loader))
        own = SGD(net.parameters(), lr=0.01)
        training.model.disable_hooks()
        for _ in range(5):
            public_step(net, own)
        training.model.enable_hooks()
        training.optimizer.zero_grad()
        for batch in batches(training, 1):
            private_step(training, batch)

    report = audited(tmp_path, training, loop)
    assert report.verdict.outcome != "VIOLATION", report.verdict
    (found,) = [check for check in report.checks if check.name == "no_dp"]
    assert found.status == "ok"


def test_an_optimizer_that_was_given_can_be_exempt(tmp_path):
    training = made()
    own = SGD(training.model.parameters(), lr=0.01)
    both = Made(training.model, [training.optimizer, own], training.loader)

    def loop() -> None:
        for batch in batches(training):
            private_step(training, batch)
            training.optimizer.zero_grad()
            training.model.disable_hooks()
            public_step(training.model, own)
            training.model.enable_hooks()

    exempt = Allow("no_dp", optimizer=1, reason="it trains on public records")
    report = audited(tmp_path, both, loop, allow=[exempt])
    (found,) = [check for check in report.checks if check.name == "no_dp"]
    assert (found.status, report.steps) == ("ok", 64)
    assert "64 of SGD" in found.message


def test_nothing_is_held_once_the_audit_has_ended(tmp_path):
    training = made()
    audit = attach(*training.training, 50.0, examinations=0, report_dir=tmp_path)
    private_step(training, next(iter(training.loader)))
    assert audit._graphs
    audit.close(KeyboardInterrupt())
    assert not audit._graphs


# ------------------------------------------------------------------ ghost mode without its loss


def ghost_made(**more: Any) -> Made:
    return made(grad_sample_mode="ghost", **more)


def stepping(training: Made, backward: Callable[..., None], epochs: int = EPOCHS) -> None:
    for x, y in batches(training, epochs):
        backward(training, x, y)
        training.optimizer.step()


def clipped(training: Made, x: Any, y: Any) -> None:
    training.optimizer.zero_grad()
    training.criterion(training.model(x), y).backward()


def of_the_model(training: Made, x: Any, y: Any) -> None:
    """The model's own loss, as Hugging Face's ``outputs.loss``."""
    training.optimizer.zero_grad()
    functional.cross_entropy(training.model(x), y).backward()


def by_autograd(training: Made, x: Any, y: Any) -> None:
    torch.autograd.backward(functional.cross_entropy(training.model(x), y))


def its_mean(training: Made, x: Any, y: Any) -> None:
    """The criterion is called, and the mean of its losses runs backward."""
    training.optimizer.zero_grad()
    training.criterion(training.model(x), y).loss_per_sample.mean().backward()


def and_another(training: Made, x: Any, y: Any) -> None:
    """An auxiliary loss of the records follows the one that clips."""
    clipped(training, x, y)
    (0.1 * training.model(x).square().mean()).backward()


@pytest.mark.parametrize("backward", [of_the_model, by_autograd, its_mean, and_another])
def test_ghost_clipping_of_another_loss_is_named_at_the_first_step(tmp_path, backward):
    training = ghost_made()
    report = audited(tmp_path, training, lambda: stepping(training, backward))
    assert report.verdict.faults[0].name == "ghost_clipping_without_its_loss"
    assert report.steps == 1
    assert "criterion(output, target)" in report.verdict.root.look_at


def test_another_loss_of_physical_batches_is_named(tmp_path):
    training = ghost_made()

    def loop() -> None:
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=6, optimizer=training.optimizer
        ) as parts:
            for x, y in parts:
                of_the_model(training, x, y)
                training.optimizer.step()

    report = audited(tmp_path, training, loop)
    assert report.verdict.faults[0].name == "ghost_clipping_without_its_loss"
    assert report.steps <= 1


def test_another_loss_in_a_later_step_is_named(tmp_path):
    training, number = ghost_made(), itertools.count()

    def at_times(*given: Any) -> None:
        (of_the_model if next(number) == 20 else clipped)(*given)

    report = audited(tmp_path, training, lambda: stepping(training, at_times))
    assert report.verdict.faults[0].name == "ghost_clipping_without_its_loss"
    assert report.steps == 21


def never_cleared(training: Made, x: Any, y: Any) -> None:
    """Opacus' loss clears the gradients itself."""
    training.criterion(training.model(x), y).backward()


def after_another(training: Made, x: Any, y: Any) -> None:
    """The gradient of another loss is cleared before the second pass of Opacus' loss."""
    of_the_model(training, x, y)
    training.criterion(training.model(x), y).backward()


def with_saliency(training: Made, x: Any, y: Any) -> None:
    """Gradients of the inputs alone."""
    clipped(training, x, y)
    x = x.clone().requires_grad_()
    torch.autograd.grad(training.model(x).sum(), x)


def with_penalty(training: Made, x: Any, y: Any) -> None:
    """A loss of the weights alone, which no record enters."""
    clipped(training, x, y)
    (1e-4 * sum(p.square().sum() for p in training.model.parameters())).backward()


@pytest.mark.parametrize("backward", [never_cleared, after_another, with_saliency, with_penalty])
def test_correct_ghost_clipping_keeps_its_pass(tmp_path, backward):
    training = ghost_made()
    report = audited(tmp_path, training, lambda: stepping(training, backward))
    assert report.verdict.outcome == "PASS", report.verdict


@pytest.mark.parametrize(("step", "found"), [(clipped, False), (of_the_model, True)])
def test_ghost_clipping_without_a_wrapped_module(tmp_path, step, found):
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    _, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=net,
        optimizer=SGD(net.parameters(), lr=0.05),
        data_loader=plain_loader(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode="ghost",
        wrap_model=False,
    )
    training = Made(net, optimizer, loader, criterion=criterion)
    report = audited(tmp_path, training, lambda: stepping(training, step, 1))
    assert (report.verdict.outcome == "VIOLATION") == found, report.verdict
