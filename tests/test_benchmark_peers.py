"""Our half of the comparison with other libraries; theirs needs environments of their own."""

import numpy as np
import pytest
from benchmark_modules import benchmarks

#: Those whose 25 digits take a second or two.
QUICK = ("35+25 errors of 100+100, .975", "peer's README (0, 487, 512, 1), .05")


@pytest.fixture
def peers():
    with benchmarks() as load:
        yield load("peers")


@pytest.mark.nightly
def test_quantiles_are_right_to_1e_9(peers):
    cases = peers.cases()
    errors = {name: peers.our_quantile(cases[name])["error"] for name in QUICK}
    assert {name: error for name, error in errors.items() if not error <= 1e-9} == {}


def test_the_pruned_maximum_is_the_maximum_of_every_quantile(peers):
    found = peers.all_thresholds(30)
    assert found["thresholds"] == 61
    assert found["maximum is that of every quantile"]


@pytest.mark.nightly
def test_without_environments_our_half_runs_and_the_result_says_so(peers, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(peers.sys, "executable", str(tmp_path / "no-python"))
    case = peers.cases()["35+25 errors of 100+100, .025"]
    monkeypatch.setattr(peers, "cases", lambda: {"one": case})
    results = peers.run(seeds=3, sizes=(40,))
    peer_of = {"quantile": "privacy-estimates", "one run": "jax-privacy", "bounds": "jax-privacy"}
    for part, peer in peer_of.items():
        assert results[f"{part}: unavailable"].startswith(f"no environment of {peer}==")
    assert results["quantile: holds: quantile right to 1e-9"]
    assert results["bounds: epsilon 4, n 40: ours, CP, fixed"]["missed"] == 0
    assert not any("less tight" in name for name in results)
    assert not (tmp_path / "environments").exists() or not any(
        (tmp_path / "environments").iterdir()
    )


def test_every_method_of_the_peer_is_compared_with_one_of_equal_assumptions(peers):
    assert set(peers.OURS) == set(peers.our_methods(0.0))
    for assumption, threshold, _, counterpart in peers.THEIRS.values():
        if counterpart is not None:
            assert peers.OURS[counterpart] == (assumption, threshold)


def test_a_larger_bound_of_the_peer_is_reported(peers, monkeypatch, tmp_path):
    theirs = {"values": [9.0, None, 9.0], "ms": 1.0}
    game = dict.fromkeys(("CP, split", "CP, hull", "one run f-DP, split"), theirs)
    answer = {"version": "0", "results": {"epsilon 4, n 40": game}}
    monkeypatch.setattr(peers, "peer_results", lambda peer, data: answer)
    results = peers.tightness([(4.0, 40)], 3, tmp_path)
    assert list(results["peer tighter, its bound proved"]) == ["epsilon 4, n 40, CP, split"]
    assert list(results["peer tighter, its bound not proved"]) == [
        "epsilon 4, n 40, CP, hull",
        "epsilon 4, n 40, one run f-DP, split",
    ]
    assert not results["holds: nothing less tight at equal validity"]
    row = results["epsilon 4, n 40: jax-privacy, CP, split"]
    assert row["tightness"] == 2.25
    assert row["missed"] == pytest.approx(2 / 3, abs=1e-3)
    assert np.load(tmp_path / "scores.npz")["epsilon 4, n 40/in"].shape == (3, 40)


def test_bounds_of_one_run_are_compared_by_value_and_time(peers, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "GUESSES", ((1000, 20, 20),))
    name = "1000 canaries, 20 of 20 correct"
    answer = {"results": {name: {"f-DP": {"value": 2.36337, "ms": 1e6}}}}
    monkeypatch.setattr(peers, "peer_results", lambda peer, data: answer)
    results = peers.one_runs(tmp_path)
    assert results[f"{name}: f-DP"]["ours"] == 2.36337
    assert results[f"{name}: Steinke"]["ours"] == 1.79128
    assert results["ratio of times of f-DP, smallest"] >= 20
    assert results["holds: f-DP at least 20 times as fast"]
    assert results["holds: the same bounds to 1e-5"]
    answer["results"][name]["f-DP"]["value"] = 2.4
    assert not peers.one_runs(tmp_path)["holds: the same bounds to 1e-5"]
