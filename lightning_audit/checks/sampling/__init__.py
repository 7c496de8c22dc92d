"""How batches are drawn, and what they are divided by."""
