"""What a faulty clipping sums up, on gradients that are known."""

import pytest
import torch
from opacus.optimizers import DPOptimizer
from planted import private

from lightning_audit.testing import faulty
from lightning_audit.testing.fault import _KINDS as KINDS
from lightning_audit.testing.faults import FAULTS

pytestmark = pytest.mark.filterwarnings("default")

# --- What an optimizer adds to sums of zeros.


def added(kind: type, *, steps: int = 1, **settings: float) -> list[list[torch.Tensor]]:
    """What each step adds to a sum of zeros, tensor by tensor."""
    torch.manual_seed(0)
    optimizer = private(**settings)
    optimizer.__class__ = kind
    drawn = []
    for _ in range(steps):
        for p in optimizer.params:
            p.summed_grad = torch.zeros_like(p)
        optimizer.add_noise()
        drawn.append([p.grad.detach().clone() for p in optimizer.params])
    return drawn


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors])


RECORDS = 4


def summed(kind: type[DPOptimizer], length: float) -> list[torch.Tensor]:
    """The sum of gradients of which each tensor's part has a length, of norm 1 or more in all."""
    optimizer = private()
    optimizer.__class__ = kind
    for p in optimizer.params:
        sample = torch.full_like(p, length / p.numel() ** 0.5)
        p.grad_sample = sample.expand(RECORDS, *p.shape).clone()
    optimizer.clip_and_accumulate()
    return [p.summed_grad for p in optimizer.params]


def norms(kind: type[DPOptimizer], length: float) -> list[float]:
    return [t.norm().item() / RECORDS for t in summed(kind, length)]


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        (DPOptimizer, 1 / 6**0.5),
        (faulty.ClipAtTwice, 2 / 6**0.5),
        (faulty.NoClipping, 10.0),
        (faulty.ClipPerTensor, 1.0),
        # Three weights are counted, and the factor holds for the biases, too.
        (faulty.NormMissesBiases, 1 / 3**0.5),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_tensor_is_clipped_as_the_fault_says(kind, each):
    assert norms(kind, 10.0) == pytest.approx([each] * 6, rel=1e-4)


def test_the_clipped_mean_is_as_long_as_the_clipping_norm_times_the_expected_batch():
    whole = torch.cat([t.flatten() for t in summed(faulty.ClipAfterAverage, 10.0)])
    assert whole.norm().item() == pytest.approx(16.0, rel=1e-4)


# --- Correlated noise has the size and the correlation that its name says.


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (faulty.NoiseFollowsNoise, 0.4),
        (faulty.NoiseOpposesNoise, -0.6),
        (faulty.NoiseCancels, -0.5),
    ],
)
def test_a_part_of_the_noise_is_that_of_the_step_before(kind, part):
    before, now, _ = (flat(drawn) for drawn in added(kind, steps=4)[1:])
    assert torch.corrcoef(torch.stack([before, now]))[0, 1].item() == pytest.approx(part, abs=0.05)


@pytest.mark.parametrize(
    ("kind", "factor"), [(faulty.BandedNoise, 1.0), (faulty.HalfBandedNoise, 0.5)]
)
def test_banded_noise_is_the_sum_of_its_draws_by_their_weights(kind, factor):
    steps = [flat(tensors) for tensors in added(kind, steps=6)]
    first, second, third = (factor * weight for weight in faulty.COEFFICIENTS)
    draws: list[torch.Tensor] = []
    for step in steps:  # the draws, by the definition of the noise
        known = [*reversed(draws), torch.zeros_like(step), torch.zeros_like(step)]
        draws.append((step - second * known[0] - third * known[1]) / first)
    for draw in draws:
        assert draw.std().item() == pytest.approx(1.0, rel=0.05)
    for i, draw in enumerate(draws):
        for other in draws[:i]:
            assert abs(torch.corrcoef(torch.stack([draw, other]))[0, 1].item()) < 0.06


# --- What is added is what the name of a fault says, measured on Opacus' own optimizer.

BATCH = 16


@pytest.mark.parametrize(
    ("kind", "settings", "size", "rel"),
    [
        # 5,898 draws: a relative error of 0.01.
        (faulty.HalfNoise, {}, 0.5, 0.05),
        (faulty.NoNoise, {}, 0.0, 0.05),
        (faulty.NoiseOverBatch, {}, 1 / BATCH, 0.05),
        (faulty.NoiseTimesBatch, {}, BATCH, 0.05),
        (faulty.NoiseOfSquaredNorm, {"max_grad_norm": 0.5}, 0.25, 0.05),
        (faulty.NoiseOfSquaredMultiplier, {"noise_multiplier": 0.5}, 0.25, 0.05),
        (faulty.UniformNoise, {}, 1.0, 0.05),
        (faulty.NoiseFollowsNoise, {}, 1.0, 0.05),
        (faulty.NoiseOpposesNoise, {}, 1.0, 0.05),
        (faulty.NoiseTakenBack, {}, 1.0, 0.05),
        (faulty.NoiseCancels, {}, 1.0, 0.05),
        # Of which a tile leaves 300 or so.
        (faulty.OwnNoise, {}, 1.0, 0.15),
        (faulty.TiledNoise, {}, 1.0, 0.15),
        (faulty.MirroredNoise, {}, 1.0, 0.15),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_noise_has_its_faults_size(kind, settings, size, rel):
    for drawn in added(kind, steps=3, **settings):
        assert flat(drawn).std().item() == pytest.approx(size, rel=rel)


#: Faults that read numbers or seed a generator, which torch's "meta" device does not have.
READ = (
    *("same_noise_at_every_step", "noise_in_a_cycle", "few_seeds", "one_key_for_all_tensors"),
    *("noise_of_a_pool", "noise_seeded_by_gradients"),
)
PLANTED = {
    name: fault
    for name, fault in FAULTS.items()
    if fault.optimizer is not None and not issubclass(fault.optimizer, KINDS)
}


@pytest.mark.parametrize("name", sorted({*PLANTED} - {*READ}))
def test_a_fault_keeps_its_step_on_the_device_of_the_parameters(name):
    shapes = ((8, 4), (8,), (6, 8))
    params = [torch.nn.Parameter(torch.zeros(shape, device="meta")) for shape in shapes]
    optimizer = DPOptimizer(
        torch.optim.SGD(params, lr=0.1),
        noise_multiplier=0.5,
        max_grad_norm=0.5,
        expected_batch_size=4,
    )
    PLANTED[name].apply(optimizer)
    for p in params:
        p.grad_sample = torch.zeros(5, *p.shape, device="meta")
    optimizer.clip_and_accumulate()  # another device's tensor among these raises
    optimizer.add_noise()
    optimizer.scale_grad()
    assert {p.grad.device.type for p in params} == {"meta"}
