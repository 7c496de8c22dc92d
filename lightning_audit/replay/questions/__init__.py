"""Tests of one step of the user's training, by replaying it."""
