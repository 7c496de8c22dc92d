"""The version of the package, and the address of its documentation."""

__version__ = "0.1.0"

#: A placeholder, which pyproject.toml repeats.
DOCUMENTATION = "https://OWNER.github.io/lightning-audit"
