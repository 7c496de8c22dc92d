from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_audit.cli.main import main
from lightning_audit.stats.attack_strength import attack_counts, attack_strength_posterior
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior

COUNTS = {
    "false_negatives": [25, 15, 6],
    "n_in": 100,
    "false_positives": [4, 6, 20],
    "n_out": [100, 100, 100],
    "delta": 0.01,
}


def written(directory: Path, **changes: Any) -> str:
    content = {k: v for k, v in {**COUNTS, **changes}.items() if v is not None}
    (directory / "counts.json").write_text(json.dumps(content))
    return str(directory / "counts.json")


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["mcmc", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_prints_the_librarys_own_posterior(tmp_path, capsys) -> None:
    told = answer(capsys, written(tmp_path), "--significance", 0.2)
    posterior = attack_strength_posterior(attack_counts([25, 15, 6], 100, [4, 6, 20], 100), 0.01)
    assert told["epsilon_mean"] == posterior.epsilon.mean
    assert told["epsilon_interval"] == list(posterior.epsilon.interval(0.2))
    assert told["strength_interval"] == list(posterior.strength.interval(0.2))
    assert (told["delta"], told["attacks"], told["cluster"], told["tau"]) == (0.01, 3, None, None)
    assert "not a bound" in told["interpretation"]


def test_the_options_outweigh_the_file(tmp_path, capsys) -> None:
    path = written(tmp_path, cluster=100)
    told = answer(
        capsys, path, "--delta", 0.02, "--cluster", 50, "--epsilon-variance", 4,
        "--strength-shapes", 2, 3,
    )  # fmt: skip
    found = correlated_attack_posterior(
        attack_counts([25, 15, 6], 100, [4, 6, 20], 100),
        0.02,
        50,
        epsilon_variance=4.0,
        strength_shapes=(2.0, 3.0),
    )
    assert told["epsilon_mean"] == pytest.approx(found.joint.epsilon.mean)
    assert (told["tau"], told["rho"]) == (list(found.tau), list(found.rho))
    assert (told["delta"], told["cluster"]) == (0.02, 50)


def test_groups_are_pooled_before(tmp_path, capsys) -> None:
    told = answer(capsys, written(tmp_path, groups=["a", "b", "a"]))
    pooled = attack_counts([31, 15], [200, 100], [24, 6], [200, 100])
    found = correlated_attack_posterior(pooled, 0.01, 100)
    assert told["epsilon_interval"] == pytest.approx(list(found.joint.epsilon.interval(0.1)))
    assert (told["attacks"], told["cluster"]) == (2, 100)


def test_the_text_says_what_the_numbers_are(tmp_path, capsys) -> None:
    assert main(["mcmc", written(tmp_path, cluster=100)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("epsilon ")
    assert "90 % credible interval (" in text
    assert "3 attacks, decisions correlated in clusters of 100" in text
    assert "\ntau " in text
    assert "not a bound" in text


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"delta": None}, (), "has no delta; add it, or pass --delta"),
        ({"n_in": None}, (), "it must be a JSON object with the lists false_negatives"),
        ({"notes": "x"}, (), "holds ['notes'], which are unknown"),
        ({"n_in": 20}, (), "false_negatives=25 must be at most n_in=20"),
        ({"false_positives": [0.1, 0.2, 0.3]}, (), "must hold whole numbers >= 0"),
        (
            {"false_negatives": [1, 2]},
            (),
            "false_negatives has shape (2,) and false_positives (3,)",
        ),
        (
            {"false_positives": [10]},
            (),
            "holds lists of lengths {'false_negatives': 3, 'false_positives': 1, 'n_out': 3}, one",
        ),
        ({"groups": [1, 2]}, (), "groups has shape (2,), must be (3,)"),
        ({}, ("--delta", "1"), "delta=1.0 must be in (0, 1)"),
        ({}, ("--cluster", "101"), "cluster=101 must be between 2 and"),
        ({}, ("--significance", "0"), "significance=0.0 must be in (0, 1)"),
    ],
)
def test_what_is_wrong_names_itself(tmp_path, capsys, changes, options, message) -> None:
    assert main(["mcmc", written(tmp_path, **changes), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "[1, 2]", "{"])
def test_files_that_are_no_object_are_refused(tmp_path, capsys, content) -> None:
    path = tmp_path / "counts.json"
    if content is not None:
        path.write_text(content)
    assert main(["mcmc", str(path)]) == 2
    assert "it must be a JSON object" in capsys.readouterr().err
