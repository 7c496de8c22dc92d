"""Is noise independent, over steps, entries and directions: e-values, and how to undo a design."""
