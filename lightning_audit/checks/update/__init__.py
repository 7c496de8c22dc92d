"""What the update uses."""
