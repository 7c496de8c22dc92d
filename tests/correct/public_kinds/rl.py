"""Reinforcement learning and bandits from logged data of people."""

import torch
from correct_kinds.base import STEPS, ByHand, Manual, Private
from correct_kinds.data import digits, normals, tensors
from opacus import PrivacyEngine
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import TensorDataset

from public_kinds.base import NoCall, mlp


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


class Bandit(Private, kind="bandit-inverse-propensity"):
    """Correct: logged bandit feedback, weights of a record from its own propensity, not
    self-normalised over the batch. Like st-tech/zr-obp's policy learners with Opacus."""

    def make_net(self):
        return mlp(64, 16, 10)

    def make_data(self):
        x, y = digits()
        a = torch.randint(0, 10, (500,), generator=torch.Generator().manual_seed(self.seed))
        return TensorDataset(x, a, (a == y).float())

    def training_step(self, batch, batch_idx):
        x, a, reward = batch
        chosen = self.net(x).softmax(1).gather(1, a[:, None])[:, 0]
        return -((reward - 0.1) * chosen / 0.1).mean()


class ActorCritic(Manual, kind="actor-critic-two-private"):
    """Correct: actor and critic each have an Opacus optimizer attached to one accountant, so both
    releases of a batch are counted. Like cleanrl-style actor-critic on logged data."""

    trainer_arguments = {"max_steps": 2 * STEPS}

    def make_net(self):
        return torch.nn.ModuleDict({"actor": mlp(4, 16, 2), "critic": mlp(4, 16, 1)})

    make_data = DQN.make_data

    def configure_optimizers(self):
        engine, made = PrivacyEngine(), []
        for part in ("actor", "critic"):
            self.net[part], optimizer, _ = engine.make_private(
                module=self.net[part],
                optimizer=torch.optim.SGD(self.net[part].parameters(), lr=0.1),
                data_loader=self.loader(),
                noise_multiplier=1.5,
                max_grad_norm=1.0,
            )
            made.append(optimizer)
        return made

    def training_step(self, batch, batch_idx):
        s, a, r, after = batch
        actor, critic = self.optimizers()
        with torch.no_grad():
            self.net["critic"].eval()
            target = r + 0.9 * self.net["critic"](after)[:, 0]
            advantage = target - self.net["critic"](s)[:, 0]
            self.net["critic"].train()
        actor.zero_grad(), critic.zero_grad()
        logp = self.net["actor"](s).log_softmax(1).gather(1, a[:, None])[:, 0]
        self.manual_backward(-(advantage * logp).mean())
        self.manual_backward((self.net["critic"](s)[:, 0] - target).square().mean())
        actor.step(), critic.step()


class ReturnConditioned(NoCall, kind="decision-transformer-returns"):
    """Correct: a record is a trajectory; actions are predicted from state and its own return to go,
    by attention over its own past. Like kzl/decision-transformer by hand with vmap, no call."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.qkv, self.act = (
                torch.nn.Linear(5, 8),
                torch.nn.Linear(8, 24),
                torch.nn.Linear(8, 2),
            )

        def forward(self, s, togo):
            h = self.read(torch.cat([s, togo[..., None]], -1))
            q, k, v = self.qkv(h).chunk(3, -1)
            past = torch.ones(h.shape[-2], h.shape[-2]).tril() == 0
            w = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(past, -1e9).softmax(-1)
            return self.act(h + w @ v)

    def make_data(self):
        return trajectories(self.seed)

    def loss(self, params, s, a, r):
        return functional.cross_entropy(self.call(params, s, r.flip(0).cumsum(0).flip(0)), a)
