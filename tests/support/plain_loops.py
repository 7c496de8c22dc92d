"""Loops in the forms of public code; none of them knows of an audit.

Each takes what `made` returns and a number of epochs, and trains.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from training_support import mlp, random_data, replace_optimizer

from lightning_audit import PrivacyClaim, per_sample, released

BATCH, RECORDS = 16, 512
PROCESS = os.getpid()
#: Two epochs: enough for a PASS.
EPOCHS, STEPS = 2, 64
CLAIM = PrivacyClaim(
    epsilon=50.0,
    delta=1e-5,
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    expected_batch_size=BATCH,
    sample_rate=BATCH / RECORDS,
)


@dataclass
class Made:
    """What `make_private` returned, its engine, and the criterion of ghost clipping."""

    model: Any
    optimizer: Any
    loader: Any
    engine: Any = None
    criterion: Any = None

    @property
    def training(self) -> tuple[Any, Any, Any]:
        """The first arguments of `attach`."""
        return self.model, self.optimizer, self.loader


def plain_loader(**more: Any) -> DataLoader:
    return DataLoader(random_data(RECORDS), BATCH, **more)


def made(
    kind: type[DPOptimizer] | None = None,
    *,
    seed: int = 1,
    net: Callable[[], nn.Module] = mlp,
    dtype: torch.dtype = torch.float32,
    target: float | None = None,
    loader: DataLoader | None = None,
    lr: float = 0.05,
    **more: Any,
) -> Made:
    """Call `make_private`, or with ``target`` `make_private_with_epsilon`."""
    torch.manual_seed(seed)
    model = net().to(dtype)
    data = plain_loader() if loader is None else loader
    if dtype is not torch.float32:
        data.dataset.tensors = (data.dataset.tensors[0].to(dtype), data.dataset.tensors[1])
    engine = PrivacyEngine(accountant="rdp")  # the quickest to compute
    given = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "data_loader": data,
        "max_grad_norm": 1.0,
        **more,
    }
    if target is None:
        got = engine.make_private(noise_multiplier=1.0, **given)
    else:
        got = engine.make_private_with_epsilon(
            target_epsilon=target, target_delta=1e-5, epochs=10, **given
        )
    private, optimizer, *criterion, loader = got
    if kind is not None:
        optimizer = replace_optimizer(optimizer, kind)
    wrapped = more.get("wrap_model", True)
    return Made(private if wrapped else model, optimizer, loader, engine, *criterion)


def by_hand(seed: int = 1) -> Made:
    """What hand-written DP-SGD has: a plain optimizer, and a Poisson loader."""
    torch.manual_seed(seed)
    model = mlp()
    loader = DPDataLoader.from_data_loader(plain_loader())
    return Made(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)


def loss_of(training: Made, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(training.model(batch[0]), batch[1])


def mnist_form(training: Made, epochs: int = EPOCHS) -> None:
    """As in Opacus' first example: tqdm, a list of losses, epsilon printed now and then."""
    model, optimizer, criterion = training.model, training.optimizer, nn.CrossEntropyLoss()
    for epoch in range(1, epochs + 1):
        model.train()
        losses = []
        for _batch_idx, (data, target) in enumerate(tqdm(training.loader, disable=True)):
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epsilon = training.engine.get_epsilon(delta=1e-5) if training.engine else 0.0
        print(f"Train Epoch: {epoch} Loss: {sum(losses) / len(losses):.6f} (eps = {epsilon:.2f})")


def once_form(training: Made, first: Callable[[Any, Any], None]) -> None:
    """One pass that does something on its first batch alone."""
    done = False
    for batch in training.loader:
        if not done:
            first(training, batch)
            done = True
        training.optimizer.zero_grad()
        loss_of(training, batch).backward()
        training.optimizer.step()


def rate_by_last_loss_form(training: Made, epochs: int = EPOCHS) -> None:
    """The rate of a step is decided by the raw loss of the last batch, a name of the loop."""
    last = 1.0
    for _ in range(epochs):
        for batch in training.loader:
            for group in training.optimizer.param_groups:
                group["lr"] = 0.05 / (1.0 + last)
            training.optimizer.zero_grad()
            loss = loss_of(training, batch)
            loss.backward()
            training.optimizer.step()
            last = loss.item()


