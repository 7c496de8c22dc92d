"""First name that the audit gives a fault when it stops the training, and whether it is right.

python benchmarks/names.py [--kinds TEXT ...] [--faults NAME ...] [--seeds N] [--every N] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from support import conv_net, digit_tokens, digits, mlp, quiet
from torch import nn

from lightning_audit import PrivacyAudit, __version__
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.runs import train
from lightning_audit.testing.selftest import Row, planned
from lightning_audit.testing.trainings import Training

PAGE = Path(__file__).parents[1] / "docs" / "names.md"
#: Planted in each of `NETS`.
OF_NETS = (
    "half_noise",
    "clip_after_average",
    "no_clipping",
    "clip_per_tensor",
    "no_noise_on_last_layer",
    "same_noise_at_every_step",
    "uniform_noise",
)
SELFTEST = "selftest"
#: Used instead of the name if the audit ended a training before the claim was exceeded.
_KEPT = "one more would exceed claimed_epsilon"
_STEPS = 60
_RANK = 4


class Stops(PrivacyAudit):
    """Audit that ends the training at the first violation, as by default, and raises nothing."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "on_violation": "stop"})


# ------------------------------------------------------------------ nets


class SmallMlp(Training):
    """Three linear layers on the digits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net, self.data = mlp(), digits()


class SmallConv(Training):
    """5,994 parameters on the digits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net, self.data = conv_net(), digits()


class Adapted(nn.Module):
    """A frozen linear layer plus a trained one of low rank (LoRA)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.lora_A = nn.Linear(frozen.in_features, _RANK, bias=False)
        self.lora_B = nn.Linear(_RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both layers' outputs."""
        return self.frozen(x) + self.lora_B(self.lora_A(x))


