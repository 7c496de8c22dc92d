"""Noise that is drawn again for each step, tensor and entry, or not."""
