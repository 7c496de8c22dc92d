"""What the steps cost, and what leaks."""
