"""One Hypothesis profile for all tests, and trainings that draw only where it is looked at."""

import pytest
from hypothesis import settings

settings.register_profile("lightning_audit", derandomize=True, deadline=None)
settings.load_profile("lightning_audit")


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits draw nothing, as where matplotlib is not installed: half of a short training's end."""
    monkeypatch.setattr("lightning_audit.callbacks.figures.find_spec", lambda name: None)
