"""The card as a page: one file without script, in which foreign text stays text."""

from __future__ import annotations

from html.parser import HTMLParser

from checked_reports import HOSTILE, hostile, violated
from made_report import made_report

from lightning_audit.card import FACTS, as_page


class Read(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_and_its_names_are_unique() -> None:
    read = Read(as_page(made_report(), {}, "digits"))
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert not {"src", "style", "onclick"} & {name for name, _ in read.attributes}
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 5
    assert read.tags.count("h1") == 1


def test_a_refuted_claim_and_what_is_not_stated_are_shown() -> None:
    read = Read(as_page(violated(), {"harm": "low"}, "digits"))
    assert "claimed and refuted" in read.text
    assert read.text.count("not stated") == len(FACTS) - 1


def test_foreign_text_is_shown_as_it_is() -> None:
    report = hostile()[0].report
    assert report is not None
    facts = dict.fromkeys(FACTS, "<script>alert(1)</script>")
    read = Read(as_page(report, facts, HOSTILE))
    assert "script" not in read.tags
    assert read.text.count("<script>alert(1)</script>") >= len(FACTS)
    assert "\x1b" not in read.text