def running_mean_form(training: Made, epochs: int = EPOCHS) -> None:
    """Observations are centered by a running mean, a name of the loop."""
    mean = torch.zeros(1)
    for _ in range(epochs):
        for x, y in training.loader:
            training.optimizer.zero_grad()
            loss_of(training, (x - mean, y)).backward()
            training.optimizer.step()
            mean = 0.9 * mean + 0.1 * x.mean(0)


def step_in_log_form(training: Made, epochs: int = EPOCHS) -> None:
    """What is named `log` moves a bias by the raw residuals of the batch."""

    def log(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            last = list(training.model.parameters())[-1]
            off = training.model(x).softmax(1) - functional.one_hot(y, len(last))
            last.data -= 0.05 * off.mean(0)

    for _ in range(epochs):
        for x, y in training.loader:
            training.optimizer.zero_grad()
            loss_of(training, (x, y)).backward()
            training.optimizer.step()
            log(x, y)


def watched_form(training: Made, epochs: int = EPOCHS) -> None:
    """Each step is logged by TensorBoard and to a file, and evaluated now and then."""
    with tempfile.TemporaryDirectory() as folder:
        writer, number = SummaryWriter(folder), 0
        for _ in range(epochs):
            for batch in tqdm(training.loader, disable=True):
                training.optimizer.zero_grad()
                loss = loss_of(training, batch)
                loss.backward()
                training.optimizer.step()
                writer.add_scalar("loss", loss.item(), number)
                with open(Path(folder) / "losses.csv", "a") as file:
                    file.write(f"{loss.item()}\n")
                if number % 20 == 0:
                    training.model.eval()
                    with torch.no_grad():
                        loss_of(training, training.loader.dataset[:256])
                    training.model.train()
                number += 1
        writer.close()


def memory_form(training: Made, epochs: int = EPOCHS) -> None:
    """As in the CIFAR tutorial: `BatchMemoryManager` around each epoch."""
    model, optimizer, criterion = training.model, training.optimizer, nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        losses, top1 = [], []
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=6, optimizer=optimizer
        ) as memory_safe_data_loader:
            for i, (images, target) in enumerate(memory_safe_data_loader):
                optimizer.zero_grad()
                output = model(images)
                loss = criterion(output, target)
                preds = output.detach().argmax(1)
                losses.append(loss.item())
                top1.append(float((preds == target).float().mean()))
                loss.backward()
                optimizer.step()
                if (i + 1) % 200 == 0:
                    print(sum(losses) / len(losses))


def next_form(training: Made, epochs: int = EPOCHS) -> None:
    """A number of steps, with an iterator that is made again when it ends."""
    training.model.train()
    it = iter(training.loader)
    for _ in range(epochs * len(training.loader)):
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(training.loader)
            x, y = next(it)
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(training.model(x), y)
        loss.backward()
        training.optimizer.step()


def early_break_form(training: Made, epochs: int = EPOCHS) -> None:
    training.model.train()
    for _ in range(epochs * 2):
        for i, (x, y) in enumerate(training.loader):
            if i == len(training.loader) // 2:
                break
            training.optimizer.zero_grad()
            functional.cross_entropy(training.model(x), y).backward()
            training.optimizer.step()


def train_accuracy_form(training: Made, epochs: int = EPOCHS) -> None:
    """Evaluates on the training loader itself after each epoch."""
    for _ in range(epochs):
        training.model.train()
        for x, y in training.loader:
            training.optimizer.zero_grad()
            functional.cross_entropy(training.model(x), y).backward()
            training.optimizer.step()
        training.model.eval()
        with torch.no_grad():
            print(sum(int((training.model(x).argmax(1) == y).sum()) for x, y in training.loader))


def coupled_form(training: Made, epochs: int = EPOCHS) -> None:
    """A fault: inputs are standardized over the batch, so that records change each other."""
    training.model.train()
    for _ in range(epochs):
        for x, y in training.loader:
            x = (x - x.mean(0)) / (x.std(0) + 0.1)
            training.optimizer.zero_grad()
            functional.cross_entropy(training.model(x), y).backward()
            training.optimizer.step()


