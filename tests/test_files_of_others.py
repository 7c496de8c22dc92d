"""Whatever a file holds, the command answers: a number, or a message and exit code 2."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutated_files as files
import numpy as np
import pytest
from command_worker import Command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stages import staged

from lightning_audit.cli.main import OWN_FAULT
from lightning_audit.stats.named_bounds import BOUND_NAMES
from lightning_audit.stats.one_run_bounds import ONE_RUN_NAMES

GIGABYTES = 1.0
RNG = np.random.default_rng(0)
SCORES = {"scores_in": RNG.normal(1, 1, 40), "scores_out": RNG.normal(0, 1, 30)}
LOSSES = {"losses_train": RNG.normal(1, 1, 40), "losses_population": RNG.normal(2, 1, 30)}
COINS = RNG.integers(0, 2, (30, 2)).astype(np.uint8)
OBSERVATIONS = {
    "canaries": np.ones(30, np.uint8),
    "coins": COINS,
    "readings": COINS + RNG.normal(0, 1, (30, 2)),
    "header": np.array('{"coin_probability": 0.5}'),
}
COUNTS = {
    "false_negatives": [3, 4],
    "n_in": 20,
    "false_positives": [2, 1],
    "n_out": 20,
    "delta": 0.01,
    "cluster": 5,
    "groups": [1, 2],
}
DEEP = "[" * 100_000
#: In place of an array, what numpy reads and what is nevertheless none of these numbers.
NO_SCORES = [np.array([1.0, np.nan]), np.array([np.inf]), np.array(["1.0"]), np.array(1.0)]
NO_OBSERVATIONS = {
    "canaries": [np.ones((30, 1)), np.ones(29), np.full(30, 7), np.full(30, 0.5), np.array(1)],
    "coins": [COINS[:29], COINS[:, :1], COINS + 1, COINS - 0.5, COINS * np.nan, COINS.ravel()],
    "readings": [COINS[:29] * 1.0, COINS[:, :1] * 1.0, COINS.ravel() * 1.0, COINS > 0],
    "header": [
        *(np.array(text) for text in ("null", DEEP, "{", '{"coin_probability": "half"}', "[1]")),
        np.array('{"coin_probability": ' + "9" * 400 + "}"),
        np.array('{"coin_probability": 2}'),
        *(np.ndarray((), "<U1", np.array([point], "<u4")) for point in (0xD800, 0x110000)),
        np.array(5),
    ],
}
#: Text of an option: what no number is, and numbers at the ends of what there is.
NO_NUMBERS = ["x", "", "1e5x", "\x1b[31m", "\udc80", "--", "1 2"]
ENDS = ["nan", "inf", "-inf", "1e-320", "1e-300", "1e300", "0", "-1", "1", "1e-16", "-0.0", "2"]
ENDS += ["0.9999999999999999", "9" * 400, str(2**63 - 1), str(2**63), "0.5", "1e400"]


@dataclass
class Run:
    """One command on one file, over and over with other bytes."""

    command: Command
    path: Path
    inputs: int

    def each(
        self,
        mutants: st.SearchStrategy[files.Mutant],
        arguments: list[str],
        right: Callable[[bytes], bool],
    ) -> None:
        """Hold the command to what is known of every mutant."""

        def one(mutant: files.Mutant) -> None:
            self.path.write_bytes(mutant.data)
            told = answered(self.command(*arguments))
            if told["code"] == 0:
                assert not mutant.wrong
                assert right(mutant.data)

        self.over(mutants, one)

    def over(self, strategy: st.SearchStrategy[Any], one: Callable[[Any], None]) -> None:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
        settings(max_examples=self.inputs, suppress_health_check=checks)(given(strategy)(one))()


@pytest.fixture(params=staged(quick=[0.05], nightly=[1.0]), ids=["few", "many"])
def share(request):
    """Share of the 2,000 inputs of the nightly run."""
    return request.param


def answered(told: dict[str, Any]) -> dict[str, Any]:
    """What every answer has: a right code, a reason, and nothing that acts on a terminal."""
    assert "Traceback" not in told["err"]
    assert OWN_FAULT not in told["err"]
    assert "more memory than there is" not in told["err"]
    assert told["gigabytes"] < GIGABYTES
    assert told["code"] in (0, 1, 2)
    if told["code"] == 2 and not told["out"]:
        assert told["err"].startswith(("lightning-audit: ", "usage: "))
    for stream in ("out", "err"):
        shown = told[stream].replace("\n", "")
        assert shown.isprintable(), ascii(shown)
    return told


def no_violation(told: dict[str, Any]) -> dict[str, Any]:
    """An answer of a command that is no gate: exit code 1 is a violation's."""
    assert answered(told)["code"] != 1
    return told


