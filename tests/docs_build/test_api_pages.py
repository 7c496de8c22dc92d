"""What the reference of the public names shows."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import lightning_audit
from lightning_audit import Audit, PrivacyAudit, attach

DOCS = Path(__file__).parents[2] / "docs"
#: Arguments that do something else in a plain loop.
OWN_WORDS = {"on_violation", "on_inconclusive", "on_budget", "report_dir", "log_prefix"}


def sentences(documented: Any) -> dict[str, str]:
    """The text of each argument, by its name."""
    text = inspect.getdoc(documented).split("Args:\n")[1].split("\n\n")[0]
    found = re.findall(r"(?m)^    (\w+): (.*(?:\n     .*)*)", text)
    return {name: " ".join(words.split()) for name, words in found}


def test_an_argument_of_both_front_ends_has_the_same_words():
    loops, lightnings = sentences(attach), sentences(PrivacyAudit)
    assert set(loops) == {*inspect.signature(attach).parameters}
    assert set(lightnings) == {*inspect.signature(PrivacyAudit).parameters}
    shared = loops.keys() & lightnings.keys()
    differ = {name for name in shared if loops[name] != lightnings[name]}
    assert shared - OWN_WORDS >= {"claimed_epsilon", "allow", "examinations", "verbose"}
    assert differ == OWN_WORDS


@pytest.mark.parametrize("kind", [Audit])
def test_a_public_name_of_an_audit_is_on_a_page(kind):
    pages = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert {name for name in public if not re.search(rf"\.{name}\b", pages)} == set()


def test_every_public_name_is_once_in_the_reference():
    pages = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    names = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    public = {f"lightning_audit.{name}" for name in lightning_audit.__all__}
    of_extra = {f"lightning_audit.transformers.{n}" for n in ("attach", "PrivacyAuditCallback")}
    assert len(names) == len(set(names))
    assert public | of_extra <= set(names)
    assert [name for name in names if any(part.startswith("_") for part in name.split("."))] == []
