"""Further DP-SGD configurations, on the random data of `lightning_audit.testing.trainings`."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning_audit.testing.opacus_trainings import Configured


class Functorch(Configured):
    """Per-sample gradients by functorch."""

    engine_arguments: ClassVar = {"grad_sample_mode": "functorch"}


class PerLayer(Configured):
    """Every tensor has its own clipping norm; their squares sum to that of ``max_grad_norm``."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        number = len(list(self.net.parameters()))
        norms = [self.settings["max_grad_norm"] / number**0.5] * number
        self.net, optimizer, *_ = self._private(clipping="per_layer", max_grad_norm=norms)
        return self.plant(optimizer)


class AdaptiveClipping(Configured):
    """The clipping norm adapts to the gradients' norms."""

    engine_arguments: ClassVar = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.05,
        "unclipped_num_std": 2.0,
    }
