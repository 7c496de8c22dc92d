"""A privacy card as an HTML page without script or request."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_audit.card.card_content import privacy_card
from lightning_audit.card.card_markdown import STATED
from lightning_audit.page.report_page import rendered
from lightning_audit.results.audit_report import AuditReport


def as_page(report: AuditReport, facts: Mapping[str, str], name: str) -> str:
    """Return the card as a page of one file.

    Args:
        report: of the training.
        facts: what `read_facts` returned.
        name: of the training.
    """
    card = privacy_card(report, facts, name)
    return rendered("card.html.j2", css_beside=False, card=card, stated=STATED)
