"""Tests and estimates of a mechanism from samples of its outputs."""
