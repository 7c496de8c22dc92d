"""Sequences: sorted, packed, bucketed, augmented and then sorted."""

import torch
from correct_kinds.base import ByHand, NoCall, Private
from correct_kinds.data import sentences
from opacus.layers import DPGRU, DPLSTM
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence


def lengths_of(ids):
    return (ids > 0).sum(dim=1)


def sort_collate(records):
    ids, y = (torch.stack(part) for part in zip(*records))
    order = lengths_of(ids).argsort(descending=True, stable=True)
    return ids[order], y[order]


class SortedPacked(Private, kind="sorted-collate-packed-lstm"):
    """Correct: collate sorts the batch by length and packs with enforce_sorted=True, so rows keep
    their records. Like Opacus' char-lstm classification example."""

    source = staticmethod(sentences)

    collate = staticmethod(sort_collate)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.lstm = nn.Embedding(64, 8), DPLSTM(8, 12, batch_first=True)
            self.out = nn.Linear(12, 2)

        def forward(self, ids):
            packed = pack_padded_sequence(self.emb(ids), lengths_of(ids), batch_first=True)
            _, (h, _) = self.lstm(packed)
            return self.out(h[-1])


class FlatTokens(NoCall, kind="flat-tokens-with-offsets"):
    """Correct: the batch is one flat run of tokens with offsets; gradients of a record come from
    its own segment, in closed form for a bag of embeddings. Like EmbeddingBag loaders, packed, by
    hand without a call."""

    source = staticmethod(sentences)

    def make_net(self):
        return nn.ModuleDict({"emb": nn.Embedding(64, 8), "out": nn.Linear(8, 2)})

    def sample_gradients(self, ids, y):
        keep = ids > 0
        flat, segment, n = ids[keep], keep.nonzero()[:, 0], len(y)
        size = lengths_of(ids).float()[:, None]
        emb, out = self.net["emb"].weight.detach(), self.net["out"]
        bag = torch.zeros(n, 8).index_add(0, segment, emb[flat]) / size
        error = out(bag).detach().softmax(1) - functional.one_hot(y, 2)
        back = (error @ out.weight.detach()) / size
        g = torch.zeros(n, 64, 8).index_put((segment, flat), back[segment], accumulate=True)
        return {"emb.weight": g, "out.weight": error[:, :, None] * bag[:, None], "out.bias": error}


class CropThenSort(ByHand, kind="crop-then-sort-then-trim"):
    """Correct: tokens of each record are dropped at random, rows are sorted by the new lengths and
    padding that all lack is cut; masks make padding count for nothing. Like bucketed loaders with
    token dropout, in training_step by hand."""

    source = staticmethod(sentences)

    def make_net(self):
        return nn.ModuleDict(
            {"emb": nn.Embedding(64, 8), "score": nn.Linear(8, 1), "out": nn.Linear(8, 2)}
        )

    def loss(self, params, ids, y):
        sub = lambda part: {n.split(".", 1)[1]: p for n, p in params.items() if n.startswith(part)}
        h = functional_call(self.net["emb"], sub("emb."), (ids,))
        score = functional_call(self.net["score"], sub("score."), (h,))[:, 0]
        weights = score.masked_fill(ids == 0, -1e9).softmax(0)
        return functional.cross_entropy(
            functional_call(self.net["out"], sub("out."), (weights @ h,)), y
        )

    def training_step(self, batch, batch_idx):
        ids, y = batch
        drop = torch.rand(ids.shape) < 0.2
        drop[:, 0] = False
        ids = ids.masked_fill(drop, 0)
        ids = ids.gather(1, (ids == 0).long().argsort(dim=1, stable=True))
        order = lengths_of(ids).argsort(descending=True)
        ids, y = ids[order][:, : int(lengths_of(ids).max())], y[order]
        self.write(self.clipped_sums(self.rows_of(ids, y)))
        self.optimizers().step()


class ShuffledRows(NoCall, kind="shuffle-rows-before-loop"):
    """Correct: rows of the batch are permuted, then trained in slices of eight through a dropout
    mask a record. Like Keras-style fit loops that shuffle a drawn batch, without a call; the draws
    move with the batch's size, the noise stays independent of it."""

    source = staticmethod(sentences)

    randomness = "different"
    make_net, loss0 = CropThenSort.make_net, CropThenSort.loss

    def loss(self, params, ids, y):
        return self.loss0(params, torch.where(torch.rand(ids.shape) < 0.1, 0, ids), y)

    def training_step(self, batch, batch_idx):
        order = torch.randperm(len(batch[0]))
        sums = {n: torch.zeros_like(p) for n, p in self.params().items()}
        for rows in order.split(8):
            for n, s in self.clipped_sums(
                self.sample_gradients(batch[0][rows], batch[1][rows])
            ).items():
                sums[n] += s
        self.write(sums)
        self.optimizers().step()


class OwnLengths(Private, kind="next-token-own-length"):
    """Correct: the loss of a record is the mean over its own tokens, never over the batch's. Like
    public causal language models with Opacus' DPGRU and ignore_index, normalised by record."""

    source = staticmethod(sentences)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.gru = nn.Embedding(64, 8), DPGRU(8, 12, batch_first=True)
            self.out = nn.Linear(12, 64)

        def forward(self, ids):
            return self.out(self.gru(self.emb(ids))[0])

    def training_step(self, batch, batch_idx):
        ids, _ = batch
        order = lengths_of(ids).argsort()
        ids = ids[order]
        scores = self.net(ids[:, :-1]).transpose(1, 2)
        losses = functional.cross_entropy(scores, ids[:, 1:], ignore_index=0, reduction="none")
        return (losses.sum(1) / (ids[:, 1:] > 0).sum(1)).mean()
