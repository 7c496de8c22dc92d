"""Opacus optimizers and steps with a fault, a class each."""
