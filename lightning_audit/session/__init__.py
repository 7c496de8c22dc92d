"""Audit of one optimizer: plan steps, insert canaries, read gradients, record and check."""
