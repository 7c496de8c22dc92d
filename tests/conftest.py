"""One Hypothesis profile for all tests, and trainings that report only what is looked at."""

import pytest
from hypothesis import settings

settings.register_profile("lightning_audit", derandomize=True, deadline=None)
settings.load_profile("lightning_audit")


@pytest.fixture
def short_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits with ``bounds=[]`` by default, and as without matplotlib: half of a short training."""
    from lightning_audit import PrivacyAudit

    monkeypatch.setattr("lightning_audit.callbacks.figures.find_spec", lambda name: None)
    *others, bounds = PrivacyAudit.__init__.__defaults__
    assert bounds is None
    monkeypatch.setattr(PrivacyAudit.__init__, "__defaults__", (*others, ()))
