"""A digest is the same for the same training in any process, and another for another training."""

import copy
import functools
import importlib
import itertools
import os
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import torch
from driven_trainings import softmax_regression
from torch.utils.data import TensorDataset

from lightning_audit.many.identity import NoIdentity, digest_of

BODY = """
import sys
import numpy as np
import helpers
RATE = {rate}
NAMES = {{"alpha", "beta", "gamma", "delta"}}

def helper(x):
    return x * RATE

class Net:
    def __init__(self):
        self.l = abs

    @property
    def scale(self):
        return SCALE

    def forward(self, x):
        return self.l(x) * {factor}

SCALE = {scale}

def make(lr):
    data = np.arange(10.0)

    def train(dataset, seed, steps={steps}):
        {comment}
        def inner():
            return INNER

        import lazily
        net = Net()
        if "alpha" not in NAMES:
            return net
        return helper(np.sum(dataset) + lr + data[0]) + inner() + helpers.add(1)

    return train

INNER = int(sys.argv[1])
from lightning_audit.many.identity import digest_of
print(digest_of(make({lr})))
"""
VALUES = {"rate": 2.0, "factor": 1, "scale": 3, "steps": 10, "inner": 5, "lr": 0.1}
VALUES |= {"comment": "", "added": 1, "lazy": 1, "relative": 1, "unused": 1}
#: What changes a training, each with another value.
CHANGES = {"rate": 2.5, "factor": 2, "scale": 4, "steps": 11, "inner": 6, "lr": 0.2}
CHANGES |= {"added": 2, "lazy": 2, "relative": 2}


def digest(folder, hash_seed="0", **changes):
    """Digest of a training in a process of its own."""
    values = {**VALUES, **changes}
    folder.mkdir(exist_ok=True)
    (folder / "pack").mkdir()
    files = {
        "helpers.py": f"from pack import add\n\nOWN = {values['added']}\n",
        "lazily.py": f"VALUE = {values['lazy']}\n",
        "unused.py": f"VALUE = {values['unused']}\n",
        "pack/__init__.py": "from .inner import add\n",
        "pack/inner.py": "from . import of\n\n\ndef add(x):\n    return x + of.VALUE\n",
        "pack/of.py": f"VALUE = {values['relative']}\n",
        "script.py": BODY.format(**values),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, folder / "script.py", str(values["inner"])]
    return subprocess.check_output(command, text=True, env=environment, timeout=120).strip()


@pytest.mark.heavy
def test_a_digest_changes_with_what_a_training_does_and_with_nothing_else(tmp_path):
    first = digest(tmp_path / "0")
    assert digest(tmp_path / "1", hash_seed="7") == first
    assert digest(tmp_path / "2", comment="# a comment", unused=2) == first
    changed = {digest(tmp_path / name, **{name: value}) for name, value in CHANGES.items()}
    assert len(changed) == len(CHANGES)
    assert first not in changed


def test_data_counts_by_its_bytes_types_and_shape():
    base = np.arange(6.0)
    values = [
        base,
        base.reshape(2, 3),
        base.astype(np.float32),
        base + 1,
        torch.arange(6.0),
        [*base],
        (*base,),
        TensorDataset(torch.arange(6.0)),
        TensorDataset(torch.arange(6.0) + 1),
        torch.arange(6.0).bfloat16(),
        {"a": base},
        {"b": base},
        *(None, 0, False, "0", b"0", 0.0, -0.0),
    ]
    digests = [digest_of(value) for value in values]
    assert len(set(digests)) == len(values)
    assert [digest_of(copy.deepcopy(value)) for value in values] == digests
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_models_count_by_their_structure_and_weights():
    torch.manual_seed(0)
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    assert digest_of(one) != digest_of(other)
    other.load_state_dict(one.state_dict())
    assert digest_of(one) == digest_of(other)


def test_a_training_made_by_the_library_counts_by_what_it_was_given():
    assert digest_of(softmax_regression(5)) == digest_of(softmax_regression(5))
    assert digest_of(softmax_regression(5)) != digest_of(softmax_regression(6))


def test_lambdas_on_one_line_differ():
    one, other = (lambda x: x + 1), (lambda x: x + 2)
    assert digest_of(one) != digest_of(other)
    partials = [functools.partial(max, 1), functools.partial(max, 2), functools.partial(min, 1)]
    assert len(set(map(digest_of, partials))) == 3


def test_functions_that_call_each_other_have_a_digest():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert digest_of(even) == digest_of(even) != digest_of(odd)
    cycle: list[object] = []
    cycle.append(cycle)
    assert digest_of(cycle) == digest_of(cycle)


