"""Opacus optimizers with a fault, one class each."""
