"""Known faults, trainings that have them, and the selftest that trains every one of them."""
