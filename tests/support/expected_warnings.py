"""Warnings that the libraries raise of themselves in small trainings."""

#: Said of small trainings by Lightning, Opacus and torch, whatever the audit does.
EXPECTED_WARNINGS = (
    r"The '\w+' does not have many workers",
    r"The number of training batches \(\d+\) is smaller than the logging interval",
    r"Secure RNG turned off",
    r"Full backward hook is firing when gradients are computed with respect to module outputs",
    r"Optimal order is the largest alpha",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)