def closure_form(training: Made, epochs: int = EPOCHS) -> None:
    training.model.train()
    for _ in range(epochs):
        for x, y in training.loader:

            def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                training.optimizer.zero_grad()
                loss = functional.cross_entropy(training.model(x), y)
                loss.backward()
                return loss

            training.optimizer.step(closure)


def virtual_form(training: Made, epochs: int = EPOCHS) -> None:
    """Virtual steps: every second batch only clips and sums."""
    training.model.train()
    for _ in range(epochs):
        for i, batch in enumerate(training.loader):
            training.optimizer.signal_skip_step(do_skip=(i + 1) % 2 != 0)
            loss_of(training, batch).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()


def accumulation_form(training: Made, epochs: int = EPOCHS) -> None:
    """Two backward passes, then one step (``poisson_sampling=False``, or Opacus refuses it)."""
    training.model.train()
    for _ in range(epochs):
        for i, batch in enumerate(training.loader):
            loss_of(training, batch).backward()
            if i % 2:
                training.optimizer.step()
                training.optimizer.zero_grad()


def ghost_form(training: Made, epochs: int = EPOCHS) -> None:
    training.model.train()
    for _ in range(epochs):
        for x, y in training.loader:
            training.optimizer.zero_grad()
            loss = training.criterion(training.model(x), y)
            loss.backward()
            training.optimizer.step()


def bf16_form(training: Made, epochs: int = EPOCHS) -> None:
    training.model.train()
    for _ in range(epochs):
        for batch in training.loader:
            training.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(training, batch)
            loss.backward()
            training.optimizer.step()


def hand_written_form(training: Made, epochs: int = EPOCHS, sigma: float = 1.0) -> None:
    """Per-sample gradients by torch.func; the marked lines are those of docs/hand-written.md."""
    model = training.model

    def loss_of(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    model.train()
    for _ in range(epochs):
        for x, y in training.loader:
            params = {name: p.detach() for name, p in model.named_parameters()}
            grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
            grads = per_sample(grads, module=model)  # marked
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
            noisy = {}
            for name, g in grads.items():
                total = torch.einsum("n,n...->...", factors, g)
                noisy[name] = (total + sigma * torch.randn_like(total)) / BATCH
            noisy = released(noisy, module=model)  # marked
            for name, p in model.named_parameters():
                p.grad = noisy[name]
            training.optimizer.step()
            training.optimizer.zero_grad()


def half_hand_written_form(training: Made, epochs: int = EPOCHS) -> None:
    hand_written_form(training, epochs, sigma=0.5)


def two_made() -> Made:
    """Two nets, each with a private optimizer, and one loader."""
    torch.manual_seed(1)
    engine, nets, optimizers, data = PrivacyEngine(), [], [], plain_loader()
    for net in (mlp(), mlp()):
        private, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
            data_loader=data,
            noise_multiplier=1.5,
            max_grad_norm=1.0,
        )
        nets.append(private)
        optimizers.append(optimizer)
    return Made(nn.ModuleList(nets), optimizers, loader, engine)


