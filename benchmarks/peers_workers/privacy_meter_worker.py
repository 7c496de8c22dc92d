"""Run by privacy-meter's own interpreter: DATA.npz to areas and seconds of its attacks, as JSON.

Its models and data sets are replaced by arrays of losses that were computed before. Its attacks get
the numbers that ours get. The package imports TensorFlow, torch and Opacus with its model classes,
which are not used here, so empty modules take their names.
"""

# ruff: noqa: E402

import contextlib
import io
import json
import sys
import time
import types
from importlib.metadata import version

import numpy as np
import scipy.stats  # noqa: F401 (before the empty modules, whose types scipy looks for)
import sklearn.linear_model  # noqa: F401

for name in ("tensorflow", "torch", "opacus"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["opacus"].GradSampleModule = None

from privacy_meter.dataset import Dataset
from privacy_meter.hypothesis_test import (
    gaussian_threshold_func,
    linear_itp_threshold_func,
    logit_rescale_threshold_func,
    min_linear_logit_threshold_func,
)
from privacy_meter.information_source import InformationSource
from privacy_meter.information_source_signal import ModelLoss
from privacy_meter.metric import PopulationMetric, ReferenceMetric, ShadowMetric
from privacy_meter.model import Model

for name in ("tensorflow", "torch", "opacus"):
    del sys.modules[name]  # scipy looks for the types of a torch that is loaded


class Recorded(Model):
    """The k-th column of recorded losses."""

    def __init__(self, column):
        super().__init__(None, None)
        self.column = column

    def get_loss(self, batch_samples, batch_labels, per_point=True):
        """Return recorded losses."""
        return batch_samples[:, self.column]

    def get_logits(self, batch_samples):
        """Not recorded."""
        raise NotImplementedError

    def get_grad(self, batch_samples, batch_labels):
        """Not recorded."""
        raise NotImplementedError

    def get_intermediate_outputs(self, layers, batch_samples, forward_pass=True):
        """Not recorded."""
        raise NotImplementedError


def source(models, **splits):
    """Losses ``[records, models]`` of each split, as models and a data set."""
    data = {name: {"x": values, "y": np.zeros(len(values))} for name, values in splits.items()}
    return InformationSource([Recorded(k) for k in range(models)], [Dataset(data, "x", "y")])


def metrics(losses, inside, out, shadow, shadow_inside):
    """Name to a metric of one target.

    Args:
        losses: of the target, ``[records]``.
        inside: membership, ``[records]``.
        out: losses under the models without the record, ``[records, k]``.
        shadow: losses under one shadow model, ``[records]``.
        shadow_inside: its membership.
    """
    target = source(1, train=losses[inside, None], test=losses[~inside, None])
    references = source(out.shape[1], train=out[inside], test=out[~inside])
    attacker = source(1, train=shadow[shadow_inside, None], test=shadow[~shadow_inside, None])
    population = source(1, train=losses[~inside, None])
    linear = linear_itp_threshold_func
    tests = {
        "linear quantile": linear,
        "Gaussian of the loss": gaussian_threshold_func,
        "Gaussian of the logit": logit_rescale_threshold_func,
        "smaller of linear and logit": min_linear_logit_threshold_func,
    }
    result = {
        "population": PopulationMetric(target, population, [ModelLoss()], linear),
        "shadow": ShadowMetric(target, attacker, [ModelLoss()], None),
    }
    for name, test in tests.items():
        result[f"reference, {name}"] = ReferenceMetric(target, references, [ModelLoss()], test)
    return result


def measured(metric, fprs):
    """Area and seconds of a metric."""
    start = time.perf_counter()
    metric.prepare_metric()
    found = metric.run_metric(fprs)
    seconds = time.perf_counter() - start
    found = found[0] if isinstance(found, list) else found
    return float(found.roc_auc), seconds


def main(data):
    arrays = np.load(data)
    fprs = {"default": None, "fine": np.linspace(0.0, 1.0, 1001)}
    results = {}
    for kind, rates in fprs.items():
        for losses, inside in zip(arrays["targets"], arrays["inside"], strict=True):
            pairs = arrays["out"], arrays["shadow"], arrays["shadow_inside"]
            for name, metric in metrics(losses, inside, *pairs).items():
                with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
                    area, seconds = measured(metric, rates)
                entry = results.setdefault(name, {"seconds": []})
                entry.setdefault(kind, []).append(area)
                entry["seconds"].append(seconds)
    return {"version": version("privacy-meter"), "results": results}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
