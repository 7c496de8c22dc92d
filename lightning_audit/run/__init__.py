"""The audit of one training: its optimizers, checkpoints, epsilons and report."""
