"""How a canary gets into a DP-SGD step, and how the step's result is read."""
