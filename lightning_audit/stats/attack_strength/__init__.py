"""Posterior of epsilon and of the strength of attacks (MCMC-DP-Est)."""
