"""Replay of a training's step: run it again, and restore all state."""
