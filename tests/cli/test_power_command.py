from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_audit.checks.noise import NOISE_CANARY
from lightning_audit.cli import estimators
from lightning_audit.cli.main import main
from lightning_audit.stats.power import bound_power, noise_power, sensitivity_power
from lightning_audit.stats.tradeoff import gaussian_mu

CLAIM = ("--claimed-epsilon", "4", "--true-epsilon", "6", "--delta", "1e-5")
CLAIMED, TRUE = gaussian_mu(4.0, 1e-5), gaussian_mu(6.0, 1e-5)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["power", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_number_of_steps_is_the_first_with_the_power(capsys) -> None:
    told = answer(capsys, *CLAIM, "--canaries", "4", "--target", "0.9")
    tests = {test["name"]: test for test in told["tests"]}
    noise, shift = tests["audit: noise.canary"], tests["audit: sensitivity"]
    assert noise["significance"] == NOISE_CANARY.share * 1e-3
    for test, power in (
        (noise, lambda n: noise_power(4, n, CLAIMED / TRUE, 0.0, noise["significance"])),
        (
            shift,
            lambda n: sensitivity_power(4, n, TRUE / CLAIMED, 1 / CLAIMED, shift["significance"]),
        ),
    ):
        assert test["observations"] == 4 * test["steps"]
        assert power(test["steps"]) >= 0.9 > power(test["steps"] - 1)
    for method in ("fdp_pooled_cp", "fdp_cp", "fdp_bayes"):
        n = tests[f"bound: {method}"]["observations"] // 2
        assert bound_power(method, CLAIMED, TRUE, n) >= 0.9
        assert bound_power(method, CLAIMED, TRUE, n - 1) < 0.9
    assert (told["mu_claimed"], told["mu_true"]) == (CLAIMED, TRUE)


@pytest.mark.heavy
def test_too_small_a_noise_shows_soonest_in_the_noise(capsys) -> None:
    told = answer(capsys, "--claimed-epsilon", "1.27", "--true-epsilon", "1.57", "--delta", "1e-5")
    needed = {test["name"]: test["observations"] for test in told["tests"]}
    bounds = [n for name, n in needed.items() if name.startswith("bound")]
    assert 15 * needed["audit: noise.canary"] < min(bounds)


def test_what_cannot_be_told_is_said(capsys, monkeypatch) -> None:
    monkeypatch.setattr(estimators, "_LIMIT", 500)
    command = ("--claimed-epsilon", "1", "--true-epsilon", "1.1", "--delta", "1e-5")
    told = answer(capsys, *command, "--significance", "0.001")
    assert [(t["observations"], t["steps"]) for t in told["tests"]] == [(None, None)] * 5
    assert main(["power", *command]) == 0
    assert capsys.readouterr().out.count("> 500") == 5


def test_the_text_and_the_plot_are_written(tmp_path, capsys) -> None:
    path = tmp_path / "power.png"
    assert main(["power", *CLAIM, "--plot", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("claim epsilon 4, truth 6 at delta 1e-05 (mu 0.92493")
    assert all(name in text for name in ("audit: noise.canary", "bound: fdp_bayes", "a data term"))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--true-epsilon", "4"), "true_epsilon=4.0 must exceed claimed_epsilon=4.0"),
        (("--claimed-epsilon", "0"), "claimed_epsilon=0.0 must be a finite number > 0"),
        (("--delta", "0"), "delta=0.0 must be in (0, 1)"),
        (("--target", "1"), "target=1.0 must be in (0, 1)"),
        (("--canaries", "0"), "canaries=0 must be a whole number >= 1"),
        (("--significance", "0.3"), "significance=0.3 must be in (0, 1/4]"),
        (("--audit-significance", "0"), "significance=0.0 must be in (0, 1)"),
        (("--plot", "power.txt"), "plot='power.txt' must end in one of .png, .svg, .pdf"),
        (("--plot", "no/such/folder.png"), "plot='no/such/folder.png' must be a file in a folder"),
    ],
)
def test_wrong_arguments_name_themselves(capsys, arguments, message) -> None:
    assert main(["power", *CLAIM, *arguments]) == 2
    assert message in capsys.readouterr().err
