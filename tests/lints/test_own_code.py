"""Findings point to the user's own classes and methods, and to no library's."""

import functools
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from places import REPOSITORY
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from lightning_audit.checks.check import REGISTRY
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.lints.own_code import MOST_LINES, OwnCode, of_class, of_methods, of_optimizer
from lightning_audit.results.audit_report import CheckResult

# --- Places of the user's code have file, lines, name, and the first lines of their source.

HERE = str(Path(__file__).relative_to(REPOSITORY))


class Overrides(DPOptimizer):
    """Of the user."""

    def add_noise(self) -> None:
        super().add_noise()

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Plain(DPOptimizer):
    """Of the user, with nothing of its own."""


def made(kind: type[DPOptimizer]) -> DPOptimizer:
    return kind.__new__(kind)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_a_method_has_its_lines_and_its_source_without_indentation():
    (place,) = of_methods(made(Overrides), "add_noise", "clip_and_accumulate")
    first = line_of("def add_noise")
    assert (place.file, place.line, place.end_line) == (HERE, first, first + 1)
    assert place.name == "Overrides.add_noise"
    assert place.source == "def add_noise(self) -> None:\n    super().add_noise()"


def test_a_finding_names_its_methods_else_any_of_the_step_else_the_class():
    def names(kind: type[DPOptimizer], *methods: str) -> list[str]:
        return [place.name for place in of_optimizer(made(kind), *methods)]

    assert names(Overrides, "add_noise") == ["Overrides.add_noise"]
    assert names(Overrides, "scale_grad") == ["Overrides.add_noise", "Overrides.step"]
    assert (names(Plain, "add_noise"), names(DPOptimizer, "add_noise")) == (["Plain"], [])


def put_on(self: Any) -> None:
    """Of the user."""


class Calls:
    """Of the user."""

    def __call__(self) -> None:
        """Of the user."""


@functools.wraps(DPOptimizer.add_noise)
def around_opacus(*args: Any) -> None:
    """Of the user."""


@pytest.mark.parametrize("audited", [False, True])
@pytest.mark.parametrize(
    ("put", "first_line"),
    [
        (lambda it: MethodType(put_on, it), "def put_on"),
        (lambda it: functools.partial(functools.partial(put_on), it), "def put_on"),
        (lambda it: lambda: None, "(lambda it: lambda: None"),
        (lambda _: around_opacus, "@functools.wraps(DPO"),
        (lambda _: Calls(), "class Calls"),
    ],
)
def test_what_is_put_on_an_optimizer_is_named_below_our_hooks(put, first_line, audited):
    optimizer = made(Plain)
    optimizer.add_noise = put(optimizer)  # type: ignore[method-assign]
    if audited:
        MethodHook(optimizer, "add_noise")
        MethodHook(optimizer, "add_noise")
    (place,) = of_optimizer(optimizer, "add_noise")
    assert (place.file, place.line) == (HERE, line_of(first_line))


def test_what_is_put_on_opacus_class_is_named_and_our_own_hooks_are_not(monkeypatch):
    optimizer = made(DPOptimizer)
    MethodHook(optimizer, "add_noise")
    assert of_optimizer(optimizer, "add_noise") == []
    monkeypatch.setattr(DPOptimizer, "add_noise", put_on)
    (place,) = of_optimizer(optimizer, "add_noise")
    assert place.line == line_of("def put_on")


def test_hooks_of_torch_and_samplers_that_the_user_registers_are_named(monkeypatch):
    given = parts()
    own = OwnCode(nn.Linear(1, 1), **given)
    found = {"noise": "", "replay.clipping": ""}
    assert {name: own.places(name) for name in found} == found
    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, nn.Linear, put_on)
    assert own.places("noise") == ""
    assert own.places("replay.clipping") == f"put_on at {HERE}:{line_of('def put_on')}"
    for register in (
        given["optimizers"][0].register_step_pre_hook,
        own.module.register_full_backward_hook,
        own.module.weight.register_hook,
    ):
        hook = register(lambda *_: None)
        assert own.places("noise").endswith(f"lambda at {HERE}:{line_of('hook = register(')}")
        hook.remove()


