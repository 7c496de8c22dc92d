"""Token sequences: bags of embeddings, recurrent nets, transformers, losses by token."""

import random
from typing import Any

import torch
from opacus.layers import DPGRU, DPMultiheadAttention
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

from correct_kinds.base import Private
from correct_kinds.data import sentences

WORDS, MASK = 60, 59


class Bag(nn.Module):
    """The mean of the words' embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 16, padding_idx=0), nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        count = (ids > 0).sum(1, keepdim=True).clamp(min=1)
        return self.head(self.words(ids).sum(1) / count)


class Sentences(Private):
    """What the kinds of this module share."""

    rate, source = 0.2, staticmethod(sentences)


def drop_words(items: list[Any]) -> Any:
    """Collate, and drop words of each sentence."""
    kept = []
    for ids, label in items:
        row = [0 if random.random() < 0.15 else int(word) for word in ids]
        kept.append((torch.tensor(row), label))
    return default_collate(kept)


class BagOfWords(Sentences, kind="bag-of-words-collate"):
    """Correct: words are dropped sentence by sentence. Unusual: the draws are Python's `random`
    in collate_fn, and a batch touches few rows of the embedding."""

    collate = staticmethod(drop_words)

    Net = Bag

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1], label_smoothing=0.1)


def by_token(scores: torch.Tensor, targets: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Each record's mean loss over its used tokens ``[B, T]``, as ``[B]``."""
    losses = functional.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
    return (losses * used).sum(1) / used.sum(1).clamp(min=1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(WORDS, 12), DPGRU(12, 16, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.rnn(self.words(ids))[0]))


class LanguageModel(Sentences, kind="gru-scheduled-sampling"):
    """Correct: the mean over tokens is taken within a record. Unusual: a GRU language model with
    lengths, dropout, and words that the model itself guessed in place of some of the input."""

    Net = Recurrent

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = batch[0]
        before, after = ids[:, :-1], ids[:, 1:]
        with torch.no_grad():
            guessed = functional.pad(self.net(before).argmax(2)[:, :-1], (1, 0))
        swap = (torch.rand(before.shape) < 0.1) & (guessed > 0)
        return by_token(self.net(torch.where(swap, guessed, before)), after, after > 0).mean()


class Transformer(nn.Module):
    """One layer, with positions of the record's own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 16), nn.Embedding(12, 16)
        self.attention = DPMultiheadAttention(16, 2, batch_first=True, dropout=0.1)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.wide = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids) + self.places(torch.arange(ids.shape[1]).expand_as(ids))
        n = self.first(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        return self.head(h + self.wide(self.second(h)))


class MaskedWords(Sentences, kind="masked-words-transformer"):
    """Correct: masks are drawn for each token, and losses averaged within a record. Unusual: the
    global torch generator draws in training_step; attention dropout; AdamW."""

    Net = Transformer

    def inner(self, params: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=0.005)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = batch[0]
        masked = torch.bernoulli(torch.full(ids.shape, 0.25)).bool() & (ids > 0)
        return by_token(self.net(ids.masked_fill(masked, MASK)), ids, masked).mean()
