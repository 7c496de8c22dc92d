"""What is said of a plain loop is said in its words."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from front_ends import OF_LIGHTNING, of_lightning
from opacus.utils.batch_memory_manager import BatchMemoryManager
from places import PACKAGE
from plain_loops import Made, loss_of, made, plain_loader
from torch import nn

from lightning_audit import AuditReport, attach
from lightning_audit.results.report_details import for_plain_loop

#: Rooms whose sentences no plain loop meets: of Lightning, of commands, of other audits.
ELSEWHERE = ("callbacks", "cli", "many", "testing", "blackbox", "stats", "pytest_plugin.py")
ELSEWHERE += ("transformers.py",)
#: First words of remarks on settings that only a Trainer has.
OF_A_TRAINER = ("Opacus will end the training at its second batch", "accumulate_grad_batches=")
#: Part of a pattern, which nobody reads.
PATTERN = "(?:"


def told(node: ast.AST) -> str:
    """A sentence of the code, with a dot for each value in it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(told(one) if isinstance(one, ast.Constant) else "." for one in parts)


def written(node: ast.AST) -> Iterator[str]:
    """The sentences of a tree, without docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str):
        yield told(node)
        return
    for child in ast.iter_child_nodes(node):
        yield from written(child)


def test_sentences_of_all_front_ends_mark_what_is_for_users_of_lightning():
    found, marked = [], 0
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in ELSEWHERE:
            continue
        for text in written(ast.parse(path.read_text())):
            left = for_plain_loop(text)
            marked += left != text
            apart = text.startswith(OF_A_TRAINER) or PATTERN in text
            if " " in text and OF_LIGHTNING.search(left) and not apart:
                found.append(f"{path.name}: {text}")
    assert found == []
    assert marked >= 8


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("write a (Lightning: b(c, d=e(f)), g), and h", "write a, and h"),
        ("write a (b) (Lightning: c)", "write a (b)"),
        ("write a (b: Lightning)", "write a (b: Lightning)"),
    ],
)
def test_what_is_for_users_of_lightning_is_left_out_of_a_plain_loop(text, left):
    assert for_plain_loop((text, 1, None)) == (left, 1, None)


def by_choice(_: Any) -> tuple[Made, Callable[[], None]]:
    training = made(poisson_sampling=False, loader=plain_loader(shuffle=True))
    return training, lambda: plain_loops.mnist_form(training, 1)


def raises(_: Any) -> tuple[Made, Callable[[], None]]:
    """An in-place ReLU, which Opacus' hooks do not allow."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))

    training = made(net=net)
    return training, lambda: plain_loops.once_form(training, lambda *_: None)


def old_objects(_: Any) -> tuple[Made, Callable[[], None]]:
    """The loop trains the optimizer that make_private was given."""
    training = made()

    def loop() -> None:
        raw = training.optimizer.original_optimizer
        for batch in training.loader:
            raw.zero_grad()
            loss_of(training, batch).backward()
            raw.step()

    return training, loop


def parts_left_out(_: Any) -> tuple[Made, Callable[[], None]]:
    """The last part of each epoch's last batch is left out."""
    training = made()

    def loop() -> None:
        for _ in range(2):
            with BatchMemoryManager(
                data_loader=training.loader, max_physical_batch_size=4, optimizer=training.optimizer
            ) as parts:
                for number, batch in enumerate(parts):
                    if number % 5 == 4:
                        continue
                    training.optimizer.zero_grad()
                    loss_of(training, batch).backward()
                    training.optimizer.step()

    return training, loop


def again(directory: Path) -> tuple[Made, Callable[[], None]]:
    """The second training on the same records, which begins where the first ended."""
    training = made()
    with attach(*training.training, 50.0, report_dir=directory / "first", examinations=0):
        plain_loops.mnist_form(training, 1)
    other = made(loader=torch.utils.data.DataLoader(training.loader.dataset, 16))
    other.model._module.load_state_dict(training.model._module.state_dict())
    return other, lambda: plain_loops.mnist_form(other, 1)


def audited(
    kind: Callable[[Path], tuple[Made, Callable[[], None]]], directory: Path
) -> AuditReport:
    training, loop = kind(directory)
    given = {"report_dir": directory / "report", "seed": 1, "on_violation": "warn"}
    try:
        with attach(*training.training, 50.0, examinations=0, **given):
            loop()
    except Exception:  # the user's, or the verdict's at the end
        pass
    return AuditReport.load(directory / "report" / "report.json")


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (by_choice, "poisson_sampling=False"),
        (raises, "the training broke off with RuntimeError"),
        (old_objects, "the private optimizer's own step()"),
        (parts_left_out, "`continue`"),
        (again, "an earlier training reads records"),
    ],
)
def test_a_plain_loop_reads_no_word_of_lightning(tmp_path, capsys, kind, word):
    report = audited(kind, tmp_path)
    shown = " ".join(capsys.readouterr().out.split())
    assert of_lightning(report) == []
    assert not OF_LIGHTNING.search(shown)
    assert word in str(report)
    if kind is raises:  # a step of Opacus: no line for hand-written DP-SGD is asked
        assert report.steps == 0
        assert "per_sample" not in str(report)
