"""A session reads its canaries, leaves none, and goes on with another optimizer or after a stop."""

from typing import Any

import numpy as np
import pytest
import torch
from bare_session import BareByHand, BareSession
from opacus import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from torch import nn

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Dirac, Mislabeled
from lightning_audit.dpsgd.opacus import OpacusStep
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.session.begin import begin_session
from lightning_audit.session.entrances import GradientRows, InputSample
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


@pytest.mark.parametrize("announced", [True, False])
def test_what_is_read_is_the_coin_and_the_update_has_nothing_of_it(announced):
    bare = BareSession()
    before = [p.detach().clone() for p in bare.net.parameters()]
    bare.train(20, announced=announced)
    coins = bare.column("coins")
    assert 0.2 < coins.mean() < 0.8
    np.testing.assert_allclose(bare.column("readings"), coins, atol=1e-6)
    for old, new in zip(before, bare.net.parameters(), strict=True):
        torch.testing.assert_close(old, new.detach(), rtol=0, atol=1e-6)


def test_a_session_that_goes_on_has_the_coins_and_remarks_of_one_without_a_stop():
    whole, first, second = BareSession(), BareSession(), BareSession()
    whole.train(12, announced=False)
    first.train(7, announced=False)
    second.session.load(first.session.state())
    torch.manual_seed(1)  # or its noise would start again
    second.train(5, announced=False)
    parts = np.concatenate([first.column("coins"), second.column("coins")])
    np.testing.assert_array_equal(parts, whole.column("coins"))
    assert second.session.recorder.steps == 12
    assert second.session.planner.notes == whole.session.planner.notes
    assert second.session.releases.late == whole.session.releases.late == 12


def test_another_runs_canaries_are_refused():
    state = BareSession().session.state()
    with pytest.raises(ValueError, match="resume with the same canaries, num_canaries and preci"):
        BareSession(canaries=(Dirac(),)).session.load(state)


def test_a_parameter_without_per_sample_gradients_is_named_before_opacus_raises():
    bare = BareSession()
    bare.backward()
    next(iter(bare.net.parameters())).grad_sample = None
    with pytest.raises(ValueError, match="Per sample gradient is not initialized"):
        bare.step()
    (said,) = [note for note in bare.session.planner.notes if "per-sample gradient," in note]
    assert "parameter_0 got no per-sample gradient, so that Opacus' step raises" in said


def test_parameters_without_a_gradient_are_named_with_the_first_step_that_has_none():
    bare = BareByHand()
    gradient = bare.clipped_mean(bare.sample_gradients())
    for bias in (gradient["bias"], None, None):
        bare.update({**gradient, "bias": bias})
    assert bare.session.planner.lost_explained
    assert bare.session.planner.missing.startswith(
        "no gradient (`p.grad` is None) for 1 of 2 parameters in step 2 (bias)"
    )


def test_a_new_optimizer_is_followed_over_the_same_parameters_only():
    bare, other = BareSession(), BareSession()
    bare.train(3)
    bare.optimizer = bare.new_optimizer()
    assert not bare.session.follow(OpacusStep(other.optimizer, {}))
    assert bare.session.follow(OpacusStep(bare.optimizer, {}, bare.net.modules()))
    bare.train(3)
    assert bare.session.recorder.steps == 6
    bare.session.detach()
    bare.train(3)
    assert bare.session.recorder.steps == 6


# --- Which parts a session is made of, and that the seed decides where canaries and witnesses lie.


def begun(seed: int = 1, kind: type[DPOptimizer] = DPOptimizer, **arguments: Any) -> AuditSession:
    """A session over one linear layer, with no record."""
    net, more = GradSampleModule(nn.Linear(4, 3)), {}
    if kind is AdaClipDPOptimizer:
        more = {
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 10.0,
            "min_clipbound": 0.1,
            "unclipped_num_std": 2.0,
        }
    plain = torch.optim.SGD(net.parameters(), lr=1.0)
    optimizer = kind(plain, noise_multiplier=1.0, max_grad_norm=2.0, expected_batch_size=4, **more)
    audit = PrivacyAudit(seed=0, **{"canaries": [Dirac()], **arguments})
    rng = np.random.default_rng(seed)
    return begin_session(
        OpacusStep(optimizer, {}), audit.config, rng, lambda batches: None, None, Ranks()
    )


@pytest.mark.parametrize("made", [begun, lambda **a: BareByHand(**a).session])
def test_an_input_canary_comes_in_the_batch_however_the_steps_are_read(made):
    plain = made()
    session = made(canaries=[Mislabeled(sampling_rate=0.25)])
    assert isinstance(session.inserter, InputSample)
    assert type(session.tap) is type(plain.tap)
    header = session.recorder.header
    assert header.canaries == ("Mislabeled(input, sampling_rate=0.25)",)
    assert header.coin_probability == 0.25
    # No coordinate is the canary's own, so that each of a small net's is a witness.
    assert header.witnesses == tuple(p.numel() for p in session.step.params)


def test_one_seed_gives_one_placement_and_one_sequence_of_coins():
    one, same, other = (begun(seed, canaries=[Dirac()] * 2) for seed in (1, 1, 2))
    flips = []
    for session in (one, same, other):
        plans = [session.planner.plan(session.planner._last_claim) for _ in range(16)]
        flips.append([plan.coins.tolist() for plan in plans])
        assert all(plan.located is not None for plan in plans)
    assert flips[0] == flips[1] != flips[2]
    for tensor, index in one.planner.coordinates.by_tensor.items():
        assert index.tolist() == same.planner.coordinates.by_tensor[tensor].tolist()


def test_the_record_is_opened_by_the_header_of_the_session_and_none_is_kept_without():
    assert begun().store is None
    headers: list[RecordHeader] = []
    bare = BareSession()
    session = begin_session(
        bare.session.step,
        bare.session.planner.config,
        np.random.default_rng(1),
        lambda batches: None,
        headers.append,  # gives None: the record cannot be opened
        Ranks(),
        signal=1.5,
    )
    assert (headers, headers[0].signal) == ([session.recorder.header], 1.5)
    assert session.store is None


def test_an_input_canary_is_refused_where_clipping_adapts():
    with pytest.raises(UnauditableTraining, match=r"cannot be taken out again under adaptive"):
        begun(kind=AdaClipDPOptimizer, canaries=[Mislabeled()])
    assert isinstance(begun(kind=AdaClipDPOptimizer).inserter, GradientRows)
