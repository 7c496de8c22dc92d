"""Files and checkpoint data of a run, and scores read from them."""
