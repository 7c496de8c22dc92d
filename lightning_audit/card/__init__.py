"""The privacy card of a training: what standards ask, from its report and from its owner."""

from lightning_audit.card.model_card import privacy_block as privacy_block
from lightning_audit.card.model_card import privacy_section as privacy_section

__all__ = ["privacy_block", "privacy_section"]
