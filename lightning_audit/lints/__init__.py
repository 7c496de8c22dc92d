"""What loaders, losses and Trainers show without a canary."""
