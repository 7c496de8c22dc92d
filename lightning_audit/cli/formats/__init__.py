"""Formats of `lightning-audit check`: the same reports as text, JSON, JUnit, SARIF, and more."""
