"""Replays of the user's own step."""
