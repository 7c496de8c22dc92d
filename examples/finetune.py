"""Four fine-tunings of a tiny BERT with LoRA by Hugging Face's Trainer: one correct, three faulty.

    pip install ".[transformers]" peft
    python examples/finetune.py [--report-dir finetune]

The sentences are made from templates, so nothing is downloaded. The faults are of kinds that public
code has:

- half noise: the noise has half the standard deviation that the accountant records;
- head not clipped: gradients of the classifier, which LoRA trains whole, pass unclipped;
- the Trainer's own loader: shuffled batches, where the accountant assumes Poisson sampling.

The exit code is 0 if the audit passes the first and refuses the others by name.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)

from lightning_audit import PrivacyViolation
from lightning_audit.transformers import PrivacyAuditCallback

EPOCHS, BATCH_SIZE, LENGTH, RECORDS = 5, 64, 8, 1600
CLAIMED_EPSILON, DELTA = 8.0, 1e-5
PEOPLE = ("the nurse", "our neighbor", "a colleague", "the driver", "my aunt", "the cook")
THINGS = ("the soup", "this film", "the concert", "that hotel", "the new park", "the garden")
OPINIONS = {
    0: ("disliked", "was tired of", "left early because of", "complained about"),
    1: ("loved", "recommended", "praised", "came back for"),
}
TIMES = ("yesterday", "again", "this morning", "last week", "twice")


class Sentences(Dataset):
    """Sentences with an opinion, each with its label."""

    def __init__(self, records: int = RECORDS, seed: int = 0) -> None:
        draw, self.texts, self.labels = random.Random(seed), [], []
        for _ in range(records):
            label = draw.randrange(2)
            parts = map(draw.choice, (PEOPLE, OPINIONS[label], THINGS, TIMES))
            self.texts.append(" ".join(parts))
            self.labels.append(label)
        words = sorted({word for text in self.texts for word in text.split()})
        self.numbers = {word: number for number, word in enumerate(words, start=1)}

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        known = [self.numbers[word] for word in self.texts[place].split()][:LENGTH]
        ids = torch.tensor(known + [0] * (LENGTH - len(known)))
        return {
            "input_ids": ids,
            "attention_mask": ids.ne(0).long(),
            # Opacus needs them for each record; the model's own have one row for all.
            "position_ids": torch.arange(LENGTH),
            "token_type_ids": torch.zeros_like(ids),
            "labels": torch.tensor(self.labels[place]),
        }


def classifier(words: int) -> torch.nn.Module:
    """A BERT of one layer, of which adapters of rank 4 and the head are trained."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=words + 1,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), lora).train()


class PrivateTrainer(Trainer):
    """A Trainer over the loader of `make_private`, which also clears per-sample gradients.

    Args:
        loader: of `make_private`.
        more: arguments of the Trainer.
    """

    def __init__(self, loader: DataLoader, **more: Any) -> None:
        self.loader = loader
        super().__init__(train_dataset=loader.dataset, **more)

    def get_train_dataloader(self) -> DataLoader:
        return self.loader

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.optimizer.zero_grad()  # the Trainer clears gradients of the model alone
        return super().training_step(*args, **kwargs)


class OwnLoader(PrivateTrainer):
    """Trains on the Trainer's own loader, which shuffles."""

    def get_train_dataloader(self) -> DataLoader:
        return Trainer.get_train_dataloader(self)


class HalfNoise(DPOptimizer):
    """Adds half the noise that it states."""

    def add_noise(self) -> None:
        stated = self.noise_multiplier
        self.noise_multiplier = 0.5 * stated
        super().add_noise()
        self.noise_multiplier = stated


class HeadNotClipped(DPOptimizer):
    """Sums the gradients of the last tensor without clipping them."""

    def clip_and_accumulate(self) -> None:
        head = self.params[-1]
        unclipped = head.grad_sample.sum(0)
        super().clip_and_accumulate()
        head.summed_grad = unclipped


#: By name: the Trainer, the optimizer, and the beginning of the fault.
RUNS: dict[str, tuple[type[PrivateTrainer], type[DPOptimizer], str]] = {
    "correct": (PrivateTrainer, DPOptimizer, ""),
    "half noise": (PrivateTrainer, HalfNoise, "noise scale too small"),
    "head not clipped": (PrivateTrainer, HeadNotClipped, "clipping misses some tensors"),
    "own loader": (OwnLoader, DPOptimizer, "wrong sampling"),
}


def finetune(
    kind: type[PrivateTrainer],
    optimizer_class: type[DPOptimizer],
    folder: Path,
) -> PrivacyAuditCallback:
    """Fine-tune under audit; return the callback with its report."""
    data = Sentences()
    net = classifier(len(data.numbers))
    trained = [p for p in net.parameters() if p.requires_grad]
    _, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.AdamW(trained, lr=5e-3),
        data_loader=DataLoader(data, batch_size=BATCH_SIZE),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        wrap_model=False,  # the Trainer gets the model itself
    )
    optimizer.__class__ = optimizer_class
    steps = EPOCHS * len(loader)
    audit = PrivacyAuditCallback(claimed_epsilon=CLAIMED_EPSILON, delta=DELTA, report_dir=folder)
    trainer = kind(
        loader,
        model=net,
        args=TrainingArguments(
            str(folder),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH_SIZE,
            max_grad_norm=0.0,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        optimizers=(optimizer, get_linear_schedule_with_warmup(optimizer, 5, steps)),
        callbacks=[audit],
    )
    try:
        trainer.train()
    except PrivacyViolation:
        """The report has it."""
    return audit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report-dir", type=Path, default=Path("finetune"))
    folder = parser.parse_args().report_dir
    torch.set_num_threads(1)  # the net is too small for more
    logging.getLogger("lightning_audit").setLevel(logging.CRITICAL)  # the reports have everything
    warnings.filterwarnings("ignore", module="opacus|torch|transformers|accelerate")
    wrong = 0
    for name, (kind, optimizer_class, fault) in RUNS.items():
        print(f"\n=== {name} ===", flush=True)
        report = finetune(kind, optimizer_class, folder / name.replace(" ", "-")).report
        expected = "VIOLATION" if fault else "PASS"
        verdict = report.verdict
        wrong += verdict.outcome != expected or not verdict.fault.startswith(fault)
    print(f"\n{'all as expected' if not wrong else f'{wrong} not as expected'}; ", end="")
    print(f"open {folder / 'half-noise' / 'report.html'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
