"""Anytime-valid tests: e-values for noise, coins, batches and shapes, and their power."""
