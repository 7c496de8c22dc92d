"""The same entries, bit for bit, from any memory; one parcel home, looked at later if need be."""

import _thread
import threading

import numpy as np
import pytest
import torch
from training_matrix import ROWS
from training_support import ManualModule, PrivateModule, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.dpsgd import opacus
from lightning_audit.hooks import gradient_tap
from lightning_audit.hooks.gradient_tap import CanaryRows, GradientReader, memory, offsets
from lightning_audit.layout import Direction, Part

COORDINATES = {0: np.array([1, 4, 5]), 2: np.array([0, 3])}
DIRECTIONS = [
    Direction((Part(0, np.array([1, 5]), np.array([0.5, -0.5])),)),
    Direction((Part(1, np.array([0]), np.array([1.0])), Part(0, np.array([5]), np.array([2.0])))),
]


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(3, 2, dtype=dtype).t(),
        torch.randn((), dtype=dtype),
        torch.randn(4, dtype=dtype),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_entries_are_read_and_canaries_taken_out(dtype):
    own = tensors(dtype)
    own[2][3] = 0.0
    before = [t.clone() for t in own]
    reader = GradientReader(own, COORDINATES)
    taken = np.array([0.25, 0.0, -1.0, 0.0, 3.0])
    raw = reader.read(own)
    left = reader.take_out(own, raw, taken)
    flat = [t.contiguous().reshape(-1).double().numpy() for t in before]
    assert raw.array.tolist() == [flat[0][1], flat[0][4], flat[0][5], flat[2][0], 0.0]
    now = torch.cat([own[0].reshape(-1)[[1, 4, 5]], own[2][[0, 3]]]).double().numpy()
    assert left.array.tolist() == now.tolist()
    assert now[4] == 0.0  # neither noise nor canary was there
    assert reader.holds(own)
    reader.end_step()


def test_a_missing_tensor_is_nan_and_two_precisions_are_two_groups():
    own = [tensors()[0], None, torch.arange(4.0, dtype=torch.float64)]
    reader = GradientReader([tensors()[0], torch.zeros(()), torch.zeros(4)], COORDINATES)
    assert reader.read(own).array[3:].tolist() == [0.0, 3.0]
    assert np.isnan(reader.read([None, None, own[2]]).array[:3]).all()


def test_all_readings_of_a_step_come_home_in_one_copy_also_a_step_later(monkeypatch):
    own, copies, cpu = tensors(), [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copies.append(t) or cpu(t))
    reader = GradientReader(own, COORDINATES)
    first, norm = reader.read(own), reader.also(torch.tensor([2.5], dtype=torch.float64))
    expected = [float(own[0].reshape(-1)[1])]
    reader.end_step()
    own[0].zero_()
    second = reader.read(own)  # the next step is under way
    assert first.array[:1].tolist() == expected
    assert norm.array.tolist() == [2.5]
    assert len(copies) == 1
    assert not second.array[:3].any()
    assert len(copies) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_sums_get_the_canaries(dtype):
    rows = CanaryRows(DIRECTIONS, np.array([1.0, 0.5]))
    shapes = [(2, 3), (), (4,)]
    buffers = [torch.zeros((3, *shape), dtype=dtype) for shape in shapes]
    rows.write_all(buffers, 10.0)
    assert buffers[0][1].tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, -5.0]]
    assert buffers[0][2].tolist() == [[0.0] * 3, [0.0, 0.0, 10.0]]
    assert buffers[1].tolist() == [0.0, 0.0, 5.0]
    sums = [torch.ones(3, 2, dtype=dtype).t(), torch.ones((), dtype=dtype), None]
    rows.add(sums, np.array([4.0, -2.0]), plain=True)
    assert sums[0].tolist() == [[1.0, 3.0, 1.0], [1.0, 1.0, -5.0]]
    assert float(sums[1]) == -1.0


def test_flat_coordinates_lie_in_the_memory_of_any_strided_tensor():
    tensor = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)[:, :, 1:]
    index = np.arange(tensor.numel())
    assert torch.equal(memory(tensor)[offsets(index, tensor)], tensor.reshape(-1))


# --- What a training moves between its device and the host, and a backward pass in another thread.


class Transfers:
    """Parcels to the device and home, with the number of steps."""

    def __init__(self, monkeypatch):
        self.sent = self.fetched = 0
        send, depart = gradient_tap.send, gradient_tap.Parcel.depart

        def counted(*given):
            self.sent += 1
            return send(*given)

        def departs(parcel):
            self.fetched += bool(parcel._away)
            depart(parcel)

        for module in (gradient_tap, opacus):
            monkeypatch.setattr(module, "send", counted)
        monkeypatch.setattr(gradient_tap.Parcel, "depart", departs)


@pytest.mark.training
@pytest.mark.parametrize("make", [PrivateModule, ManualModule])
def test_a_step_sends_two_parcels_and_brings_one_home(make, tmp_path, monkeypatch):
    moved, steps = Transfers(monkeypatch), 30
    audit = PrivacyAudit(seed=1, examinations=0)
    trainer_for(tmp_path, audit, max_steps=steps).fit(make())
    assert audit.report.steps == steps
    assert steps <= moved.fetched <= steps + 2
    assert moved.sent <= 2.4 * steps


@pytest.fixture
def threaded_backward(monkeypatch):
    """Run every backward pass in a foreign thread, as the autograd engine of a GPU does."""
    own = torch.Tensor.backward

    def backward(*given, **settings):
        done, found = _thread.allocate_lock(), []
        done.acquire()

        def work():
            try:
                own(*given, **settings)
            except BaseException as error:
                found.append(error)
            done.release()

        _thread.start_new_thread(work, ())
        done.acquire()
        if found:
            raise found[0]

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    yield
    for ident, thread in list(threading._active.items()):
        if isinstance(thread, threading._DummyThread):
            del threading._active[ident]  # until Python 3.11 it is listed for good


@pytest.mark.training
@pytest.mark.heavy
@pytest.mark.heavy_one_in(18)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_backward_pass_in_another_thread_is_audited_as_in_this_one(row, tmp_path, request):
    def report(name):
        given = {"seed": 1, "examinations": 0, "on_violation": "warn", **row.audit}
        audit = PrivacyAudit(report_dir=tmp_path / name, **given)
        torch.manual_seed(3)
        trainer_for(tmp_path, audit, **{**row.trainer, "max_steps": 8}).fit(row.module())
        return [repr(check) for check in audit.report.checks]

    here = report("here")
    request.getfixturevalue("threaded_backward")
    assert report("there") == here