@pytest.mark.parametrize("hidden", [threading.Lock(), torch.Generator(), iter(())])
def test_a_content_that_cannot_be_determined_is_refused(hidden):
    def train(dataset, seed):
        return hidden

    with pytest.raises(NoIdentity, match=r"cannot be determined; pass identity='...'"):
        digest_of(train)


def test_a_compiled_module_counts_by_its_bytes_and_an_installed_one_by_its_version(tmp_path):
    own = types.ModuleType("own_compiled")
    digests = []
    for folder, content in itertools.product(("a", "site-packages"), (b"1", b"2")):
        file = tmp_path / folder / "own_compiled.so"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        own.__file__ = str(file)
        digests.append(digest_of(own))
    assert digests[0] != digests[1]
    assert digests[2] == digests[3]


# --- What is set at run time counts; what the code binds itself does not.
HELPERS = """
RATE = 1.0
SETTINGS = {"rate": 1.0}
CALLS = 0

class Net:
    scale = 1.0

def add(x):
    global CALLS
    CALLS += 1
    return x * RATE * SETTINGS["rate"]
"""


@pytest.fixture
def helpers(tmp_path, monkeypatch):
    (tmp_path / "own_helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_helpers")
    del sys.modules["own_helpers"]


def using(helpers):
    def train(dataset, seed):
        return helpers.add(dataset) * helpers.Net().scale

    return train


@pytest.mark.parametrize(
    "change",
    [
        lambda helpers: setattr(helpers, "RATE", 5.0),
        lambda helpers: setattr(helpers.Net, "scale", 5.0),
        lambda helpers: helpers.add.__globals__["SETTINGS"].update(rate=5.0),
        lambda helpers: setattr(helpers, "add", abs),
        lambda helpers: setattr(helpers.Net, "scale", property(lambda self: 5.0)),
    ],
)
def test_what_is_set_in_a_module_or_class_at_run_time_counts(helpers, change):
    before = digest_of(using(helpers))
    assert digest_of(using(helpers)) == before
    change(helpers)
    assert digest_of(using(helpers)) != before


def test_what_the_code_binds_itself_does_not_refuse_a_resume(helpers):
    train = using(helpers)
    calls, kept = 0, functools.lru_cache(lambda x: x)

    def counting(dataset, seed):
        nonlocal calls
        calls += 1
        return kept(train(dataset, seed))

    before = digest_of(train), digest_of(counting)
    assert counting(3.0, 0) == 3.0
    assert (helpers.CALLS, calls) == (1, 1)
    assert (digest_of(train), digest_of(counting)) == before


def test_a_function_without_a_file_counts_by_its_instructions_and_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for value, imported in itertools.product((1, 2), (1, 2)):
        (tmp_path / "of_a_notebook.py").write_text(f"VALUE = {imported}\n")
        own = {"__name__": "__main__"}
        text = f"def train(data, seed):\n    import of_a_notebook\n    return data + {value}\n"
        exec(compile(text, "<cell>", "exec"), own)
        found.append(digest_of(own["train"]))
    assert len({*found}) == 4


def swap(name, value):
    return lambda net: setattr(net[1], name, value)


@pytest.mark.parametrize(
    "change",
    [
        swap("scale", 5.0),
        swap("_hidden", 5.0),
        swap("activation", torch.tanh),
        swap("inner", torch.nn.Tanh()),
        lambda net: net[0].weight.requires_grad_(requires_grad=False),
        lambda net: net.eval(),
        lambda net: net[1].eval(),
        lambda net: net[0].register_forward_hook(lambda module, given, out: out * 0),
        lambda net: net[0].weight.register_hook(lambda gradient: gradient * 0),
        lambda net: net[0].weight.data.mul_(2.0),
        lambda net: net[0].register_buffer("more", torch.ones(1), persistent=False),
    ],
    ids=range(11),
)
def test_all_that_a_module_of_torch_does_counts(change):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self._hidden, self.activation = 1.0, 1.0, torch.relu
            self.inner, self.lock = torch.nn.ReLU(), threading.Lock()

    made = [torch.nn.Sequential(torch.nn.Linear(3, 3), Scaled(), torch.nn.LSTM(2, 2))]
    made.append(torch.nn.Sequential(*(type(m)() if m is made[0][1] else m for m in made[0])))
    assert digest_of(made[0]) == digest_of(made[1])
    before = digest_of(made[0])
    change(made[0])
    assert digest_of(made[0]) != before
