"""What the callback refuses, and which canaries it plans."""

import re

import numpy as np
import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException
from training_support import PrivateModule, assert_no_hooks_left, mlp, trainer_for

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import BlockPair, Constant, Dirac, Random, Spread
from lightning_audit.record.store import INJECTED, NOT_PLANNED

CLAIM = PrivacyClaim(epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize(
    ("arguments", "value", "advice"),
    [
        ({"delta": 0}, "delta=0", "less than one over the number of samples"),
        ({"delta": float("nan")}, "delta=nan", ""),
        ({"claimed_epsilon": 0}, "claimed_epsilon=0", "leave it out"),
        ({"claimed_epsilon": float("inf")}, "claimed_epsilon=inf", ""),
        ({"claimed_epsilon": "8"}, "claimed_epsilon='8'", ""),
        ({"num_canaries": 0}, "num_canaries=0", "an audit needs a canary"),
        ({"num_canaries": 2.5}, "num_canaries=2.5", ""),
        ({"oversize": 0.5}, "oversize=0.5", "below the clipping norm"),
        ({"bounds": ["fdp"]}, "bounds holds 'fdp'; it must hold names of", ""),
        ({"bounds": "fdp_cp"}, "bounds='fdp_cp' must be 'all' or a list; write ['fdp_cp']", ""),
        ({"significance": 0}, "significance=0", "e.g. 0.001"),
        ({"bound_significance": 0}, "bound_significance=0", ""),
        ({"every_n_steps": 0}, "every_n_steps=0", "a whole number >= 1"),
        ({"on_violation": "explode"}, "on_violation='explode'", "'raise', 'stop', 'warn'"),
        ({"on_inconclusive": "stop"}, "on_inconclusive='stop'", ""),
        ({"canaries": []}, "canaries=[]", "leave it out for the default mix"),
        ({"canaries": ["Dirac"]}, "canaries holds 'Dirac'", "lightning_audit.canaries"),
        ({"canaries": [Dirac]}, "canaries holds <class", ""),
        ({"seed": -1}, "seed=-1", ""),
        ({"resolution": {"noise": 0.8}}, "resolution={'noise': 0.8} must be a Resolution; wr", ""),
        ({"claim": {"epsilon": 1.0}}, "claim={'epsilon': 1.0} must be a Priv", ""),
        ({"seed": "one"}, "seed='one'", ""),
        ({"source_in_report": 1}, "source_in_report=1 must be True or False", ""),
    ],
)
def test_argument_out_of_range_is_named_with_its_value(arguments, value, advice):
    with pytest.raises(ValueError, match=re.escape(value)) as raised:
        PrivacyAudit(**arguments)
    assert "must" in str(raised.value)
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "both"),
    [
        ({"claimed_epsilon": 8.0}, ("claimed_epsilon=8.0", "claim.epsilon=3.0")),
        ({"delta": 1e-6}, ("delta=1e-06", "claim.delta=1e-05")),
    ],
)
def test_contradicting_claims_are_both_named(arguments, both):
    with pytest.raises(ValueError, match="give one of them") as raised:
        PrivacyAudit(claim=CLAIM, **arguments)
    assert all(part in str(raised.value) for part in both)


def test_claim_gives_epsilon_and_delta():
    audit = PrivacyAudit(claim=PrivacyClaim(epsilon=3.0, delta=1e-6))
    assert (audit.claimed_epsilon, audit.delta) == (3.0, 1e-6)
    assert PrivacyAudit(3.0, 1e-6, PrivacyClaim(epsilon=3.0, delta=1e-6)).delta == 1e-6


# ------------------------------------------------------------------ refused when training starts


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        (Dirac(tensor="net.9.weight"), "net.0.weight"),
        (Random(tensor="net.9.weight"), "net.0.weight"),
        (Constant(tensor="x"), "net.0.weight"),
        (Dirac(tensor="net.0.weight"), "trainable"),  # which is frozen
    ],
)
def test_canary_in_an_unknown_or_frozen_tensor_is_refused_and_named(tmp_path, canary, words):
    net = mlp()
    net[0].weight.requires_grad_(words == "net.0.weight")
    trainer, module = trainer_for(tmp_path, PrivacyAudit(canaries=[canary])), PrivateModule(net)
    with pytest.raises((ValueError, MisconfigurationException), match=words) as raised:
        trainer.fit(module)
    assert trainer.global_step == 0
    assert f"tensor={canary.tensor!r}" in str(raised.value)
    assert_no_hooks_left(module)


# ------------------------------------------------------------------ planned canaries


def test_canaries_enter_each_nth_step_only(audited):
    report = audited(PrivateModule(), every_n_steps=5, num_canaries=3, steps=32)
    header, entries = audited.record()
    assert len(header.canaries) == 3  # of the default mix
    planned = entries["step"] % 5 == 0
    assert np.array_equal(entries["step"], np.arange(32))
    assert (entries["canaries"][planned] == INJECTED).all()
    assert (entries["canaries"][~planned] == NOT_PLANNED).all()
    assert not entries["coins"][~planned].any()
    assert not entries["readings"][~planned].any()
    assert (entries["tensor_squares"] > 0).all()
    assert report.observations == 7 * 3


def test_custom_canaries_are_used_by_name(audited):
    canaries = [
        Constant(tensor="net.2.weight"),
        Random(moving=True),
        Random(tensor="last_bias"),
        Dirac(tensor="net.0.bias"),
        Spread(moving=True),
        BlockPair(),
    ]
    report = audited(PrivateModule(), canaries=canaries, steps=96)
    assert report.verdict.outcome == "PASS", report.verdict
    header, entries = audited.record()
    assert sorted(header.canaries) == [
        "BlockPair(2 tensors)",
        "Constant(net.2.weight)",
        "Dirac(net.0.bias)",
        "Random(6 tensors, moving)",
        "Random(net.4.bias)",
        "Spread(6 tensors, moving)",
    ]
    assert (entries["canaries"] == INJECTED).all()
    assert report.settings["canaries"] == [repr(canary) for canary in canaries]
    # Each canary is alive: in, it reads one more than out.
    coins, readings = entries["coins"].astype(float), entries["readings"]
    for i, label in enumerate(header.canaries):
        shift = readings[coins[:, i] == 1, i].mean() - readings[coins[:, i] == 0, i].mean()
        assert 0.1 < shift < 1.9, label


def test_the_arguments_that_are_not_at_their_defaults_are_known():
    assert PrivacyAudit().config.given == ()
    audit = PrivacyAudit(
        8.0, delta=None, oversize=1000.0, canaries=[Dirac()], source_in_report=False
    )
    assert audit.config.given == ("claimed_epsilon", "canaries", "source_in_report")
