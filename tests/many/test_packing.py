"""What cannot be sent to another process is named."""

from __future__ import annotations

import threading

import pytest
from driven_trainings import quick, work_of

from lightning_audit.many.engines import Unpicklable, packed
from lightning_audit.many.worlds import Work, worlds_of


@pytest.mark.parametrize(
    ("train", "score", "named"),
    [(threading.Lock(), None, "train"), (quick, threading.Lock(), "score")],
)
def test_what_cannot_be_pickled_is_named(train, score, named):
    match = rf"^{named} cannot be sent to another process \(TypeError: .*lock.*engine=ThisProcess"
    with pytest.raises(Unpicklable, match=match):
        packed(work_of(train, score))


def test_data_that_cannot_be_pickled_is_named():
    data = [(1.0, threading.Lock())]
    worlds = worlds_of(data, _Given(), "add_remove")
    with pytest.raises(Unpicklable, match=r"^dataset cannot be sent to another process"):
        packed(Work(quick, worlds))


class _Given:
    def records(self, data):
        return [(0.0, 1)]
