"""The file of `lightning-audit audit-training`: what it names is made, or refused in a sentence."""

from __future__ import annotations

import sys

import pytest
import yaml

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.cli.main import Refused
from lightning_audit.cli.trainings import arguments_of
from lightning_audit.many import Crafted, LocalProcesses, ThisProcess

MODULE = """
import numpy as np
from torch import nn


def train(dataset, seed):
    return float(seed)


def score(model, record):
    return 1.0


def dataset():
    return np.eye(4), np.arange(4)


def records(count: int):
    return np.eye(count), np.arange(count)


def fails():
    raise RuntimeError("no disk")


def make_model() -> nn.Module:
    return nn.Linear(4, 4)


values = np.eye(2), np.arange(2)
"""
BASE = {"train": "own.train", "dataset": "own.dataset", "claim": {"epsilon": 1.0, "delta": 1e-5}}
MANY = {
    "class_path": "lightning_audit.many.DPSGDMany",
    "init_args": {
        "model": "own.make_model",
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "sample_rate": 1.0,
        "expected_batch_size": 4,
        "steps": 2,
        "learning_rate": 0.5,
    },
}


def made(class_path, **init_args):
    return {"class_path": class_path, "init_args": init_args}


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("raise ValueError('no GPU')")

    def read(change=None, *changes):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**BASE, **(change or {})}))
        return arguments_of(str(path), changes)

    yield read
    for name in ("own", "broken"):
        sys.modules.pop(name, None)


def test_a_file_gives_the_arguments_of_the_audit_and_options_replace_its_values(read):
    given = read(
        {
            "claim": {"noise_multiplier": 2, "sample_rate": 1.0, "steps": 3, "delta": 1e-5},
            "canary": made("lightning_audit.many.Crafted", length=2),
            "score": "own.score",
            "engine": made("lightning_audit.many.LocalProcesses", workers=2),
            "trainings": 30,
            "stop": "end",
        },
        *("--trainings", "70", "--claim.steps=5"),
    )
    assert given["train"](None, 3) == 3.0
    assert given["score"](None, None) == 1.0
    assert len(given["dataset"][1]) == 4
    claim = PrivacyClaim(noise_multiplier=2, sample_rate=1.0, steps=5, delta=1e-5)
    assert given["claim"] == claim
    assert given["canary"] == Crafted(length=2.0)
    assert given["engine"] == LocalProcesses(workers=2)
    assert (given["trainings"], given["stop"], given["seed"]) == (70, "end", 0)
    assert "config" not in given


@pytest.mark.parametrize(
    ("stated", "records"),
    [
        ("own.dataset", 4),
        ("own.values", 2),
        (made("own.records", count=3), 3),
        ({"class_path": "own.dataset"}, 4),
    ],
)
def test_a_data_set_is_returned_by_a_function_or_is_a_value(read, stated, records):
    assert len(read({"dataset": stated})["dataset"][1]) == records


def test_a_training_of_many_models_is_made_from_its_settings(read):
    given = read({"train": MANY, "engine": made("lightning_audit.many.ThisProcess")})
    assert len(given["train"].many([given["dataset"]] * 2, [1, 2])) == 2
    assert given["engine"] == ThisProcess()


def test_modules_of_the_user_are_sent_to_the_machines_of_a_cluster(read):
    import cloudpickle

    read({"engine": made("lightning_audit.many.LocalProcesses")})
    assert "own" not in cloudpickle.list_registry_pickle_by_value()
    executor = made("lightning_audit.many.FromExecutor", executor="a cluster")
    read({"engine": executor})
    assert "own" in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.unregister_pickle_by_value(sys.modules["own"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainngs": 3}, "unknown key 'trainngs'"),
        ({"claim": {"noise": 3}}, "claim: unknown key 'noise'"),
        (
            {"canary": made("lightning_audit.many.Crafted", lenght=1)},
            "canary: lightning_audit.many.Crafted: unknown key 'lenght'",
        ),
        ({"dataset": made("own.records", cont=1)}, "dataset: unknown key 'cont'"),
        ({"trainings": "x"}, "trainings: must be int, not 'x'"),
        ({"claim": {"steps": "many"}}, "claim.steps: must be int, not 'many'"),
        ({"stop": "soon"}, "stop: must be Literal['refuted', 'end'], not 'soon'"),
        ({"dataset": made("own.records", count="x")}, "dataset: count: must be int, not 'x'"),
        ({"train": "absent.train"}, "module absent cannot be imported (ModuleNotFoundError: "),
        ({"train": "broken.train"}, "module broken cannot be imported (ValueError: no GPU)"),
        ({"train": "own.nope"}, "train: module 'own' has no attribute 'nope'"),
        ({"train": "own"}, "train='own' must be an import path, such as my_module.name"),
        ({"train": 3}, "train: must be an import path, not 3"),
        ({"train": None}, "the following arguments are required: train"),
        ({"dataset": "own.nope"}, "dataset: module own has no attribute 'nope'"),
        ({"dataset": "own.fails"}, "own.fails raised RuntimeError: no disk"),
        ({"dataset": {"init_args": {}}}, "dataset: must be an import path, or have a class_path"),
        ({"train": made("own.fails")}, "RuntimeError: no disk"),
        ({"train": {**MANY, "init_args": {}}}, "train: the following arguments are required: "),
        ({"engine": "fast"}, "engine: must be an import path, such as my_module.name, not 'fast'"),
        (
            {"engine": made("lightning_audit.many.Fast")},
            "lightning_audit.many.Fast: module 'lightning_audit.many' has no attribute 'Fast'",
        ),
        ({"claim": {"delta": 3.0}}, "delta=3.0 must be in (0, 1)"),
        ({"claim": {}}, "PrivacyClaim() claims nothing; give at least one of epsilon"),
        ({"claim": 4}, "claim: must have keys such as noise_multiplier, or epsilon"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_in_a_sentence(read, change, told):
    with pytest.raises(Refused) as refusal:
        read(change)
    text = str(refusal.value)
    assert told in text
    assert "config.yaml: " in text
    assert "\n" not in text
    assert len(text) < 500


def test_an_option_that_is_unknown_or_of_another_type_is_refused(read):
    with pytest.raises(Refused, match="unrecognized arguments: --trainngs 3"):
        read({}, "--trainngs", "3")
    with pytest.raises(Refused, match="seed: must be int, not 'x'"):
        read({}, "--seed", "x")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("a: [", "is not YAML: while parsing"),
        ("- a", "must have keys such as train, dataset and claim"),
        ("", "must have keys such as train, dataset and claim"),
        (b"\xff\xfe\x00", "cannot be read: 'utf-8' codec"),
        ("[" * 2000, "is not YAML"),
    ],
)
def test_a_file_without_such_keys_is_refused_in_a_sentence(tmp_path, content, told):
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Refused) as refusal:
        arguments_of(str(path), [])
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_jsonargparse_a_sentence_names_the_extra(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    with pytest.raises(Refused, match=r"pip install 'lightning-audit\[cli\]'"):
        read()


@pytest.mark.parametrize("option", ["--help", "--print_config"])
def test_help_and_the_values_of_all_keys_are_printed(read, capsys, option):
    with pytest.raises(SystemExit) as end:
        read({"trainings": 30}, option)
    assert end.value.code == 0
    told = capsys.readouterr().out
    for key in ("train", "dataset", "claim", "canary", "score", "engine", "trainings", "store"):
        assert key in told
    assert ("trainings: 30" in told) == (option == "--print_config")
