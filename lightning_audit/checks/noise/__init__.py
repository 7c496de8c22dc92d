"""Checks of the size, shape, mean and divisor of a step's noise."""
