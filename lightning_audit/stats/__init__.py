"""Pure array functions and frozen objects: tests, bounds, posteriors, trade-off functions.

Every function maps numbers or arrays to numbers or arrays. The modules import numpy and scipy
only, never torch, so that a bound can be checked without a deep-learning stack.
"""
