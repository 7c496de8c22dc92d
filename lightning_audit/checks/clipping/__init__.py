"""How much one record adds to a step."""
