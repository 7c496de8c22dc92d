"""Verdicts from observations: one file a family of checks, no torch."""
