"""Read-only hooks on optimizers, gradients, weights and samplers."""
