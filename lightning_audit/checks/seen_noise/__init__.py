"""What a step shows of its noise beside the clipped sums, and the checks of it."""
