"""What the API pages read of a docstring: its example as code, its formula as MathML.

An extension of griffe, which mkdocs.yml names.
"""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_FORMULA = re.compile(r"(?m)^( *)\.\. math:: (.*(?:\n\1 +\S.*)*)")
_INLINE = re.compile(r":math:`([^`]+)`")
#: A line, or the text of an argument, that Markdown would take for a quotation.
_LARGER = re.compile(r"(?m)^( *(?:\w+: )?)>(?=[ =])")
_EXAMPLE = re.compile(r"(?m)^( *)Example:$")


def shown(text: str) -> str:
    """Return a docstring as Markdown in Google style."""
    text = _FORMULA.sub(lambda found: found[1] + convert(found[2], display="block"), text)
    text = _INLINE.sub(lambda found: convert(found[1]), text)
    return _EXAMPLE.sub(r"\1Examples:", _LARGER.sub(r"\1\\>", text))


class Docstrings(griffe.Extension):
    """Rewrites each docstring once, after its source was read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
