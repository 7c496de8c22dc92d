"""Reads and writes files that others may have written or may read meanwhile."""
