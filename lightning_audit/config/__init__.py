"""What is claimed of a training and asked of its audit, and what of it may change on the way."""
