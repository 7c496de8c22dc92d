"""Generative models."""

import torch
from correct_kinds.base import Private
from correct_kinds.data import digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset


class MaskedLinear(nn.Linear):
    def __init__(self, inputs, outputs, mask):
        super().__init__(inputs, outputs)
        self.mask = mask.float()  # constant; a buffer is refused by Opacus

    def forward(self, x):
        return functional.linear(x, self.weight * self.mask, self.bias)


class MADE(Private, kind="made-masked-linear"):
    """Correct: an autoregressive model of binary pixels; the masked layer is a subclass for which
    Opacus takes functorch, entries under the mask get noise alone. Like karpathy/pytorch-made."""

    def make_net(self):
        order, hidden = torch.arange(64), torch.arange(96) % 63
        return nn.Sequential(
            MaskedLinear(64, 96, hidden[:, None] >= order[None]),
            nn.ReLU(),
            MaskedLinear(96, 64, order[:, None] > hidden[None]),
        )

    def make_data(self):
        x, y = digits()
        return TensorDataset((x > 0.5).float(), y)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        return functional.binary_cross_entropy_with_logits(self.net(x), x)
