from __future__ import annotations

import dataclasses

import pytest
from verdicts_told import FAULTS, VIOLATION

from lightning_audit.results.audit_report import EXIT_CODES, LikelyFault, Place, Verdict, describe


def test_the_first_fault_gives_the_verdict_its_sentence() -> None:
    assert VIOLATION.fault == FAULTS[0].sentence
    assert dataclasses.replace(VIOLATION, summary="longer").faults == FAULTS
    with pytest.raises(ValueError, match="fault='another' must be 'the noise is divided"):
        Verdict("VIOLATION", "mechanism", "", fault="another", faults=FAULTS)


def test_another_place_is_told_of_a_second_fault_and_the_same_one_is_not() -> None:
    second = dataclasses.replace(FAULTS[1], place=Place(("c.weight",), 3))
    told = describe(dataclasses.replace(VIOLATION, faults=(FAULTS[0], second)))
    assert "Also possible: no noise (`c.weight`, first seen in step 4)" in told
    same = dataclasses.replace(second, place=FAULTS[0].place)
    told = describe(dataclasses.replace(VIOLATION, faults=(FAULTS[0], same)))
    assert "Also possible: no noise\n" in told


def test_long_places_and_tables_are_cut_to_five() -> None:
    names = tuple(f"w{i}" for i in range(7))
    fault = LikelyFault("a", "b", "c", "", {"r": dict.fromkeys(names, 0.5)}, Place(names))
    told = describe(Verdict("VIOLATION", None, "s", faults=(fault,)))
    assert "  Where: `w0`, `w1`, `w2`, `w3`, `w4` and 2 more\n" in told
    assert told.endswith("  Evidence: r (w0 0.5, w1 0.5, w2 0.5, w3 0.5, w4 0.5, ...)")


def test_the_exit_codes_are_those_of_the_documented_gate() -> None:
    assert dict(EXIT_CODES) == {"PASS": 0, "VIOLATION": 1, "INCONCLUSIVE": 2}
    for outcome, code in EXIT_CODES.items():
        assert Verdict(outcome, None, "").exit_code == code


def test_a_verdict_is_described_in_all_its_parts() -> None:
    assert describe(VIOLATION).splitlines() == [
        "VIOLATION (mechanism): the noise is smaller than claimed",
        "Likely fault: the noise is divided by the batch size",
        "  Where: optimizer 2, `a.bias`, `b.bias`, process 1, first seen in step 13",
        "  Evidence: sd_ratio 0.0163, of (a 0.5, b inf), canaries Dirac(a)",
        "Also possible: no noise",
        "Next: look at add_noise",
    ]
    unadvised = describe(dataclasses.replace(VIOLATION, advice="")).splitlines()
    assert unadvised[-2:] == ["  Look at: where the noise is added", "Also possible: no noise"]
    old = Verdict("VIOLATION", "mechanism", "too small", fault="no noise")
    assert describe(old).splitlines() == [
        "VIOLATION (mechanism): too small",
        "Likely fault: no noise",
    ]
    lacking = Verdict("INCONCLUSIVE", None, "too short", pass_blockers=("steps", "a claim"))
    assert describe(lacking).splitlines() == [
        "INCONCLUSIVE: too short",
        "Missing: steps",
        "Missing: a claim",
    ]


def test_what_follows_from_the_root_is_one_line_and_a_further_finding_another() -> None:
    root = dataclasses.replace(FAULTS[1], consequences=("noise.shape", "reuse.lag"))
    further = LikelyFault(
        "not_poisson", "wrong sampling", "sampling.not_poisson", "the loader", {}, Place(step=3)
    )
    again = dataclasses.replace(further, name="other", sentence="another loader")
    verdict = Verdict("VIOLATION", "mechanism", "s", faults=(root, further, again, FAULTS[0]))
    assert (verdict.root, verdict.further) == (root, (further,))
    assert describe(verdict).splitlines() == [
        "VIOLATION (mechanism): s",
        "Likely fault: no noise",
        "  Follows from it: noise.shape, reuse.lag",
        "Also possible: the noise is divided by the batch size "
        "(optimizer 2, `a.bias`, `b.bias`, process 1, first seen in step 13)",
        "Also: sampling.not_poisson: wrong sampling (first seen in step 4); look at: the loader",
    ]


def test_a_pass_has_no_root() -> None:
    verdict = Verdict("PASS", None, "s")
    assert (verdict.root, verdict.further) == (None, ())
