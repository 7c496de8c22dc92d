"""An HTML page as a browser's parser must find it: balanced, with ids, anchors and addresses."""

import re
from html.parser import HTMLParser

from lightning_audit._version import DOCUMENTATION

#: Elements without an end, and those of SVG that end themselves.
_VOID = {"meta", "link", "br", "hr", "img", "input"}
_SELF_ENDED = {"path", "circle", "rect", "line"}
Attributes = list[tuple[str, str | None]]


class ParsedPage(HTMLParser):
    """What a page contains.

    Args:
        page: its HTML.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.page = page
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.wrong: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self._begin(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self._begin(tag, attrs)
        if tag not in _SELF_ENDED:
            self.wrong.append(f"<{tag}/>")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def _begin(self, tag: str, attrs: Attributes) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        self.wrong += [f"{name} twice" for name in set(names) if names.count(name) > 1]
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    @property
    def text(self) -> str:
        """The text that is read, with single spaces."""
        return " ".join("".join(self.words).split())

    def values(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [value for _, found, value in self.attributes if found == name]


def check_page(page: str) -> ParsedPage:
    """Parse a page that must be well-formed, need no script and load nothing."""
    parsed = ParsedPage(page)
    assert page.startswith("<!doctype html>\n<html lang=")
    assert (parsed.wrong, parsed.open) == ([], [])
    assert len(parsed.ids) == len(set(parsed.ids))
    for reference in (*parsed.values("aria-labelledby"), *parsed.values("aria-describedby")):
        assert set(reference.split()) <= set(parsed.ids), reference
    anchors = [href for href in parsed.values("href") if href.startswith("#")]
    assert {anchor[1:] for anchor in anchors} <= set(parsed.ids)
    others = [
        value
        for tag, name, value in parsed.attributes
        if name == "href"
        and not (value.startswith("#") or (tag == "a" and value.startswith(f"{DOCUMENTATION}/")))
    ]
    loaded = [*others, *parsed.values("src"), *parsed.values("srcset"), *parsed.values("action")]
    assert not [address for address in loaded if re.match(r"[a-z]+:|//", address)]
    assert not {"script", "img", "iframe", "object", "embed", "form", "base"} & set(parsed.tags)
    names = {name for _, name, _ in parsed.attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]
    assert not re.search(r"url\((?!#)|@import|javascript:", style_of(page))
    assert parsed.tags.count("h1") == 1
    return parsed


def style_of(page: str) -> str:
    """The inline style sheet of a page."""
    found = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    return found[1] if found else ""
