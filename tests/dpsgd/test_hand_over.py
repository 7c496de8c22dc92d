"""What `per_sample`, `rows` and `released` do without an audit, and whom they ask with one."""

import subprocess
import sys
from typing import Any

import torch
from torch import nn

import lightning_audit
from lightning_audit.dpsgd import hand_over


def outer() -> nn.Module:
    """A LightningModule's stand-in with two parts."""
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def test_without_an_audit_gradients_are_handed_back_and_nothing_is_checked():
    module, grads = outer(), {"no such name": torch.zeros(())}
    assert lightning_audit.per_sample(grads, module=module) is grads
    assert lightning_audit.rows(module=module) == []


def test_another_modules_audit_gives_nothing():
    class Source:
        def per_sample(self, grads: Any, module: nn.Module, root: nn.Module) -> Any:
            return {"from": root}

        def rows(self, module: nn.Module, root: nn.Module) -> list[Any]:
            return [root]

    audited, other, source = outer(), outer(), Source()
    hand_over.register(audited, source)
    try:
        assert lightning_audit.per_sample({}, module=audited[0]) == {"from": audited}
        assert lightning_audit.rows(module=audited) == [audited]
        assert lightning_audit.per_sample({}, module=other) == {}
        assert lightning_audit.rows(module=other[1]) == []
    finally:
        hand_over.unregister(source)
    assert lightning_audit.per_sample({}, module=audited) == {}


def test_both_calls_load_nothing_heavy():
    script = (
        "import sys, lightning_audit as a\n"
        "grads = {}\n"
        "assert a.per_sample(grads, module=None) is grads and a.rows(module=None) == []\n"
        "heavy = {'torch', 'numpy', 'opacus', 'pytorch_lightning', 'lightning'}\n"
        "assert not heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_diverted_module_asks_its_own_audit_again_afterwards():
    class Source:
        def rows(self, module: nn.Module, root: nn.Module) -> list[Any]:
            return [self]

    audited, audit, other = outer(), Source(), Source()
    with hand_over.diverted(audited, other):
        assert lightning_audit.rows(module=audited) == [other]
    assert lightning_audit.rows(module=audited) == []
    hand_over.register(audited, audit)
    try:
        with hand_over.diverted(audited, other):
            assert lightning_audit.rows(module=audited) == [other]
        assert lightning_audit.rows(module=audited) == [audit]
    finally:
        hand_over.unregister(audit)
