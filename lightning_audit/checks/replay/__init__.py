"""What replayed steps show: declarations, rules and words, without torch."""
