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


@pytest.fixture(
    params=staged(quick=[0.05], heavy=[0.3], nightly=[1.0]), ids=["few", "some", "many"]
)
def share(request):
    """Share of the 2,000 inputs of the second stage."""
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


def test_an_archive_of_scores_gives_a_bound_only_if_it_is_one(command, tmp_path, share):
    path = tmp_path / "s.npz"
    wrong = dict.fromkeys(SCORES, NO_SCORES)
    Run(command, path, round(500 * share)).each(
        files.archives(SCORES, wrong),
        ["bound", str(path), "--method", "eps_cp", "--delta", "1e-5"],
        lambda data: vectors(data, *SCORES),
    )


def observed(data: bytes) -> bool:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        canaries, coins, readings = (file[n] for n in ("canaries", "coins", "readings"))
    fits = coins.shape == readings.shape and canaries.shape == coins.shape[:1]
    return fits and set(coins.ravel().tolist()) <= {0, 1} and set(canaries.tolist()) <= {0, 1, 2, 3}


def test_an_archive_of_observations_gives_a_bound_only_if_it_is_one(command, tmp_path, share):
    path = tmp_path / "o.npz"
    Run(command, path, round(500 * share)).each(
        files.archives(OBSERVATIONS, NO_OBSERVATIONS),
        ["bound", str(path), "--method", "one_run", "--delta", "1e-5"],
        observed,
    )


def test_an_archive_of_losses_gives_epsilon_star_only_if_it_is_one(command, tmp_path, share):
    path = tmp_path / "l.npz"
    wrong = {name: [np.array([1.0, np.nan]), *NO_SCORES[2:]] for name in LOSSES}
    Run(command, path, round(200 * share)).each(
        files.archives(LOSSES, wrong),
        ["epsilon-star", str(path), "--delta", "1e-3", "--permutations", "3"],
        lambda data: bool(np.load(io.BytesIO(data))["losses_train"].size),
    )


def table(data: bytes, sides: dict[str, str], number: str, side: str) -> bool:
    """Whether every line of a table has a number and one of the sides."""
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig").replace("#", "\n#")))
    kept = [row for row in rows if not str(row[rows.fieldnames[0]]).startswith("#")]
    return all(str(row[side]).strip().lower() in sides and row[number] for row in kept)


@pytest.mark.parametrize(
    ("columns", "rows", "arguments"),
    [
        ("score,in", ["1.5,1", "0.5,0"] * 9, ["bound", "--method=eps_cp", "--delta=1e-5"]),
        (
            "loss,side",
            ["1.5,train", "0.5,population"] * 9,
            ["epsilon-star", "--delta=1e-3", "--permutations=3"],
        ),
    ],
)
def test_a_table_gives_a_number_only_if_every_line_is_one(
    command, tmp_path, share, columns, rows, arguments
):
    path = tmp_path / "t.csv"
    number, side = columns.split(",")
    sides = ("1", "0", "1.0", "0.0", "true", "false", "train", "population", "01", "00")
    Run(command, path, round(150 * share)).each(
        files.tables(columns, rows),
        [*arguments, str(path)],
        lambda data: table(data, dict.fromkeys(sides), number, side),
    )


def test_a_report_passes_only_if_its_fields_are_what_they_are(command, tmp_path, share):
    def free(at: tuple[Any, ...]) -> bool:
        return bool({"evidence", "settings"} & set(at))

    def passes(data: bytes) -> bool:
        return json.loads(data)["verdict"]["outcome"] == "PASS"

    path = tmp_path / "report.json"
    Run(command, path, round(300 * share)).each(
        files.objects(files.report(), free), ["check", str(path)], passes
    )


def test_counts_give_a_posterior_only_if_they_are_counts(command, tmp_path, share):
    path = tmp_path / "counts.json"

    def counted(data: bytes) -> bool:
        held = json.loads(data)
        names = ("false_negatives", "n_in", "false_positives", "n_out")
        return all(isinstance(held[name], list | int) for name in names) and 0 <= held["delta"] < 1

    Run(command, path, round(150 * share)).each(
        files.objects(COUNTS, lambda at: False), ["mcmc", str(path)], counted
    )


def test_what_is_right_is_answered(command, tmp_path):
    """Without this, the tests above would hold of a command that refuses everything."""
    options_of(tmp_path)
    np.savez(tmp_path / "o.npz", **OBSERVATIONS)
    for arguments in (
        ["bound", tmp_path / "s.npz", "--method=eps_cp", "--delta=1e-5"],
        ["bound", tmp_path / "o.npz", "--method=one_run", "--delta=1e-5"],
        ["epsilon-star", tmp_path / "l.npz", "--delta=1e-3", "--permutations=3"],
        ["mcmc", tmp_path / "c.json"],
        ["check", tmp_path],
    ):
        assert command(*arguments)["code"] == 0


def options_of(tmp_path: Path) -> st.SearchStrategy[list[str]]:
    """Each command with right files, and one option that is no number or at an end."""
    (tmp_path / "s.npz").write_bytes(files.archive({n: files.npy(a) for n, a in SCORES.items()}))
    (tmp_path / "l.npz").write_bytes(files.archive({n: files.npy(a) for n, a in LOSSES.items()}))
    (tmp_path / "c.json").write_text(json.dumps(COUNTS))
    (tmp_path / "report.json").write_text(json.dumps(files.report()))
    bound = ["bound", str(tmp_path / "s.npz"), "--delta=1e-5"]
    power = ["power", "--claimed-epsilon=4", "--true-epsilon=6", "--delta=1e-5"]
    star = ["epsilon-star", str(tmp_path / "l.npz"), "--delta=1e-3", "--permutations=3"]
    given_to = [
        ([*bound, f"--method={method}", *more], "delta significance threshold guesses max-values")
        for method in (*BOUND_NAMES, *ONE_RUN_NAMES)
        for more in ([], ["--roc"], ["--json"])
    ]
    given_to += [
        (star, "delta clip components permutations seed max-values"),
        (["mcmc", str(tmp_path / "c.json")], "delta cluster significance epsilon-variance"),
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


def test_an_option_that_is_no_number_or_at_an_end_gives_a_number_or_a_message(
    command, tmp_path, share
):
    def one(arguments: list[str]) -> None:
        told = no_violation(command(*arguments)) if arguments[0] != "check" else command(*arguments)
        if arguments[-1].partition("=")[2] in NO_NUMBERS:
            assert told["code"] == 2

    Run(command, tmp_path, round(400 * share)).over(options_of(tmp_path), one)
