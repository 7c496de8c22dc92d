import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from lightning_audit.report.loggers import send_figure, send_files, takes_figures

TAG = "audit/report"


@pytest.fixture
def drawn():
    figure = Figure(figsize=(2.0, 1.0), dpi=50)
    FigureCanvasAgg(figure)
    figure.subplots().plot([0, 1], [1, 0])
    return figure


class Recorder:
    """Keeps the calls of the methods that it is said to have."""

    def __init__(self, *methods: str, **attributes: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for name in methods:
            setattr(self, name, self._keeper(name))
        for name, value in attributes.items():
            setattr(self, name, value)

    def _keeper(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))


class Failing:
    @property
    def experiment(self) -> Any:
        raise ConnectionError("the server is away")


def images(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory), size_guidance={"images": 0})
    events.Reload()
    return events


def test_tensorboard_gets_an_image_under_the_tag_at_the_step(tmp_path, drawn):
    with SummaryWriter(str(tmp_path)) as writer:
        send_figure([Recorder(experiment=writer)], drawn, TAG, 117)
    events = images(tmp_path)
    assert events.Tags()["images"] == [TAG]
    (image,) = events.Images(TAG)
    assert (image.step, image.width, image.height) == (117, 100, 50)
    sent = imread(io.BytesIO(image.encoded_image_string), format="png")[..., :3]
    canvas: Any = drawn.canvas
    np.testing.assert_allclose(sent, np.asarray(canvas.buffer_rgba())[..., :3] / 255, atol=1e-3)


def test_lightnings_tensorboard_logger_gets_it_and_the_csv_logger_is_passed_over(
    tmp_path, drawn, caplog
):
    board = TensorBoardLogger(str(tmp_path), name="", version="board")
    loggers = [CSVLogger(str(tmp_path), name="", version="csv"), board, DummyLogger()]
    send_figure(loggers, drawn, TAG, 3)
    board.experiment.close()
    assert images(tmp_path / "board").Tags()["images"] == [TAG]
    assert caplog.records == []


def test_an_experiment_that_takes_figures_only_gets_the_figure(drawn):
    experiment = Recorder("add_figure")
    send_figure([Recorder(experiment=experiment)], drawn, TAG, 7)
    assert experiment.calls == [("add_figure", (TAG, drawn, 7), {})]


def test_a_logger_with_log_image_gets_pixels(drawn):
    logger = Recorder("log_image")
    send_figure([logger], drawn, TAG, 7)
    ((_, args, options),) = logger.calls
    assert (args, options["key"], options["step"]) == ((), TAG, 7)
    (image,) = options["images"]
    assert (image.shape, image.dtype) == ((50, 100, 3), np.uint8)


def test_comet_gets_a_named_figure_and_mlflow_none_but_its_file(drawn):
    mlflow, comet = Recorder("log_figure", "log_artifact"), Recorder("log_figure")
    send_figure(
        [Recorder(experiment=mlflow, run_id="r"), Recorder(experiment=comet)], drawn, TAG, 7
    )
    assert mlflow.calls == []
    named = {"figure_name": TAG, "figure": drawn, "step": 7}
    assert comet.calls == [("log_figure", (), named)]


def test_figures_are_taken_by_what_shows_images_or_stores_files(tmp_path, caplog):
    with SummaryWriter(str(tmp_path)) as writer:
        shows = [Recorder(experiment=writer), Recorder("log_image")]
        stores = [Recorder(experiment=Recorder("log_artifact"), run_id="r")]
        assert all(takes_figures(logger) for logger in shows + stores)
    others = [CSVLogger(str(tmp_path)), Recorder(), Recorder(experiment=None)]
    assert not any(takes_figures(logger) for logger in others)
    assert caplog.records == []
    assert not takes_figures(Failing())
    assert "the figure was not logged by Failing (ConnectionError" in caplog.text


def test_a_logger_that_fails_costs_a_warning_and_the_others_get_the_figure(drawn, caplog):
    last = Recorder("log_image")
    with caplog.at_level(logging.WARNING):
        send_figure([Failing(), Recorder(), last], drawn, TAG, 7)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "the figure 'audit/report' was not logged by Failing (ConnectionError: the server is away)"
    )
    assert len(last.calls) == 1


@pytest.fixture
def files(tmp_path):
    made = [tmp_path / "report.json", tmp_path / "report.png"]
    for path in made:
        path.write_text(path.name)
    return made


def test_a_tracker_that_is_away_costs_a_warning(files, caplog):
    send_files([Failing()], files, TAG)
    assert "the artifact 'audit/report' was not logged by Failing" in caplog.text
