"""Canaries: what an audit adds to a step before its gradients are clipped."""

from lightning_audit.canaries.gradient import BlockPair as BlockPair
from lightning_audit.canaries.gradient import Constant as Constant
from lightning_audit.canaries.gradient import Dirac as Dirac
from lightning_audit.canaries.gradient import GradientCanary as GradientCanary
from lightning_audit.canaries.gradient import Random as Random
from lightning_audit.canaries.gradient import Spread as Spread

__all__ = ["BlockPair", "Constant", "Dirac", "GradientCanary", "Random", "Spread"]
