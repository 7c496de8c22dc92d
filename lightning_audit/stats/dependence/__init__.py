"""E-values for independence of noise over steps, entries and directions, and its recovery."""
