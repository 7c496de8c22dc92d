"""What only people know of a training: the keys of card.yaml, and its reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import yaml

from lightning_audit._validate import did_you_mean, shown
from lightning_audit.files.bounded import read_text
from lightning_audit.files.printable import visible

#: Who asks for a row of the card.
NIST, ISO, OPENDP = "NIST SP 800-226", "ISO/IEC 27559", "OpenDP registry"
Section = Literal["guarantee", "context", "governance"]
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class Fact:
    """A statement of the owner.

    Args:
        title: in the card.
        section: of the card.
        asked_by: the standards that ask for it.
        registry: its place in an entry of the OpenDP deployments registry; empty if it has none.
    """

    title: str
    section: Section
    asked_by: tuple[str, ...]
    registry: tuple[str, ...] = ()


#: By the key in card.yaml, in the order of the card.
FACTS: Mapping[str, Fact] = {
    "product": Fact("What is released", "guarantee", (NIST, OPENDP), ("product", "description")),
    "intended_use": Fact("Intended use", "guarantee", (ISO, OPENDP), ("product", "intended_use")),
    "unit": Fact(
        "What one record is, and how many one person has",
        "guarantee",
        (NIST, OPENDP),
        ("privacy_loss", "privacy_unit_description"),
    ),
    "justification": Fact(
        "Why this epsilon", "guarantee", (NIST, OPENDP), ("implementation", "justification")
    ),
    "actors": Fact(
        "Who sees data or gradients without noise",
        "guarantee",
        (NIST, OPENDP),
        ("model", "actors"),
    ),
    "unprotected": Fact(
        "Published without noise",
        "guarantee",
        (NIST, OPENDP),
        ("dp_flavor", "unprotected_quantities"),
    ),
    "data": Fact("Data and their sensitivity", "context", (ISO,)),
    "collection": Fact("Collection of the data", "context", (NIST, ISO)),
    "preprocessing": Fact(
        "Preprocessing, and choice of hyperparameters",
        "context",
        (NIST, OPENDP),
        ("implementation", "pre_processing_eda_hyperparameter_tuning"),
    ),
    "security": Fact("Security of data and training", "context", (NIST, ISO)),
    "recipients": Fact("Recipients and access", "context", (ISO,)),
    "other_releases": Fact("Other releases of these data", "context", (NIST, ISO)),
    "threats": Fact("Attacks that were considered", "context", (ISO,)),
    "utility": Fact("Utility and bias", "context", (NIST,)),
    "harm": Fact("Harm if epsilon were wrong", "context", (ISO,)),
    "curator": Fact("Data curator", "governance", (ISO, OPENDP), ("product", "data_curators")),
    "responsible": Fact("Responsible person", "governance", (ISO,)),
    "transparency": Fact("Information for the people in the data", "governance", (ISO,)),
    "response": Fact("Monitoring and response to incidents", "governance", (ISO,)),
    "review": Fact("Next review", "governance", (ISO,)),
}


class BadFacts(ValueError):
    """A file of facts cannot be used; the message names the key and says what to do."""


def read_facts(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read card.yaml.

    Args:
        path: a YAML file of at most 1 MiB; its keys are those of `FACTS`, and each value is a text
            or a list of texts.

    Returns:
        The statements by key, without empty ones; a list is joined by semicolons.

    Raises:
        BadFacts: the file is absent or not YAML, has another key, or a value of another kind.
    """
    name = os.fspath(path)
    try:
        # Every scalar is text: a date or a "no" needs no quotes.
        found = yaml.load(read_text(path, _MOST_BYTES), Loader=yaml.BaseLoader)
    except (OSError, ValueError) as error:
        raise BadFacts(f"cannot read the facts {name!r}: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "it is nested too deep"
        raise BadFacts(f"the facts {name!r} are not YAML: {reason}") from error
    if found in (None, ""):
        return {}
    if not isinstance(found, dict):
        raise BadFacts(
            f"the facts {name!r} must be a mapping, with lines such as `product: the weights of a "
            f"classifier`, and are a {'list' if isinstance(found, list) else 'text'}."
        )
    if unknown := [key for key in found if key not in FACTS]:
        parts = (f"{shown(key)}: {did_you_mean(str(key), FACTS)}" for key in unknown)
        raise BadFacts(f"unknown keys in the facts {name!r}: {' '.join(parts)}")
    texts = {key: _text(key, value) for key, value in found.items()}
    return {key: texts[key] for key in FACTS if texts.get(key)}


def _text(key: str, value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise BadFacts(f"{key} must be a text or a list of texts; write {key}: one line of text.")
    return "; ".join(visible(" ".join(text.split())) for text in texts if text)
