"""Trainings for the tests of this room."""

from trained import accused, audited, trained  # noqa: F401
