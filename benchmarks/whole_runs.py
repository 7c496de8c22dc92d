"""CPU time of `Trainer.fit`, audited over unaudited, in separate alternating processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec

import pytorch_lightning as pl
import torch
from opacus.layers import DPLSTM
from support import Classifier, digit_tokens, digits, large_digits, medium_conv_net, quiet
from torch import nn
from torch.utils.data import TensorDataset

from lightning_audit import PrivacyAudit


class LastState(nn.Module):
    """An LSTM over the rows of an image, and a linear layer over its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = DPLSTM(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores of images, ``[n, 1, 8, 8]`` to ``[n, 10]``."""
        return self.head(self.lstm(images.squeeze(1))[0][:, -1])


class TinyBert(nn.Module):
    """A BERT of two layers of which only adapters of rank 4 are trained."""

    def __init__(self) -> None:
        super().__init__()
        from peft import LoraConfig, get_peft_model
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=32,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            num_labels=10,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        lora = LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
        self.bert = get_peft_model(BertForSequenceClassification(config), lora)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return class scores of token sequences, ``[n, 16]`` to ``[n, 10]``."""
        return self.bert(input_ids=tokens).logits


def _records(data: TensorDataset, count: int) -> TensorDataset:
    """Return ``count`` distinct records: images of a data set with a little noise added."""
    images, labels = data.tensors
    chosen = torch.arange(count) % len(labels)
    moved = images[chosen] + 0.02 * torch.randn(count, *images.shape[1:])
    return TensorDataset(moved, labels[chosen])


#: By name: the net, its data, the batch size and the number of epochs.
TRAININGS: dict[str, tuple[Callable[[], nn.Module], Callable[[], TensorDataset], int, int]] = {
    "conv net, 3 epochs of 235 steps": (
        medium_conv_net,
        lambda: _records(large_digits(), 60_160),
        256,
        3,
    ),
    "conv net, 40 epochs of 3 steps": (
        medium_conv_net,
        lambda: _records(large_digits(), 768),
        256,
        40,
    ),
    "conv net, 100 steps": (medium_conv_net, lambda: _records(large_digits(), 25_600), 256, 1),
    "DPLSTM, 128 steps": (LastState, lambda: _records(digits(), 8192), 64, 1),
    "tiny BERT with LoRA, 141 steps": (TinyBert, digit_tokens, 64, 5),
}


def trained(name: str, audit: str) -> dict[str, float]:
    """Return the CPU seconds of one training, and the seconds of its first examination.

    Args:
        name: of `TRAININGS`.
        audit: "none", "default", or "steps" for an audit without examinations.
    """
    quiet()
    torch.manual_seed(0)
    make, data, batch_size, epochs = TRAININGS[name]
    module = Classifier(make(), data(), batch_size=batch_size, learning_rate=0.05)
    chosen = {"examinations": 0} if audit == "steps" else {}
    with tempfile.TemporaryDirectory() as folder:
        callback = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0, **chosen)
        loop = pl.Trainer(
            max_epochs=epochs,
            callbacks=[] if audit == "none" else [callback],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        used = _cpu_seconds()
        loop.fit(module)
        cpu = _cpu_seconds() - used
        cost = {} if audit == "none" else callback.report.examination_cost
    return {"cpu": cpu, "examination": cost.get("first", 0.0)}


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its forks that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _in_a_process(name: str, audit: str) -> dict[str, float]:
    command = [sys.executable, __file__, name, audit]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(pairs: int = 3, only: str = "") -> dict[str, object]:
    """Return medians of whole runs, from `fit` to its return: seconds, and ratios to unaudited.

    In CPU time, which other programs of the machine change less; the forks of the examinations
    count. With the default settings, and without examinations.

    Args:
        pairs: how often each training runs in each way.
        only: part of the names of the trainings to run; empty for all.
    """
    results: dict[str, object] = {}
    for name in (each for each in TRAININGS if only in each):
        if "BERT" in name and not (find_spec("transformers") and find_spec("peft")):
            results[name] = "not measured: transformers and peft are not installed"
            continue
        ways = ("none", "default", "steps")
        runs = [{audit: _in_a_process(name, audit) for audit in ways} for _ in range(pairs)]
        rows = [[run[audit]["cpu"] for audit in ways] for run in runs]
        figures = {
            "unaudited, s": [off for off, _, _ in rows],
            "audited, s": [on for _, on, _ in rows],
            "ratio": [on / off for off, on, _ in rows],
            "ratio without examinations": [steps / off for off, _, steps in rows],
            "first examination, s": [run["default"]["examination"] for run in runs],
        }
        for key, values in figures.items():
            results[f"{name}: {key}"] = round(statistics.median(values), 2)
    return results


if __name__ == "__main__":
    print(json.dumps(trained(*sys.argv[1:])))
