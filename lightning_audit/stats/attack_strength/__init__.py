"""Posterior of epsilon and of the attacks' strength (MCMC-DP-Est, arXiv:2504.16683)."""
