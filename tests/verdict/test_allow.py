"""What a user allows has a scope and a reason, and covers nothing else."""

import pytest

from lightning_audit import Allow, PrivacyAudit
from lightning_audit.verdict.allow import covers

WHY = "it sees no record"


PRIVATE = (1, "Adam", ["G.0.weight", "G.1.weight"])


@pytest.mark.parametrize(
    ("optimizer", "of", "expected"),
    [
        *((name, PRIVATE, True) for name in (1, "1", "Adam", "G")),
        *((name, PRIVATE, False) for name in (0, "SGD", "G.0")),
        # A prefix is whole names, and of all parameters.
        ("net", (0, "SGD", ["network.weight"]), False),
        ("net", (0, "SGD", ["net.weight", "head.weight"]), False),
        ("net", (0, "SGD", []), False),
    ],
)
def test_an_optimizer_is_named_by_place_class_or_prefix(optimizer, of, expected):
    assert Allow("no_dp", optimizer=optimizer, reason=WHY)._is_of(*of) == expected


def test_parameters_are_named_by_a_pattern():
    allowed = [Allow("unaudited", parameters="average.*", reason=WHY)]
    assert covers(allowed, "average.weight")
    assert not covers(allowed, "net.average.weight")
    assert not covers([Allow("no_dp", optimizer="average", reason=WHY)], "average.weight")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"finding": 3}, "finding=3 must be the name of a finding"),
        ({"optimizer": -1}, "optimizer=-1 must be a name"),
        ({"optimizer": " "}, "optimizer=' ' must be a name"),
        ({"optimizer": ""}, "optimizer='' must be a name"),
        ({"reason": ""}, "reason='' must say why 'no_dp' is no fault here"),
        ({"reason": " "}, "reason=' ' must say why"),
        ({"parameters": "a"}, "parameters='a' must be left out"),
        ({"finding": "unaudited", "parameters": "a", "optimizer": "b"}, "optimizer='b' must be"),
    ],
)
def test_what_is_no_exemption_is_refused_in_words(given, told):
    with pytest.raises(ValueError, match="must") as raised:
        Allow(**{"finding": "no_dp", "reason": WHY, **given})
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("finding", "scope", "told"),
    [
        ("no_noise", {}, "allow holds 'no_noise'"),
        *(
            (name, {"optimizer": "G"}, "leave optimizer out")  # a finding of the run
            for name in ("accounting", "sampling.not_poisson", "replay.clipping")
        ),
        ("unaudited", {"optimizer": "G"}, "name the parameters"),
    ],
)
def test_a_finding_that_there_is_not_or_not_in_this_scope_is_refused(finding, scope, told):
    with pytest.raises(ValueError, match=told):
        PrivacyAudit(allow=[Allow(finding, reason=WHY, **scope)])


def test_without_a_scope_it_is_allowed_everywhere_and_keeps_its_reason():
    config = PrivacyAudit(allow=["accounting", Allow("sampling.rate", reason=WHY)]).config
    assert config.allow == ("accounting", "sampling.rate")
    assert [one.reason for one in config.exemptions] == [WHY]


@pytest.mark.parametrize("allow", [5, None, {"no_dp": "why"}])
def test_what_is_no_list_of_findings_is_refused(allow):
    with pytest.raises(ValueError, match="must be a list of names"):
        PrivacyAudit(allow=allow)
