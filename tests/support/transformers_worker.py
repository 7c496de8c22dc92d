"""Trains with Hugging Face's Trainer under audit; prints what is found, as JSON in the last line.

`transformers_worker.py CASES FOLDER`: the names of functions here, with commas between them.
"""

import contextlib
import io
import json
import logging
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from peft import LoraConfig, get_peft_model
from places import EXAMPLES
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging as their_logging

from lightning_audit import PrivacyAudit, attach
from lightning_audit.transformers import PrivacyAuditCallback
from lightning_audit.transformers import attach as attach_to

sys.path.insert(0, str(EXAMPLES))
from finetune import HalfNoise, HeadNotClipped, OwnLoader, PrivateTrainer

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
RECORDS, BATCH, LENGTH, WORDS = 640, 32, 12, 64
_SIZE = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


class Tokens(Dataset):
    """Random tokens, to classify or to predict; ``varied`` leaves some of them without a label."""

    def __init__(self, causal: bool, varied: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, WORDS - 4, (RECORDS, LENGTH), generator=generator)
        self.causal, self.varied = causal, varied

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        ids = self.ids[place]
        labels = ids.clone() if self.causal else (ids[0] > WORDS // 2).long()
        if self.varied:
            labels[: place % 6] = -100
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(LENGTH),
            "labels": labels,
        }


class Stream(IterableDataset):
    """The same records without a length."""

    def __iter__(self):
        tokens = Tokens(False)
        return (tokens[place] for place in range(RECORDS))


def bert():
    config = BertConfig(vocab_size=WORDS, hidden_size=32, max_position_embeddings=LENGTH, **_SIZE)
    return BertForSequenceClassification(config)


def gpt2():
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


def llama():
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        max_position_embeddings=LENGTH,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        **_SIZE,
    )
    return LlamaForCausalLM(config)