def two_form(training: Made, epochs: int = EPOCHS) -> None:
    training.model.train()
    for _ in range(epochs):
        for x, y in training.loader:
            for net, optimizer in zip(training.model, training.optimizer, strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(net(x), y).backward()
                optimizer.step()


# ------------------------------------------------------------------ ten more, by fresh eyes


class Learner:
    """As fastai: callbacks around a batch, which is an attribute."""

    def __init__(self, training: Made, callbacks: list[Any]) -> None:
        self.model, self.opt, self.dl = training.training
        self.callbacks = callbacks

    def __call__(self, name: str) -> None:
        for callback in self.callbacks:
            getattr(callback, name, lambda _: None)(self)

    def one_batch(self, xb: torch.Tensor, yb: torch.Tensor) -> None:
        self.xb, self.yb = xb, yb
        self("before_batch")
        self.preds = self.model(self.xb)
        self.loss = functional.cross_entropy(self.preds, self.yb)
        self.loss.backward()
        self("before_step")
        self.opt.step()
        self.opt.zero_grad()
        self("after_batch")

    def fit(self, epochs: int) -> None:
        for _ in range(epochs):
            self.model.train()
            for xb, yb in self.dl:
                self.one_batch(xb, yb)
            self("after_epoch")


class Recorder:
    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_batch(self, learner: Learner) -> None:
        self.losses.append(learner.loss.item())


def learner_form(training: Made, epochs: int = EPOCHS) -> None:
    Learner(training, [Recorder()]).fit(epochs)


def functions_form(training: Made, epochs: int = EPOCHS) -> None:
    """As JAX users write: pure functions of a state."""

    def forward(state: dict[str, Any], batch: Any) -> torch.Tensor:
        return functional.cross_entropy(state["apply"](batch[0]), batch[1])

    def update(state: dict[str, Any], batch: Any) -> dict[str, Any]:
        state["optimizer"].zero_grad()
        loss = forward(state, batch)
        loss.backward()
        state["optimizer"].step()
        return {**state, "loss": loss.item(), "steps": state["steps"] + 1}

    state = {"apply": training.model, "optimizer": training.optimizer, "steps": 0}
    for batch in itertools.islice(cycle(training.loader), epochs * len(training.loader)):
        state = update(state, batch)


def scaled_form(training: Made, epochs: int = EPOCHS) -> None:
    """A generator divides the batch by its own deviation, out of sight of the loop's body."""

    def scaled() -> Iterator[Any]:
        for x, y in training.loader:
            yield x / (x.std() + 1.0) if len(x) > 1 else x, y

    for _ in range(epochs):
        for batch in scaled():
            training.optimizer.zero_grad()
            loss_of(training, batch).backward()
            training.optimizer.step()


def cycle(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def micro_form(training: Made, epochs: int = EPOCHS) -> None:
    """Gradient accumulation by hand: a batch in chunks, which Opacus is told of."""
    training.model.train()
    for _ in range(epochs):
        for x, y in training.loader:
            parts = list(zip(x.chunk(2), y.chunk(2), strict=True)) or [(x, y)]
            for i, part in enumerate(parts):
                training.optimizer.signal_skip_step(do_skip=i + 1 < len(parts))
                training.optimizer.zero_grad()
                loss_of(training, part).backward()
                training.optimizer.step()


def gan_made() -> tuple[Made, nn.Module, torch.optim.Optimizer]:
    """A private discriminator, and a generator that sees no record."""
    training = made(net=lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)))
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    return training, generator, torch.optim.Adam(generator.parameters(), lr=1e-3)


def gan_form(training: Made, epochs: int = EPOCHS) -> None:
    """Two models: fakes are a part of the discriminator's loss through the real records' rows."""
    critic, d_optimizer = training.model, training.optimizer
    generator, g_optimizer = training.engine
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for real, _y in training.loader:
            d_optimizer.zero_grad()
            loss = criterion(critic(real), torch.ones(len(real), dtype=torch.long))
            loss.backward()
            d_optimizer.step()
            d_optimizer.zero_grad()
            g_optimizer.zero_grad()
            critic.disable_hooks()
            fake = generator(torch.randn(BATCH, 4))
            criterion(critic(fake), torch.ones(BATCH, dtype=torch.long)).backward()
            g_optimizer.step()
            critic.zero_grad()
            critic.enable_hooks()


def raw_steps_form(training: Made) -> None:
    """A second update, of raw gradients, follows the private one."""
    losses = []
    for batch in training.loader:
        training.optimizer.zero_grad()
        loss = loss_of(training, batch)
        loss.backward()
        raw = [p.grad_sample.sum(0) for p in training.model.parameters()]
        training.optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for p, g in zip(training.model.parameters(), raw, strict=True):
                p -= 1e-3 * g
        print(f"loss {losses[-1]:.3f}")


def averaged_form(training: Made) -> None:
    """A running average follows the step, and an evaluation at times."""
    average = [p.detach().clone() for p in training.model.parameters()]
    for number, batch in enumerate(training.loader):
        training.optimizer.zero_grad()
        loss_of(training, batch).backward()
        training.optimizer.step()
        for kept, p in zip(average, training.model.parameters(), strict=True):
            kept.mul_(0.9).add_(p.detach(), alpha=0.1)
        if number % 10 == 0:
            print(evaluate(training, batch))


def evaluate(training: Made, batch: Any) -> float:
    """An evaluation, which no replay repeats."""
    assert os.getpid() == PROCESS
    with torch.no_grad():
        return loss_of(training, batch).item()
