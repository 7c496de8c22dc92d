"""Size, shape and divisor of the noise of a step."""
