"""Hooks that read gradients, weights and samplers without changing them."""
