"""Trade-off functions and the divergences from which they are computed."""
