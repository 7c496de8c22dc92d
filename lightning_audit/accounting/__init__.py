"""What is claimed, and what the steps compose to."""
