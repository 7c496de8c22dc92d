"""One training of an audit over many: its coins, data set, canary, function and score."""