def vectors(data: bytes, *names: str) -> bool:
    """Whether numpy reads vectors of finite numbers under these names."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = [file[name] for name in names]
    return all(a.ndim == 1 and a.size and np.isfinite(a.astype(float)).all() for a in arrays)


def observed(data: bytes) -> bool:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        canaries, coins, readings = (file[n] for n in ("canaries", "coins", "readings"))
    fits = coins.shape == readings.shape and canaries.shape == coins.shape[:1]
    return fits and set(coins.ravel().tolist()) <= {0, 1} and set(canaries.tolist()) <= {0, 1, 2, 3}


def table(data: bytes, number: str, side: str) -> bool:
    """Whether every line of a table has a number and one of the sides."""
    sides = ("1", "0", "1.0", "0.0", "true", "false", "train", "population", "01", "00")
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig").replace("#", "\n#")))
    kept = [row for row in rows if not str(row[rows.fieldnames[0]]).startswith("#")]
    return all(str(row[side]).strip().lower() in sides and row[number] for row in kept)


def counted(data: bytes) -> bool:
    held = json.loads(data)
    names = ("false_negatives", "n_in", "false_positives", "n_out")
    return all(isinstance(held[name], list | int) for name in names) and 0 <= held["delta"] < 1


def free(at: tuple[Any, ...]) -> bool:
    """Whether a report may have anything here."""
    return bool({"evidence", "settings"} & set(at))


CP, STAR = ["bound", "--method=eps_cp", "--delta=1e-5"], ["epsilon-star", "--delta=1e-3"]
NO_LOSSES = [np.array([1.0, np.nan]), *NO_SCORES[2:]]
#: Of each file the inputs of the nightly run, the mutants, the command, and what is right.
READ = {
    "scores.npz": (
        *(500, lambda: files.archives(SCORES, dict.fromkeys(SCORES, NO_SCORES)), CP),
        lambda data: vectors(data, *SCORES),
    ),
    "observations.npz": (
        *(500, lambda: files.archives(OBSERVATIONS, NO_OBSERVATIONS)),
        *(["bound", "--method=one_run", "--delta=1e-5"], observed),
    ),
    "losses.npz": (
        *(200, lambda: files.archives(LOSSES, dict.fromkeys(LOSSES, NO_LOSSES))),
        [*STAR, "--permutations=3"],
        lambda data: bool(np.load(io.BytesIO(data))["losses_train"].size),
    ),
    "scores.csv": (
        *(150, lambda: files.tables("score,in", ["1.5,1", "0.5,0"] * 9), CP),
        lambda data: table(data, "score", "in"),
    ),
    "losses.csv": (
        *(150, lambda: files.tables("loss,side", ["1.5,train", "0.5,population"] * 9)),
        [*STAR, "--permutations=3"],
        lambda data: table(data, "loss", "side"),
    ),
    "counts.json": (150, lambda: files.objects(COUNTS, lambda at: False), ["mcmc"], counted),
    "report.json": (
        *(300, lambda: files.objects(files.report(), free), ["check"]),
        lambda data: json.loads(data)["verdict"]["outcome"] == "PASS",
    ),
}


def archived(arrays: dict[str, Any]) -> bytes:
    return files.archive({name: files.npy(array) for name, array in arrays.items()})


#: Without these, commands that refuse everything would be right.
RIGHT = {
    **{"scores.npz": archived(SCORES), "losses.npz": archived(LOSSES)},
    **{"observations.npz": archived(OBSERVATIONS), "scores.csv": b"score,in\n1.5,1\n0.5,0\n"},
    "losses.csv": b"loss,side\n1.5,train\n0.5,population\n",
    "counts.json": json.dumps(COUNTS).encode(),
    "report.json": json.dumps(files.report()).encode(),
}


@pytest.mark.parametrize("name", READ)
def test_a_file_gives_a_number_or_passes_only_if_it_is_one_of_its_kind(
    command, tmp_path, share, name
):
    inputs, mutants, arguments, right = READ[name]
    path = tmp_path / name
    path.write_bytes(RIGHT[name])
    assert command(*arguments, path)["code"] == 0
    Run(command, path, round(inputs * share)).each(mutants(), [*arguments, str(path)], right)


def options_of(tmp_path: Path) -> st.SearchStrategy[list[str]]:
    """Each command with right files, and one option that is no number or at an end."""
    for name, data in RIGHT.items():
        (tmp_path / name).write_bytes(data)
    bound = ["bound", str(tmp_path / "scores.npz"), "--delta=1e-5"]
    power = ["power", "--claimed-epsilon=4", "--true-epsilon=6", "--delta=1e-5"]
    star = ["epsilon-star", str(tmp_path / "losses.npz"), "--delta=1e-3", "--permutations=3"]
    given_to = [
        ([*bound, f"--method={method}", *more], "delta significance threshold guesses max-values")
        for method in (*BOUND_NAMES, *ONE_RUN_NAMES)
        for more in ([], ["--roc"], ["--json"])
    ]
    given_to += [
        (star, "delta clip components permutations seed max-values"),
        (["mcmc", str(tmp_path / "counts.json")], "delta cluster significance epsilon-variance"),
        (power, "claimed-epsilon true-epsilon delta target significance audit-significance"),
        (power, "canaries"),
        (["check", str(tmp_path)], "max-epsilon"),
        (["selftest"], "jobs"),
    ] * 5

    @st.composite
    def commands(draw: st.DrawFn) -> list[str]:
        arguments, names = draw(st.sampled_from(given_to))
        ends = [] if arguments == ["selftest"] else ENDS  # a right one would train
        value = draw(st.sampled_from([*NO_NUMBERS, *ends]))
        return [*arguments, f"--{draw(st.sampled_from(names.split()))}={value}"]

    return commands()


@pytest.mark.nightly
def test_an_option_that_is_no_number_or_at_an_end_gives_a_number_or_a_message(
    command, tmp_path, share
):
    def one(arguments: list[str]) -> None:
        told = no_violation(command(*arguments)) if arguments[0] != "check" else command(*arguments)
        if arguments[-1].partition("=")[2] in NO_NUMBERS:
            assert told["code"] == 2

    Run(command, tmp_path, round(400 * share)).over(options_of(tmp_path), one)
