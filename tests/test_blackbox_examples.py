"""The examples of black-box audits find what they say."""

import importlib.util
import sys

import pytest
from places import EXAMPLES

PATH = EXAMPLES / "blackbox.py"
SPEC = importlib.util.spec_from_file_location("blackbox_example", PATH)
EXAMPLE = importlib.util.module_from_spec(SPEC)
sys.modules["blackbox_example"] = EXAMPLE
SPEC.loader.exec_module(EXAMPLE)


@pytest.mark.parametrize("name", EXAMPLE.EXAMPLES)
def test_an_example_ends_as_it_says(name):
    audit = EXAMPLE.audited(name)
    assert audit.verdict.outcome == EXAMPLE.EXAMPLES[name].outcome
    if audit.verdict.outcome == "VIOLATION":
        assert audit.samples < 2500


def test_the_exit_code_is_zero_where_all_is_found_as_said(capsys):
    assert EXAMPLE.main(["Laplace, half the scale", "Gaussian"]) == 0
    printed = capsys.readouterr().out
    assert "VIOLATION (epsilon)" in printed
    assert "PASS: the claim is not refuted" in printed


def test_every_correct_function_has_a_faulty_one_beside_it():
    correct = {n for n, example in EXAMPLE.EXAMPLES.items() if example.outcome == "PASS"}
    faulty = {n.split(",")[0] for n in EXAMPLE.EXAMPLES if n not in correct}
    assert correct == faulty == {"Laplace", "Gaussian", "subsampled Gaussian", "DP-SGD"}
