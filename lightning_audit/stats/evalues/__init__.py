"""Anytime-valid tests: e-values of noise, coins, batches and shapes, and their power."""