class Block(nn.Module):
    """Attention with adapters for queries and values, followed by a frozen feed-forward layer."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value = (Adapted(nn.Linear(width, width)) for _ in range(2))
        self.key = nn.Linear(width, width).requires_grad_(False)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)]).requires_grad_(False)
        self.widen = nn.Linear(width, 4 * width).requires_grad_(False)
        self.narrow = nn.Linear(4 * width, width).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, tokens, width]`` to the same shape."""
        n, tokens, width = x.shape
        parts = (layer(x) for layer in (self.query, self.key, self.value))
        shape = (n, tokens, self.heads, width // self.heads)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(2, 3) / (width // self.heads) ** 0.5
        seen = (scores.softmax(3) @ value).transpose(1, 2).reshape(x.shape)
        x = self.norms[0](x + seen)
        return self.norms[1](x + self.narrow(torch.relu(self.widen(x))))


class LoraTransformer(nn.Module):
    """A transformer whose adapters of rank 4 and head are trained."""

    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(17, width).requires_grad_(False)
        self.places = nn.Parameter(torch.randn(16, width), requires_grad=False)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Class scores of sequences of tokens, ``[n, 16]`` to ``[n, 10]``."""
        return self.head(self.blocks(self.tokens(tokens) + self.places).mean(1))


class Hugging(nn.Module):
    """A small transformers model, built from its configuration, with peft adapters."""

    def __init__(self, kind: str, targets: Sequence[str], **settings: int) -> None:
        super().__init__()
        import transformers
        from peft import LoraConfig, get_peft_model

        config = getattr(transformers, f"{kind}Config")(vocab_size=32, num_labels=10, **settings)
        config.pad_token_id = 31
        model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
        lora = LoraConfig(r=_RANK, target_modules=list(targets), task_type="SEQ_CLS")
        self.model = get_peft_model(model, lora)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Class scores of sequences of tokens, ``[n, 16]`` to ``[n, 10]``."""
        return self.model(input_ids=tokens).logits


class _OnTokens(Training):
    """A net with adapters, trained on the digits as tokens."""

    make: Callable[[], nn.Module]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net, self.data = type(self).make(), digit_tokens()


class LoraByHand(_OnTokens):
    """Hand-written adapters on a transformer of six blocks: 26 tensors."""

    make = staticmethod(LoraTransformer)


_SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_SMALL["intermediate_size"] = 256


class LoraBert(_OnTokens):
    """BERT."""

    make = staticmethod(lambda: Hugging("Bert", ("query", "value"), **_SMALL))


class LoraGpt2(_OnTokens):
    """GPT-2."""

    make = staticmethod(lambda: Hugging("GPT2", ("c_attn",), n_embd=64, n_layer=4, n_head=4))


class LoraLlama(_OnTokens):
    """Llama."""

    make = staticmethod(lambda: Hugging("Llama", ("q_proj", "v_proj"), **_SMALL))


NETS: dict[str, type[Training]] = {
    "small MLP": SmallMlp,
    "small conv net": SmallConv,
    "LoRA by hand": LoraByHand,
    "LoRA, BERT": LoraBert,
    "LoRA, GPT-2": LoraGpt2,
    "LoRA, Llama": LoraLlama,
}
_NEEDS_PEFT = (LoraBert, LoraGpt2, LoraLlama)


def has_peft() -> bool:
    """Return whether transformers and peft are installed."""
    return bool(find_spec("transformers") and find_spec("peft"))


# ------------------------------------------------------------------ rows


@dataclass(frozen=True)
class Named:
    """A fault in one training configuration, and the first names that it was given.

    Args:
        row: what was trained.
        names: the first of `Verdict.faults` for each seed that had a fault; empty if none.
        steps: number of steps of the training, for each seed.
    """

    row: Row
    names: tuple[str, ...]
    steps: tuple[int, ...]

    @property
    def right(self) -> int:
        """Number of names that equal the registry's."""
        return self.names.count(self.row.fault.likely)


def rows(kinds: Sequence[str] = (), faults: Sequence[str] = (), every: int = 1) -> list[Row]:
    """Return the rows to train.

    Args:
        kinds: parts of configuration names, "selftest" for its faults; empty for all.
        faults: names; empty for all.
        every: train one in ``every`` of the selftest's rows.
    """

    def wanted(kind: str) -> bool:
        return not kinds or any(part.lower() in kind.lower() for part in kinds)

    found = []
    for kind, training in NETS.items():
        if wanted(kind) and (training not in _NEEDS_PEFT or has_peft()):
            planted = [FAULTS[name] for name in OF_NETS if not faults or name in faults]
            own = [replace(fault, training=training, steps=_STEPS) for fault in planted]
            found += [Row("configuration", fault, kind) for fault in own]
    if wanted(SELFTEST):
        own = [row for row in planned(faults) if row.group in ("fault", "configuration")]
        found += [r for r in own if r.fault.processes == 1 and r.fault.ends == "VIOLATION"][::every]
    return found


def first_name(row: Row, seed: int) -> tuple[str, int]:
    """Return the first name of one training (empty if nothing is found) and its number of steps."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        report = train(row.fault, Path(folder) / "audit", row.seed + seed, Stops)
    assert report is not None  # a training in one process has a report
    kept = [_KEPT for note in report.notes if _KEPT in note]
    return [*(fault.name for fault in report.verdict.faults), *kept, ""][0], report.steps


def named(row: Row, seeds: int) -> Named:
    """Train a row with several seeds."""
    found = [first_name(row, seed) for seed in range(seeds)]
    return Named(row, tuple(n for n, _ in found if n != _KEPT), tuple(s for _, s in found))


def run(
    kinds: Sequence[str] = (), faults: Sequence[str] = (), seeds: int = 1, every: int = 1
) -> dict[str, object]:
    """Count the correct first names, by configuration and fault; arguments as in `rows`."""
    quiet()
    results = [named(row, seeds) for row in rows(kinds, faults, every)]
    return {one.row.title: f"{one.right} of {len(one.names)}" for one in results}


# ------------------------------------------------------------------ page

_HEAD = """# The first name that a fault is given

<!-- Made by `python benchmarks/names.py --write`; do not edit. -->

For the engineer who reads the first name of a violation: how often it is the right one.

{right} of {all} first names are the registry's.

By default the audit stops a training at the first violation, and an engineer acts on its name.
Here each fault is trained under `PrivacyAudit` up to that stop; seeds of each: {seeds}.
A name is right if it is the one in [the registry](faults.md). A training that the audit ends before
the claim is exceeded has no fault to name, and is not counted. The step is that at which the
training stopped, for each seed. {left}

This page shows a run of {date} with lightning-audit {version}, made by `{command}`.

| configuration | fault | right names |
|---|---|---|
"""
_NEXT = "\nNext: [read a violation](reading-a-violation.md).\n"
_WITHOUT = "transformers and peft were not installed: BERT, GPT-2 and Llama are omitted."


def markdown(results: Sequence[Named], command: str) -> str:
    """Return the page.

    Args:
        results: of all rows, with the same number of seeds each.
        command: the command that printed them.
    """
    head = _HEAD.format(
        right=sum(one.right for one in results),
        all=sum(len(one.names) for one in results),
        seeds=len(results[0].steps),
        left="" if has_peft() else _WITHOUT,
        date=datetime.now(UTC).date().isoformat(),
        version=__version__,
        command=command,
    )
    return head + "".join(f"| {' | '.join(cells(one))} |\n" for one in results) + _NEXT


def cells(one: Named) -> tuple[str, ...]:
    """Return one row of the table."""
    likely = one.row.fault.likely
    others = dict.fromkeys(name or "nothing found" for name in one.names if name != likely)
    instead = f" (else {', '.join(f'`{name}`' for name in others)})" if others else ""
    return (
        one.row.configuration,
        f"`{one.row.fault.name}`",
        f"{one.right} of {len(one.names)}{instead}, step {', '.join(map(str, one.steps))}",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the table, and write the page if `--write` is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=(), help="part of a configuration name")
    parser.add_argument("--faults", nargs="*", default=(), choices=sorted(FAULTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="train one in EVERY selftest rows")
    parser.add_argument("--write", action="store_true", help="write docs/names.md")
    given = parser.parse_args(arguments)
    quiet()
    results = []
    for row in rows(given.kinds, given.faults, given.every):
        results.append(named(row, given.seeds))
        print(" | ".join(cells(results[-1])), flush=True)
    right, total = (sum(n) for n in zip(*((r.right, len(r.names)) for r in results), strict=True))
    print(f"{right} of {total} first names are the registry's")
    if given.write:
        told = shlex.join(sys.argv[1:] if arguments is None else arguments)
        PAGE.write_text(markdown(results, f"python benchmarks/names.py {told}"), encoding="utf-8")


if __name__ == "__main__":
    main()
