"""Claimed privacy, and the epsilon that the steps compose to."""
