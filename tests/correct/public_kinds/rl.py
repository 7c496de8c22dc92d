"""Reinforcement learning and bandits from logged data of people."""

import torch
from correct_kinds.base import ByHand, Private
from correct_kinds.data import normals, tensors
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import TensorDataset

from public_kinds.base import mlp


def trajectories(seed, count=500, steps=6):
    s = normals(seed, count, steps, 4) / 2
    a = (normals(seed + 1, count, steps) + s[..., 0] > 0).astype("int64")
    r = s[..., 0] * (2 * a - 1) + 0.2 * normals(seed + 2, count, steps)
    return TensorDataset(*tensors(s, a, r))


class DQN(Private, kind="offline-dqn-target-net"):
    """Correct: a record is one logged transition; the target network is a copy of released
    weights. Like offline DQN tutorials of PyTorch with Opacus."""

    def make_net(self):
        return mlp(4, 16, 2, act=torch.nn.ReLU)

    def make_data(self):
        s, a, r = trajectories(self.seed).tensors
        return TensorDataset(s[:, 0], a[:, 0], r[:, 0], s[:, 1])

    def training_step(self, batch, batch_idx):
        s, a, r, after = batch
        if self.global_step % 10 == 0:
            self.__dict__["target"] = [p.detach().clone() for p in self.net.parameters()]
        w1, b1, w2, b2 = self.__dict__["target"]
        best = ((after @ w1.T + b1).relu() @ w2.T + b2).max(1).values
        q = self.net(s).gather(1, a[:, None])[:, 0]
        return functional.smooth_l1_loss(q, r + 0.9 * best)


class Reinforce(ByHand, kind="reinforce-logged-trajectories"):
    """Correct: a record is the whole trajectory of a person, its importance-weighted policy
    gradient is clipped once. Like DP policy gradient code (per-trajectory clipping), baseline
    public."""

    def make_net(self):
        return mlp(4, 16, 2)

    def make_data(self):
        return trajectories(self.seed)

    def loss(self, params, s, a, r):
        logp = functional_call(self.net, params, (s,)).log_softmax(1).gather(1, a[:, None])[:, 0]
        togo = r.flip(0).cumsum(0).flip(0)
        weight = (logp.detach() - torch.tensor(0.5).log()).exp().clamp(max=2.0)
        return -(weight * togo * logp).mean()
