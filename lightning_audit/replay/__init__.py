"""Runs the step of a training again, beside the training, and puts everything back."""
