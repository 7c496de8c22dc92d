"""Bayesian posteriors of epsilon and mu from error counts."""
