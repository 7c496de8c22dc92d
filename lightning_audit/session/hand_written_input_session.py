"""A training whose DP-SGD is written by hand, audited by an input canary without any change."""

from __future__ import annotations

from lightning_audit.layout import FloatArray
from lightning_audit.session.hand_written_session import HandWrittenSession
from lightning_audit.session.input_session import InputSession


class HandWrittenInputSession(InputSession, HandWrittenSession):
    """The canary comes in the batch, and the reading where a plain optimizer's update starts.

    `lightning_audit.per_sample` and `rows` give nothing: two kinds of canaries would overlap.
    """

    def start_batch(self) -> None:
        """Let the training show its releases; it gets no other canaries."""
        super().start_batch()
        self._trains = True

    def _canary_is_due(self) -> bool:
        # Where the gradient is read must be known before a canary is in it.
        return not (self._tap.trial or self._tap.opaque) and super()._canary_is_due()

    def _before(self) -> FloatArray | None:
        taken = super()._before()
        # A batch announces no reading: an opaque step may make its gradient after it.
        self._announced = False
        return taken
