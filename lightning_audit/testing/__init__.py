"""Trainings with known faults, for tests. See `lightning_audit.testing.faults`."""
