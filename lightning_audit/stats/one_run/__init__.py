"""Lower bounds from many canaries in one training."""
