"""What a user allows has a scope and a reason, and covers nothing else."""

from __future__ import annotations

import pytest

from lightning_audit import Allow, PrivacyAudit
from lightning_audit.verdict.allow import covers

WHY = "it sees no record"


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (1, True),
        ("1", True),
        (0, False),
        ("Adam", True),
        ("SGD", False),
        ("G", True),
        ("G.0", False),
    ],
)
def test_an_optimizer_is_named_by_place_class_or_prefix(optimizer, expected):
    allowed = Allow("no_dp", optimizer=optimizer, reason=WHY)
    assert allowed.is_of(1, "Adam", ["G.0.weight", "G.1.weight"]) == expected


def test_a_prefix_is_whole_names_and_of_all_parameters():
    allowed = Allow("no_dp", optimizer="net", reason=WHY)
    assert not allowed.is_of(0, "SGD", ["network.weight"])
    assert not allowed.is_of(0, "SGD", ["net.weight", "head.weight"])
    assert not allowed.is_of(0, "SGD", [])


def test_parameters_are_named_by_a_pattern():
    allowed = [Allow("unaudited", parameters="average.*", reason=WHY)]
    assert covers(allowed, "average.weight")
    assert not covers(allowed, "net.average.weight")
    assert not covers([Allow("no_dp", optimizer="average", reason=WHY)], "average.weight")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"finding": 3, "reason": WHY}, "finding=3 must be the name of a finding"),
        ({"finding": "no_dp", "reason": WHY, "optimizer": -1}, "optimizer=-1 must be a name"),
        ({"finding": "no_dp", "reason": WHY, "optimizer": " "}, "optimizer=' ' must be a name"),
        ({"finding": "no_dp"}, "reason='' must say why 'no_dp' is no fault here"),
        ({"finding": "no_dp", "reason": " "}, "reason=' ' must say why"),
        ({"finding": "no_dp", "reason": WHY, "optimizer": ""}, "optimizer='' must be a name"),
        ({"finding": "no_dp", "reason": WHY, "parameters": "a"}, "parameters='a' must be left out"),
        (
            {"finding": "unaudited", "reason": WHY, "parameters": "a", "optimizer": "b"},
            "optimizer='b' must be left out",
        ),
    ],
)
def test_what_is_no_exemption_is_refused_in_words(given, told):
    with pytest.raises(ValueError, match="must") as raised:
        Allow(**given)
    assert told in str(raised.value)


def test_a_finding_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="allow holds 'no_noise'"):
        PrivacyAudit(allow=[Allow("no_noise", reason=WHY)])


def test_without_a_scope_it_is_allowed_everywhere_and_keeps_its_reason():
    config = PrivacyAudit(allow=["accounting", Allow("sampling.rate", reason=WHY)]).config
    assert config.allow == ("accounting", "sampling.rate")
    assert [one.reason for one in config.exemptions] == [WHY]


@pytest.mark.parametrize("finding", ["accounting", "sampling.not_poisson", "replay.clipping"])
def test_a_finding_of_the_run_is_of_no_optimizer(finding):
    with pytest.raises(ValueError, match="leave optimizer out"):
        PrivacyAudit(allow=[Allow(finding, optimizer="G", reason=WHY)])


def test_what_changes_unaudited_is_of_parameters():
    with pytest.raises(ValueError, match="name the parameters"):
        PrivacyAudit(allow=[Allow("unaudited", optimizer="G", reason=WHY)])


@pytest.mark.parametrize("allow", [5, None, {"no_dp": "why"}])
def test_what_is_no_list_of_findings_is_refused(allow):
    with pytest.raises(ValueError, match="must be a list of names"):
        PrivacyAudit(allow=allow)
