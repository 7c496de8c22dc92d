"""Checks that noise is drawn independently for each step, tensor and entry."""
