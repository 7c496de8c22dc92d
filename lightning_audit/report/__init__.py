"""Shows reports; reads results only, never torch or callbacks."""
