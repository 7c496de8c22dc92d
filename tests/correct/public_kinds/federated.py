"""Federated clients and servers."""

import copy

import torch
from correct_kinds.base import STEPS, ByHand, Manual, NoCall, Private, mlp
from correct_kinds.data import flat_digits, public_digits, tumours
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from lightning_audit import PrivacyClaim
from public_kinds.base import InMemory, users


class FlowerClient(Private, kind="flower-numpy-client"):
    """Correct: Opacus on the client; what goes to the server and back are released weights, and
    the other clients hold public digits. Like adap/flower examples/opacus (NumPyClient)."""

    def set_up(self):
        self.server, self.other = None, public_digits()

    def get_parameters(self):
        return [p.detach().cpu().numpy().copy() for p in self.net.parameters()]

    def set_parameters(self, arrays):
        for p, a in zip(self.net.parameters(), arrays, strict=True):
            p.data = torch.tensor(a)

    def on_train_epoch_start(self):
        if self.server is not None:
            self.set_parameters(self.server)

    def on_train_epoch_end(self):
        mine, net = self.get_parameters(), mlp(64, 16, 10)
        for p, a in zip(net.parameters(), mine):
            p.data = torch.tensor(a)
        loss = functional.cross_entropy(net(self.other[0]), self.other[1])
        grads = torch.autograd.grad(loss, list(net.parameters()))
        self.server = [(a + (a - 0.1 * g.numpy())) / 2 for a, g in zip(mine, grads)]


class UserDeltas(ByHand, kind="dp-fedavg-user-deltas"):
    """Correct: a record is a user; its whole local update (two steps on its own rows) is clipped
    and noise is for one user, drawn by Poisson. Like google-parfait/tensorflow-federated's
    DP-FedAvg."""

    clip, rate, widths, source = 0.3, 1.0, (10, 16, 1), staticmethod(users)

    def loss(self, params, x, y):
        return functional.mse_loss(functional_call(self.net, params, (x,))[:, 0], y)

    def sample_gradients(self, *batch):
        def update(params, x, y):
            local = params
            for _ in range(2):
                found = grad(self.loss)(local, x, y)
                local = {n: w - 0.2 * found[n] for n, w in local.items()}
            return {n: params[n] - local[n] for n in params}

        return vmap(update, (None, 0, 0))(self.params(), *batch)


class FedAdam(NoCall, kind="fedadam-copied-clients"):
    """Correct: for each user drawn, a copy of the model trains on the user's rows; deltas are
    clipped over all tensors, noise once, then Adam on the server. Like SMILELab-FL/FedLab and
    FedOpt servers, a loop without a call."""

    clip, widths, source = 0.3, (10, 16, 1), staticmethod(users)

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.02, eps=1e-3)

    def local_update(self, x, y):
        model = copy.deepcopy(self.net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(2):
            optimizer.zero_grad()
            functional.mse_loss(model(x)[:, 0], y).backward()
            optimizer.step()
        return [w.data - p.data for w, p in zip(self.net.parameters(), model.parameters())]

    def training_step(self, batch, batch_idx):
        params = list(self.net.parameters())
        total = [torch.zeros_like(p) for p in params]
        for x, y in zip(*batch):
            delta = self.local_update(x, y)
            norm = torch.cat([d.flatten() for d in delta]).norm()
            for t, d in zip(total, delta):
                t += d * min(1.0, self.clip / (norm.item() + 1e-9))
        for p, t in zip(params, total):
            p.grad = (t + self.sigma * self.clip * torch.randn_like(t)) / self.batch_size
        self.optimizers().step()


class ServerSideClipping(NoCall, kind="flower-server-side-fixed-clipping"):
    """Correct: clipped user deltas are averaged over the expected number of users, and the noise
    is added to the new weights, which is where the weights first leave the server. Like flwr's
    DifferentialPrivacyServerSideFixedClipping: there is no optimizer at all."""

    clip, widths, source = 0.3, (10, 16, 1), staticmethod(users)
    trainer_arguments = {"max_epochs": 3, "max_steps": -1}
    local_update = FedAdam.local_update

    def configure_optimizers(self):
        return None

    def training_step(self, batch, batch_idx):
        weights = [p.data.clone() for p in self.net.parameters()]
        sums = [torch.zeros_like(w) for w in weights]
        for x, y in zip(*batch):
            delta = self.local_update(x, y)
            norm = torch.cat([d.flatten() for d in delta]).norm().item()
            for s, d in zip(sums, delta):
                s -= d * min(1.0, self.clip / (norm + 1e-9))
        std = self.sigma * self.clip / self.batch_size
        for p, w, s in zip(self.net.parameters(), weights, sums):
            p.data = w + s / self.batch_size + std * torch.randn_like(w)


class TwoSilos(Manual, kind="two-silos-averaged"):
    """Correct: two hospitals with records of their own, each with an Opacus optimizer and a
    loader; their released weights are averaged at the end of an epoch. Like owkin/FLamby's
    FedAvg with dp_target_epsilon."""

    trainer_arguments, source = {"max_steps": 2 * STEPS}, staticmethod(tumours)

    def make_net(self):
        first = mlp(30, 12, 2)
        return torch.nn.ModuleList([first, copy.deepcopy(first)])

    def loaders(self):
        halves = Subset(self.dataset, range(250)), Subset(self.dataset, range(250, 500))
        return [DataLoader(half, batch_size=25) for half in halves]

    def train_dataloader(self):
        return [DPDataLoader.from_data_loader(loader) for loader in self.loaders()]

    def configure_optimizers(self):
        made = []
        for i, loader in enumerate(self.loaders()):
            self.net[i], optimizer, _ = PrivacyEngine().make_private(
                module=self.net[i],
                optimizer=torch.optim.SGD(self.net[i].parameters(), lr=0.2),
                data_loader=loader,
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
            made.append(optimizer)
        return made

    def training_step(self, batch, batch_idx):
        for net, optimizer, (x, y) in zip(self.net, self.optimizers(), batch):
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(net(x), y))
            optimizer.step()

    def on_train_epoch_end(self):
        for a, b in zip(self.net[0].parameters(), self.net[1].parameters()):
            mean = (a.data + b.data) / 2
            a.data.copy_(mean), b.data.copy_(mean)


class RoundRobin(InMemory, ByHand, kind="serial-trainer-round-robin"):
    """Correct: silos take turns by a public schedule; in its turn each record of a silo joins with
    probability q, in the others with zero, which is at most the claimed rate. Like FedLab's
    SGDSerialClientTrainer."""

    batch_size, source = 30, staticmethod(lambda _: flat_digits(records=450))

    def audit_arguments(self):
        claim = PrivacyClaim(
            noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=30, sample_rate=0.2
        )
        return {"claim": claim}

    def training_step(self, batch, batch_idx):
        x, y = self.dataset.tensors
        silo = torch.arange(450)[self.global_step % 3 :: 3]
        chosen = silo[torch.rand(150) < 0.2]
        self.write(self.clipped_sums(self.rows_of(x[chosen], y[chosen])))
        self.optimizers().step()