def test_long_code_and_long_lines_are_cut(tmp_path, monkeypatch):
    file = tmp_path / "users_own.py"
    body = "".join(f"    x{n} = '{'a' * 300}'\n" for n in range(30))
    file.write_text(f"class Long:\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import users_own  # type: ignore[import-not-found]

    (place,) = of_class(users_own.Long)
    assert (place.file, place.line, place.end_line) == ("users_own.py", 1, 31)
    lines = place.source.splitlines()
    assert len(lines) == MOST_LINES
    assert max(map(len, lines)) == 160


AT = f"{Path(__file__).relative_to(REPOSITORY)}:"


class OwnOptimizer(DPOptimizer):
    """Of the user."""


class OwnSampler(BatchSampler):
    """Of the user."""


class Net(nn.Module):
    """Of the user, with a layer of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))


class Lit(pl.LightningModule):
    """Of the user, over a hook of Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Of the user."""

    def configure_optimizers(self) -> None:
        """Of the user."""

    def train_dataloader(self) -> None:
        """Of the user."""

    def configure_gradient_clipping(self, *args: Any) -> None:
        """Of the user."""


class Inherits(Lit):
    """With nothing of its own."""


def parts(
    optimizer: type | None = None,
    sampler: Any = None,
    callbacks: tuple[Any, ...] = (),
    source: Any = None,
) -> Any:
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    if optimizer is not None:
        made = optimizer(made, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    data = TensorDataset(torch.zeros(4))
    order = SequentialSampler(data)
    loader = DataLoader(data, batch_sampler=(sampler or BatchSampler)(order, 2, False))
    return {"optimizers": [made], "loaders": loader, "owners": list(callbacks), "source": source}


def places(finding: str, module: Any, **kwargs: Any) -> str:
    return OwnCode(module, **parts(**kwargs)).places(finding)


def test_each_finding_is_of_the_code_that_may_cause_it():
    own, step = line_of("class OwnOptimizer"), line_of("def training_step")
    hook = line_of("def configure_gradient_clipping")
    expected = {
        "noise": f"OwnOptimizer at {AT}{own}, Lit.configure_gradient_clipping at {AT}{hook}",
        "replay.clipping": f"OwnOptimizer at {AT}{own}, Lit.configure_gradient_clipping at "
        f"{AT}{hook}, Lit.training_step at {AT}{step}",
        "every_step": f"OwnOptimizer at {AT}{own}, Lit.configure_gradient_clipping at "
        f"{AT}{hook}, Lit.training_step at {AT}{step}",
        "coupling": f"layer `net.layers.1` of Net at {AT}{line_of('class Net')}, "
        f"Lit.training_step at {AT}{step}",
        "accounting": f"Lit.configure_optimizers at {AT}{line_of('def configure_optimizers')}",
        "sampling.not_poisson": f"OwnSampler at {AT}{line_of('class OwnSampler')}, "
        f"Lit.train_dataloader at {AT}{line_of('def train_dataloader')}",
        "unsynchronised": "",
    }
    for finding, told in expected.items():
        found = places(finding, Inherits(), optimizer=OwnOptimizer, sampler=OwnSampler)
        assert found == told, finding
    # A loader that `fit` was given is not that of the module.
    given = DataLoader(TensorDataset(torch.zeros(4)))
    found = places("sampling.not_poisson", Lit(), sampler=OwnSampler, source=given)
    assert found == f"OwnSampler at {AT}{line_of('class OwnSampler')}"
    module = Lit()
    assert "training_step" not in places("noise", module)
    module.automatic_optimization = False  # the step by hand is where its noise is
    assert "Lit.training_step at" in places("noise", module)


def test_the_users_own_callback_may_change_gradients_and_lightnings_may_not():
    class Own(pl.Callback):
        def on_after_backward(self, *args: Any) -> None:
            """Of the user."""

    found = places(
        "gradient_replaced", pl.LightningModule(), callbacks=(Own(), pl.callbacks.Timer())
    )
    assert found.count(" at ") == 1
    assert "Own.on_after_backward at" in found


@pytest.mark.parametrize("finding", REGISTRY)
def test_code_of_libraries_is_no_place(finding):
    assert places(finding, pl.LightningModule(), optimizer=DPOptimizer) == ""


def test_what_was_typed_in_has_no_place_and_raises_nothing(tmp_path):
    typed: dict[str, Any] = {"__name__": "__main__", "Lit": Lit}
    source = "class Typed(Lit):\n    def training_step(self, batch, batch_idx): pass\n"
    for file in ("<stdin>", str(tmp_path / "ipykernel_7" / "123.py")):
        exec(compile(source, file, "exec"), typed)
        assert "training_step" not in places("finite", typed["Typed"]())


@pytest.mark.parametrize("status", ["violated", "undecided", "ok", "not_run"])
def test_only_what_is_found_has_a_place_and_only_advice_alone_repeats_it(status):
    check = CheckResult("finite", "mechanism", status, "it is not", "look")
    (found,) = OwnCode(Lit(), **parts()).located([check])
    place = f"Lit.training_step at {AT}{line_of('def training_step')}"
    if status in ("ok", "not_run"):
        assert found == check
    else:
        assert found.evidence == ({"where": place} if status == "violated" else {})
        assert found.advice == ("look" if status == "violated" else f"look; see {place}")
