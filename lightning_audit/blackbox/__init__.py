"""Audits of any function that claims to be private, from its outputs alone."""
