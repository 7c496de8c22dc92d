from __future__ import annotations

import math

from lightning_audit.results.audit_report import LikelyFault, Place, Verdict

FAULTS = (
    LikelyFault(
        "noise_divided_by_batch",
        "the noise is divided by the batch size",
        "noise.scale",
        "where the noise is added",
        {"sd_ratio": 0.01625, "of": {"a": 0.5, "b": math.inf}, "canaries": ["Dirac(a)"]},
        Place(("a.bias", "b.bias"), 12, 1, "optimizer 2"),
    ),
    LikelyFault("no_noise", "no noise", "noise.scale"),
)


VIOLATION = Verdict(
    outcome="VIOLATION",
    kind="mechanism",
    summary="the noise is smaller than claimed",
    advice="look at add_noise",
    pass_blockers=(),
    faults=FAULTS,
)
