"""One Hypothesis profile for all tests: the same examples in every run, and no time limit."""

from hypothesis import settings

settings.register_profile("lightning_audit", derandomize=True, deadline=None)
settings.load_profile("lightning_audit")