TARGETS = {"bert": ["query", "value"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}


def net_of(name: str, lora: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    net = {"bert": bert, "gpt2": gpt2, "llama": llama}[name]()
    if lora:
        task = "SEQ_CLS" if name == "bert" else "CAUSAL_LM"
        ours = LoraConfig(r=4, target_modules=TARGETS[name], task_type=task)
        ours.fan_in_fan_out = name == "gpt2"
        net = get_peft_model(net, ours)
    return net.train()


def settings(**more: Any) -> TrainingArguments:
    given = {
        "num_train_epochs": 5,
        "per_device_train_batch_size": BATCH,
        "max_grad_norm": 0.0,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    folder = FOLDER / str(len(list(FOLDER.iterdir())))
    folder.mkdir()
    return TrainingArguments(str(folder), **(given | more))


def trainer_of(
    name: str = "bert",
    *,
    lora: bool = False,
    mode: str = "no wrap",
    kind: type[PrivateTrainer] = PrivateTrainer,
    optimizer: type[DPOptimizer] = DPOptimizer,
    varied: bool = False,
    args: TrainingArguments | None = None,
    lr: float = 0.1,
    **more: Any,
) -> Trainer:
    """Return a Trainer; ``more`` are arguments of its own."""
    net = net_of(name, lora)
    trained = [p for p in net.parameters() if p.requires_grad]
    torch.manual_seed(1)
    model, private, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(trained, lr=lr),
        data_loader=DataLoader(Tokens(name != "bert", varied), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        wrap_model=mode != "no wrap",
        grad_sample_mode=mode if mode == "functorch" else "hooks",
    )
    if optimizer is not DPOptimizer:
        private.__class__ = optimizer
    schedule = torch.optim.lr_scheduler.LambdaLR(private, lambda step: 1 / (1 + step / 100))
    return kind(
        loader,
        model=net if mode == "no wrap" else model,
        args=args or settings(),
        optimizers=(private, schedule),
        **more,
    )


def said(callback: PrivacyAuditCallback, error: str = "") -> dict[str, Any]:
    report = callback.report
    verdict = None if report is None else report.verdict
    found: dict[str, Any] = {"error": error}
    if report is not None and verdict is not None:
        found |= {
            "outcome": verdict.outcome,
            "name": verdict.root.name if verdict.root else "",
            "finding": verdict.root.finding if verdict.root else "",
            "steps": report.steps,
            "notes": list(report.notes),
            "blockers": [str(one) for one in verdict.pass_blockers],
            "examined": [
                one.name
                for one in report.checks
                if one.name.startswith("replay.") and one.status == "ok"
            ],
        }
    return found


def run(trainer: Trainer, callback: PrivacyAuditCallback, resume: Any = None) -> dict[str, Any]:
    error = ""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            trainer.train(resume_from_checkpoint=resume)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return said(callback, error)


def audited(arguments: dict[str, Any] | None = None, **of_trainer: Any) -> dict[str, Any]:
    callback = PrivacyAuditCallback(**({"claimed_epsilon": 8.0} | (arguments or {})))
    extra = of_trainer.pop("callbacks", [])
    return run(trainer_of(callbacks=[callback, *extra], **of_trainer), callback)


def difference(**of_trainer: Any) -> float:
    """Train with and without audit; return the largest difference of parameters."""
    nets = []
    for callbacks in ([], [PrivacyAuditCallback(claimed_epsilon=8.0)]):
        trainer = trainer_of(callbacks=callbacks, **of_trainer)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        nets.append([p.detach() for p in trainer.model.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*nets, strict=True))


# --- Cases.


def correct():
    return audited() | {"difference": difference()}


def half_noise():
    return audited(optimizer=HalfNoise)


def accumulated():
    return audited(args=settings(gradient_accumulation_steps=2))


def lightnings():
    try:
        trainer_of(callbacks=[PrivacyAudit()])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def matrix():
    """Each model, whole and with LoRA, in each mode: a correct training and three faults."""
    found = {}
    modes = ("no wrap", "hooks", "functorch")
    for name, lora, mode in product(TARGETS, (False, True), modes):
        of = {"name": name, "lora": lora, "mode": mode}
        cell = f"{name}{' lora' * lora} {mode}"
        found[f"{cell} correct"] = audited(**of)
        found[f"{cell} half noise"] = audited(optimizer=HalfNoise, **of)
        found[f"{cell} head"] = audited(optimizer=HeadNotClipped, **of)
        found[f"{cell} own loader"] = audited(kind=OwnLoader, **of)
    return found


def differences():
    return {name: difference(name=name, lora=True) for name in TARGETS}


class Ghost(PrivateTrainer):
    """Ghost clipping, whose loss is that of `make_private`."""

    criterion: Any = None

    def compute_loss(self, model, inputs, **_):
        labels = inputs.pop("labels")
        return self.criterion(model(**inputs).logits, labels)

    def training_step(self, model, inputs, *_):
        model.train()
        self.optimizer.zero_grad()
        loss = self.compute_loss(model, dict(inputs))
        loss.backward()
        return torch.tensor(loss.item())


def ghost():
    net = net_of("bert")
    model, private, criterion, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=DataLoader(Tokens(False), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    callback = PrivacyAuditCallback(claimed_epsilon=8.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(private, 1.0)
    trainer = Ghost(
        loader, model=model, args=settings(), optimizers=(private, schedule), callbacks=[callback]
    )
    trainer.criterion = criterion
    return run(trainer, callback)


class MeanOfRecords(PrivateTrainer):
    """The mean over records of each record's own mean."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        labels = inputs.pop("labels")[:, 1:]
        logits = model(**inputs).logits[:, :-1].transpose(1, 2)
        each = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
        return (each.sum(1) / labels.ne(-100).sum(1).clamp(min=1)).mean()


def tokens():
    smoothed = settings(label_smoothing_factor=0.1)
    return {
        "as it is": audited(name="gpt2", varied=True, mode="hooks"),
        "smoothed": audited(name="gpt2", varied=True, args=smoothed),
        "mean of records": audited(name="gpt2", varied=True, mode="hooks", kind=MeanOfRecords),
    }


class StopsAt50(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_save = control.should_training_stop = state.global_step >= 50


def resumed():
    args = settings()
    first = audited(args=args, callbacks=[StopsAt50()])
    folder = f"{args.output_dir}/checkpoint-50"
    callback = PrivacyAuditCallback(claimed_epsilon=8.0)
    then = settings()
    then.output_dir = args.output_dir
    again = run(trainer_of(args=then, callbacks=[callback]), callback, folder)
    return {"first": first, "files": sorted(os.listdir(folder)), "then": again}


def failed():
    args = settings(max_steps=4, save_strategy="steps", save_steps=2)
    audited(args=args)
    folder = Path(args.output_dir) / "checkpoint-2"
    (folder / "privacy_audit.pt").write_bytes(b"broken")
    callback, alone = PrivacyAuditCallback(8.0), PrivacyAuditCallback(8.0)
    trainer = trainer_of(args=args, callbacks=[callback])
    found = {"state": run(trainer, callback, str(folder)) | {"last": trainer.state.global_step}}
    alone.on_train_begin(args, trainer.state, trainer.control, train_dataloader=None)
    labels = PrivacyAuditCallback(8.0)
    trainer = trainer_of("gpt2", args=settings(max_steps=4), callbacks=[labels])
    with mock.patch("lightning_audit.transformers.Mapping", None):
        found["labels"] = run(trainer, labels) | {"last": trainer.state.global_step}
    with mock.patch("lightning_audit.transformers._passes", None):
        found["raised"] = audited({"on_inconclusive": "raise"}, args=settings(max_steps=4))
    return found | {"alone": said(alone)}


class Breaks(PrivateTrainer):
    def compute_loss(self, *args, **kwargs):
        if self.state.global_step == 30:
            raise KeyError("a record")
        return super().compute_loss(*args, **kwargs)


def ends():
    best = settings(eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    callback = PrivacyAuditCallback(claimed_epsilon=8.0)
    trainer = trainer_of(callbacks=[callback])
    with attach_to(trainer_of(), claimed_epsilon=8.0) as around:
        pass
    return {
        "breaks": audited(kind=Breaks),
        "stop": audited({"on_violation": "stop"}, optimizer=HalfNoise),
        "warn": audited({"on_violation": "warn"}, optimizer=HalfNoise),
        "budget": audited({"claimed_epsilon": 2.0}),
        "budget stop": audited({"claimed_epsilon": 2.0, "on_budget": "stop"}),
        "best": audited(args=best, eval_dataset=Tokens(False)),
        "twice": [run(trainer, callback) for _ in range(2)],
        "left": [name for name in ("training_step", "get_batch_samples") if name in vars(trainer)],
        "around nothing": around.report is None,
    }


def logged():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = settings(report_to=["tensorboard"], max_grad_norm=1.0)
    args.logging_dir = str(FOLDER / "board")
    os.environ["TENSORBOARD_LOGGING_DIR"] = args.logging_dir
    found = audited(args=args)
    board = EventAccumulator(str(next(Path(FOLDER).rglob("events.out*")).parent))
    board.Reload()
    return found | {"board": [tag for tag in board.Tags()["scalars"] if "audit" in tag]}


def refused():
    bad = {
        "fp16": {"fp16": True},
        "checkpointing": {"gradient_checkpointing": True},
        "batch size": {"auto_find_batch_size": True},
    }
    found = {name: audited(args=settings(**one))["error"] for name, one in bad.items()}
    for name, given in {"unknown": {"claimd": 1}, "negative": {"claimed_epsilon": -1}}.items():
        try:
            PrivacyAuditCallback(**given)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    callback = PrivacyAuditCallback(claimed_epsilon=8.0)
    trainer = trainer_of(kind=OwnLoader, args=settings(max_steps=10), callbacks=[callback])
    trainer.train_dataset = Stream()
    return found | {"stream": run(trainer, callback)["name"]}


def accelerated():
    """A plain loop through Accelerate, whose batches are keyword arguments and fetched ahead."""
    from accelerate import Accelerator

    trainer = trainer_of(mode="hooks")
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(trainer.model, trainer.optimizer, trainer.loader)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        attach(model, optimizer, loader, 8.0, report_dir=FOLDER / "plain") as audit,
    ):
        for _ in range(5):
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(model(**batch).loss)
                optimizer.step()
    return said(audit)


def examples():
    import finetune

    with contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["finetune.py", "--report-dir", str(FOLDER / "finetune")]
        return {"code": finetune.main()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("lightning_audit").setLevel(logging.CRITICAL)
    their_logging.set_verbosity_error()
    cases = {name: globals()[name]() for name in sys.argv[1].split(",")}
    print(json.dumps(cases))
