"""Pages as headless Chromium shows them: what axe-core finds, and what a page must not do."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chromium import browser_on_path

_SIDEWAYS = """() => {
  const root = document.documentElement;
  const hidden = [root, document.body].filter(e => getComputedStyle(e).overflowX === 'hidden');
  return {scrolls: root.scrollWidth - root.clientWidth, hides: hidden.length};
}"""
#: Boxes that scroll sideways; lines of code may.
_BOXES = """() => [...document.querySelectorAll('body *')].filter(e =>
  ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.tagName !== 'PRE'
  && e.scrollWidth > e.clientWidth).map(e => e.outerHTML.slice(0, 200))"""
_BACKGROUND = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
_FOCUSED = "selector => document.activeElement.matches(selector)"
#: Stops of the keyboard in a page at most.
_STOPS = 60
_OPEN_ALL = "() => document.querySelectorAll('details').forEach(each => each.open = true)"
#: Of each group, whether its content is visible.
_VISIBLE = """() => [...document.querySelectorAll('details')].map(
  each => [...each.children].slice(1).every(child => child.checkVisibility()))"""
_AXE = """contrast => axe.run(
  document, {resultTypes: ['violations'], rules: {'color-contrast': {enabled: contrast}}}
).then(found => found.violations)"""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser: Chromium of the PATH, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    path = browser_on_path()
    assert path is not None, "run `make browser`, which installs one or says how"
    # Chromium's sandbox refuses to run as root, which containers of CI are.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


def _axe_script() -> str:
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")


class Shown:
    """A page in the browser.

    Args:
        browser: of `chromium`.
        page: its path, or its address.
        width: of the window in pixels.
        scheme: "light" or "dark".
    """

    def __init__(
        self, browser: Any, page: Path | str, width: int = 1280, scheme: str = "light"
    ) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self._context.new_page()
        #: Messages on the console, and errors of scripts.
        self.complaints: list[str] = []
        #: Addresses that the page loads in addition to itself.
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.page.on(
            "request",
            lambda request: self.requests.append(request.url) if request.url != address else None,
        )
        self.page.goto(address)

    def _dismiss(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open_all(self) -> None:
        """Open every group."""
        self.page.evaluate(_OPEN_ALL)

    def look(self, width: int, scheme: str) -> None:
        """Change the window's width in pixels, and the scheme."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)

    def findings_of_axe(self, *, contrast: bool = True) -> list[str]:
        """What axe-core finds, one line for each rule and impact; contrast takes the longest."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(_axe_script())
        return [
            f"{found['impact']}: {found['id']}: {node['html'][:160]} ({node['failureSummary']})"
            for found in self.page.evaluate(_AXE, contrast)
            for node in found["nodes"]
        ]

    def sideways(self) -> dict[str, int]:
        """Pixels by which the page scrolls sideways, and elements that hide that it does."""
        found: dict[str, int] = self.page.evaluate(_SIDEWAYS)
        return found

    def scrolling_boxes(self) -> list[str]:
        """Boxes whose content is wider than they are, so that a part of it is out of sight."""
        found: list[str] = self.page.evaluate(_BOXES)
        return found

    def brightness(self) -> float:
        """Brightness of the background: 0 is black, 255 white."""
        red, green, blue = self.page.evaluate(_BACKGROUND)[:3]
        return float(red + green + blue) / 3

    def tab_to(self, selector: str) -> bool:
        """Press Tab until an element has the focus; whether one got it."""
        for _ in range(_STOPS):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(_FOCUSED, selector):
                return True
        return False

    def visible_groups(self, media: str) -> list[bool]:
        """Of each group whether its content is visible in a medium."""
        self.page.emulate_media(media=media)
        found: list[bool] = self.page.evaluate(_VISIBLE)
        return found

    def close(self) -> None:
        """Close the page."""
        self._context.close()
