from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stages import staged

from lightning_audit.cli.main import main
from lightning_audit.stats.epsilon_star import (
    Empirical,
    Parametric,
    epsilon_star,
    epsilon_star_null,
)

COMMAND = Path(sysconfig.get_path("scripts")) / "lightning-audit"
RNG = np.random.default_rng(1)
TRAIN, POPULATION = RNG.gamma(5, 1, 400), RNG.gamma(6, 1, 300)


@pytest.fixture
def npz(tmp_path: Path) -> str:
    np.savez(tmp_path / "losses.npz", losses_train=TRAIN, losses_population=POPULATION)
    return str(tmp_path / "losses.npz")


def as_csv(path: Path, rows: list[tuple[object, object]], header: str = "side,loss") -> str:
    path.write_text("\n".join([header, *(f"{side},{loss}" for side, loss in rows)]) + "\n")
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["epsilon-star", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "method"),
    staged(
        quick=[
            ((), Empirical(clip=0.001)),
            (("--clip", 0.05), Empirical(clip=0.05)),
            (("--components", 1), Parametric(clip=0.001)),
        ],
        heavy=[(("--components", 2, "--clip", 0.01), Parametric(clip=0.01, components=2))],
    ),
)
def test_it_prints_the_librarys_own_numbers(npz, capsys, options, method) -> None:
    told = answer(capsys, npz, "--delta", 1e-3, "--permutations", 19, "--seed", 4, *options)
    star = epsilon_star(TRAIN, POPULATION, 1e-3, method)
    rng = np.random.default_rng(4)
    null = epsilon_star_null(TRAIN, POPULATION, 1e-3, method, permutations=19, rng=rng)
    assert told["value"] == star.value > 0
    assert (told["threshold"], told["inequality"]) == (star.threshold, star.inequality)
    assert told["null"]["p_value"] == null.p_value
    assert told["null"]["quantile_95"] == null.quantile_95
    assert (told["n_train"], told["n_population"]) == (400, 300)
    assert "not a bound" in told["interpretation"]


def test_a_table_gives_what_the_arrays_give(npz, tmp_path, capsys) -> None:
    rows = [("population", x) for x in POPULATION] + [("train", x) for x in TRAIN]
    table = as_csv(tmp_path / "losses.csv", rows)
    options = ("--delta", 1e-3, "--permutations", 9)
    assert answer(capsys, table, *options) == answer(capsys, npz, *options)


def test_the_text_says_that_it_is_no_bound_and_what_no_difference_reads(npz, capsys) -> None:
    assert main(["epsilon-star", npz, "--delta", "1e-3", "--permutations", "99"]) == 0
    text = capsys.readouterr().out
    value = epsilon_star(TRAIN, POPULATION, 1e-3, Empirical(clip=0.001)).value
    assert text.startswith(f"epsilon* {value:.6g} at delta 0.001 and clip 0.001, 400 training")
    assert "under random permutations: median" in text
    assert "not a bound on the epsilon of its training" in text


# Sides that a threshold separates: none of the losses in the denominator's rate is left.
SEPARATED = [*[("train", i / 100) for i in range(50)], *[("population", 1 + i) for i in range(80)]]
SWAPPED = [("population" if side == "train" else "train", loss) for side, loss in SEPARATED]


@pytest.mark.parametrize(
    ("rows", "clip", "decided_by", "words"),
    [
        (SEPARATED, 0.001, "one loss", "of the 80 losses of the population is up to"),
        (SWAPPED, 0.001, "one loss", "at most 1 of the 80 training losses is up to"),
        (SEPARATED, 0.1, "clip", "the clip decides the value, not the losses: another clip"),
        (SWAPPED, 0.1, "clip", "the clip decides the value, not the losses: another clip"),
    ],
)
def test_a_value_that_one_loss_or_the_clip_decides_says_so(
    tmp_path, capsys, rows, clip, decided_by, words
) -> None:
    table = as_csv(tmp_path / "l.csv", rows)
    options = (table, "--delta", "0", "--permutations", "9", "--clip")
    assert main(["epsilon-star", *options, str(clip)]) == 0
    text = capsys.readouterr().out
    assert words in text
    assert ("one loss decides" in text) != ("the clip decides" in text)
    told = answer(capsys, *options, clip)
    assert (told["at_clip"], told["decided_by"]) == (True, decided_by)
    # What is said of another clip is so.
    halved = answer(capsys, *options, clip / 2)["value"]
    assert (halved == told["value"]) == (decided_by == "one loss")


def test_a_value_that_the_losses_decide_says_nothing_of_a_limit(npz, capsys) -> None:
    options = (npz, "--delta", "0.01", "--permutations", "9", "--clip", "0.001")
    told = answer(capsys, *options)
    assert (told["at_clip"], told["decided_by"]) == (False, None)
    assert main(["epsilon-star", *options]) == 0
    assert "decides" not in capsys.readouterr().out


def test_a_fit_knows_no_limit_but_the_clip(npz, capsys) -> None:
    options = (npz, "--delta", 0, "--clip", 1e-6, "--components", 1, "--permutations", 3)
    assert answer(capsys, *options)["decided_by"] == "clip"


def test_infinity_is_written_as_json_can(npz, capsys) -> None:
    options = ("--delta", 0, "--clip", 0, "--components", 1, "--permutations", 3)
    assert answer(capsys, npz, *options)["value"] == "inf"


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("train", 1)], "side,loss", "losses_population=[] must hold at least one loss"),
        ([("train", 1), ("test", 2)], "side,loss", "line 3 has side='test'; it must be"),
        (
            [("train", "low")],
            "side,loss",
            "line 2 has loss='low', which is not a number; it must be",
        ),
        ([("train", 1)], "split,loss", "its columns are ['split', 'loss']; it must be"),
        (
            [("train", "nan"), ("population", 1)],
            "side,loss",
            "line 2 has loss='nan', which is not a number; it",
        ),
    ],
)
def test_wrong_tables_say_what_they_must_hold(tmp_path, capsys, rows, header, message) -> None:
    table = as_csv(tmp_path / "l.csv", rows, header)
    assert main(["epsilon-star", table, "--delta", "0.1"]) == 2
    error = capsys.readouterr().err.replace("); it must be", "; it must be")
    assert message in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--delta", "1"), "delta=1.0 must be in (0, 1)"),
        (("--delta", "0.1", "--clip", "0.5"), "clip=0.5 must be in [0, 0.5)"),
    ],
)
def test_wrong_arguments_name_themselves(npz, capsys, options, message) -> None:
    assert main(["epsilon-star", npz, *options]) == 2
    assert message in capsys.readouterr().err


def test_arrays_of_other_names_are_refused(tmp_path, capsys) -> None:
    np.savez(tmp_path / "s.npz", train=np.ones(3))
    assert main(["epsilon-star", str(tmp_path / "s.npz"), "--delta", "0.1"]) == 2
    assert "holds ['train']; it must be an .npz with" in capsys.readouterr().err


def test_the_installed_command_has_it(npz) -> None:
    command = [str(COMMAND), "epsilon-star", npz, "--delta", "1e-3", "--permutations", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("epsilon* ")
