"""card.yaml is read as text, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import DOCS
from shown_code import blocks, text_of

from lightning_audit.card import FACTS, BadFacts, read_facts


def written(folder: Path, text: str) -> Path:
    path = folder / "card.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_scalar_is_text_and_a_list_becomes_one(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "review: 2027-01-01\nother_releases: no\nrecipients: [a, b]\nharm: |\n  two\n  lines\n"
        "product: é\x20\u202e\nthreats:\n",
    )
    assert read_facts(path) == {
        "product": "é \\u202e",
        "recipients": "a; b",
        "other_releases": "no",
        "harm": "two lines",
        "review": "2027-01-01",
    }
    assert read_facts(written(tmp_path, "")) == {}


def test_an_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, "recipents: x\n7: y\nproduct: z\n")
    with pytest.raises(BadFacts) as error:
        read_facts(path)
    assert "'recipents': did you mean 'recipients'?" in str(error.value)
    assert "'7': allowed: actors, collection, " in str(error.value)
    assert "'product':" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("product: {a: b}", "product must be a text or a list of texts"),
        ("product: [[a]]", "product must be a text or a list of texts"),
        ("product: &a [*a]", "are not YAML"),
        ("- product", "must be a mapping, .* and are a list"),
        ("product", "must be a mapping, .* and are a text"),
        ("product: [", "are not YAML"),
        ("a: " + "[" * 5000, "are not YAML"),
        ("product: !!python/object/apply:os.system [echo]\n- x", "are not YAML"),
        ("product: \x00", "are not YAML"),
        ("product: " + "x" * 2**20, "more than 1048576 bytes"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_mapping_of_texts_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadFacts, match=message):
        read_facts(written(tmp_path, text))


def test_tags_of_python_are_text_and_run_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "product: !!python/object/apply:os.system ['touch made']\n")
    assert read_facts(path) == {"product": "touch made"}


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match=r"cannot read the facts .*none\.yaml"):
        read_facts(tmp_path / "none.yaml")
    with pytest.raises(BadFacts, match="it is a directory"):
        read_facts(tmp_path)


def test_the_page_of_docs_lists_every_key_and_its_example_is_read(tmp_path: Path) -> None:
    page = DOCS / "privacy-card.md"
    rows = [line for line in text_of(page).splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{key}` | {fact.title} | {', '.join(fact.asked_by)} |" for key, fact in FACTS.items()
    ]
    (example,) = blocks(page, "yaml")
    assert len(read_facts(written(tmp_path, example))) == len(example.splitlines())
