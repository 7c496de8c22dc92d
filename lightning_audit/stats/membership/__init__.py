"""Membership inference: losses, ROC curves, Epsilon*."""
