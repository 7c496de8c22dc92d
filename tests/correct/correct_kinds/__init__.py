"""Kinds of correct private trainings, written without a look at how the audit works.

Each draws random numbers where practitioners draw them, and each is (epsilon, delta)-differentially
private as it claims: no record's gradient depends on another record, each is clipped, Gaussian
noise of sigma times the clipping norm is added to the sum once in a step, batches are Poisson, and
nothing else of the records reaches the weights.
"""

from correct_kinds import generative, hands, pictures, recommend, tabular, text, updates
from correct_kinds.base import REGISTERED, Kind

_THEMES = (tabular, text, recommend, pictures, generative, updates, hands)
KINDS: tuple[Kind, ...] = tuple(
    kind for theme in _THEMES for kind in REGISTERED if kind.module.__module__ == theme.__name__
)
