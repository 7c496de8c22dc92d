"""`make gpu` is rehearsed on the CPU, and says if there is no accelerator."""

import json
import subprocess
import sys

import pytest
import torch
from places import REPOSITORY

GPU = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py")]


@pytest.mark.nightly
def test_a_rehearsal_on_the_cpu_has_all_parts_as_expected(tmp_path):
    out = tmp_path / "gpu.json"
    command = [*GPU, "--accelerator", "cpu", "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    parts = {name: part.get("failed") for name, part in found.items() if isinstance(part, dict)}
    parts.pop("versions")
    assert parts == {
        **dict.fromkeys(("selftest", "matrix", "examples", "many"), False),
        **dict.fromkeys(("costs", "large")),
    }
    assert found["selftest"]["summary"].startswith("2 of 2 faults found and named; 0 of 1 healthy")
    assert len(found["matrix"]["trainings"]) == 2
    assert {one["on"] for one in found["many"].values() if isinstance(one, dict)} == {"cpu"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
@pytest.mark.nightly
def test_without_an_accelerator_it_says_so_and_exits_with_0(tmp_path):
    out = tmp_path / "gpu.json"
    done = subprocess.run([*GPU, "--out", str(out)], capture_output=True, text=True, check=False)
    assert (done.returncode, out.exists()) == (0, False)
    assert (
        done.stdout == "torch has no accelerator here; --accelerator cpu runs the same on the CPU\n"
    )
