"""Trains with trackers, and prints what their real files hold, as JSON in the last line.

``python trackers_worker.py CASE FOLDER``, in the environment of the trackers.
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from training_support import PrivateModule, trainer_for
from two_nets import TwoNets

from lightning_audit import PrivacyAudit

#: Of the LevelDB log that W&B writes: bytes of a block, and the kinds that end a record.
_BLOCK, _WHOLE, _LAST = 32768, 1, 4


def trained(folder: Path, logger: Any, module: Any = None) -> PrivacyAudit:
    torch.manual_seed(1)  # one epoch is just long enough for a PASS
    audit = PrivacyAudit(seed=1, examinations=0, on_violation="warn")
    trainer_for(folder, audit, logger=logger, max_epochs=1).fit(module or PrivateModule())
    return audit


def together(folder: Path, fits: int = 1, *, module: type = PrivateModule) -> dict[str, Any]:
    """Train with all loggers; return what MLflow's store and W&B's file hold."""
    import wandb
    from pytorch_lightning.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

    mlflow = MLFlowLogger(
        "audit",
        tracking_uri=f"sqlite:///{folder}/mlflow.db",
        artifact_location=str(folder / "artifacts"),
    )
    run = WandbLogger(project="audit", save_dir=str(folder), offline=True)
    others = [CSVLogger(folder / "csv"), TensorBoardLogger(folder / "board")]
    drawn = counted_figures()
    audits = [trained(folder, [mlflow, run, *others], module()) for _ in range(fits)]
    name = run.experiment.id
    wandb.finish()
    return {
        "epochs": [audit.report.epochs for audit in audits],
        "figures": len(drawn),
        "mlflow": of_mlflow(mlflow),
        "wandb": {"id": name, **of_wandb(folder)},
        "board": of_board(Path(others[1].log_dir)),
        "rows": (Path(others[0].log_dir) / "metrics.csv").read_text().splitlines(),
    }


def counted_figures() -> list[object]:
    """Return a list to which each figure that is drawn is added."""
    from lightning_audit.report import figure

    draw, drawn = figure.figure, []

    def counted(report: Any) -> Any:
        drawn.append(report)
        return draw(report)

    figure.figure = counted
    return drawn


def of_mlflow(logger: Any) -> dict[str, Any]:
    """Read the sqlite store and the artifacts with MLflow's client."""
    from mlflow.tracking import MlflowClient

    client, run = MlflowClient(logger._tracking_uri), logger.run_id

    def below(path: str | None = None) -> Iterator[str]:
        for item in client.list_artifacts(run, path):
            yield from below(item.path) if item.is_dir else [item.path]

    names = list(client.get_run(run).data.metrics)
    history = {name: client.get_metric_history(run, name) for name in names}
    reports = [path for path in below() if path.endswith(".json")]
    return {
        "artifacts": list(below()),
        "outcomes": [
            json.loads(Path(client.download_artifacts(run, path)).read_text())["verdict"]["outcome"]
            for path in reports
        ],
        "metrics": {name: [[m.step, m.value] for m in of] for name, of in history.items()},
    }


def of_wandb(folder: Path) -> dict[str, Any]:
    """Read the datastore file of the offline run."""
    rows, artifacts = [], []
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        elif kind == "artifact":
            files = [entry.path for entry in record.artifact.manifest.contents]
            artifacts.append([record.artifact.name, record.artifact.type, files])
    images = [image.name for image in path.parent.rglob("*.png")]
    return {"rows": rows, "artifacts": artifacts, "images": images}


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    assert data.startswith(b":W&B")
    at, part = 7, b""
    while at + 7 <= len(data):
        if (left := _BLOCK - at % _BLOCK) < 7:  # too few bytes for a header are padding
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_WHOLE, _LAST):
            yield Record.FromString(part)
            part = b""


def of_board(folder: Path) -> dict[str, Any]:
    """Read TensorBoard's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    return {
        "images": {tag: [image.step for image in events.Images(tag)] for tag in tags["images"]},
        "scalars": {tag: [s.step for s in events.Scalars(tag)] for tag in tags["scalars"]},
    }


def unused(folder: Path) -> list[str]:
    """Train with Lightning's own CSV logger; return what it should not import and did."""
    from pytorch_lightning.loggers import CSVLogger

    others = {"mlflow", "wandb", "comet_ml", "tensorboard", "matplotlib"}
    others -= sys.modules.keys()  # torchmetrics, of which Lightning is made, loads matplotlib
    trained(folder, CSVLogger(folder))
    return sorted(others & sys.modules.keys())


CASES: dict[str, Any] = {
    "all": together,
    "two fits": lambda folder: together(folder, 2),
    "two optimizers": lambda folder: together(folder, module=TwoNets),
    "unused": unused,
}

if __name__ == "__main__":
    case, given = sys.argv[1], Path(sys.argv[2])
    os.chdir(given)
    print(json.dumps(CASES[case](given)))
