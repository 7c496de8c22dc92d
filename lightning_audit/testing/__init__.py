"""For those who test: trainings with known faults. See `lightning_audit.testing.faults`."""
