"""What a run leaves on disk or in a checkpoint, and scores read from there."""
