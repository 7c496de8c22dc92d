"""Checks of loaders, losses and Trainer arguments that need no canary."""
