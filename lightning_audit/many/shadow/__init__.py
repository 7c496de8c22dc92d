"""Shadow models on random halves of the data, challenge points, and what selecting them costs."""
