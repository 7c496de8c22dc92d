"""The site in headless Chromium: each page on a desk and a phone, by day and by night."""

import functools
import http.server
import re
import threading

import pytest
from browser_pages import Shown
from places import REPOSITORY

pytestmark = pytest.mark.browser
SITE = REPOSITORY / ".site" / "html"
WIDTHS = (1280, 390)
#: One page of each kind, whose colors axe-core reads.
KINDS = {".", "checks", "gate", "experiments/epsilon_star_sweep", "api/results"}
#: What is out of sight to the right, and in no box that scrolls.
_CUT = """() => [...document.querySelectorAll('.md-content *')].filter(e =>
  e.getBoundingClientRect().right > innerWidth + 1 && e.checkVisibility()
  && ![...parents(e)].some(p => ['auto', 'scroll'].includes(getComputedStyle(p).overflowX))
).map(e => e.outerHTML.slice(0, 200))
function* parents(e) { for (let p = e; p; p = p.parentElement) yield p; }"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    """Address of a server of the site, which `make docs` built."""
    assert SITE.exists(), "run `make docs`"
    handler = functools.partial(_Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_cut_nothing_and_ask_no_other_host(browser, address, scheme):
    pages = sorted(str(path.parent.relative_to(SITE)) for path in SITE.rglob("index.html"))
    assert len(pages) > 50
    assert set(pages) > KINDS
    shown, found = Shown(browser, address, scheme=scheme), []
    for name in pages:
        shown.page.goto(f"{address}{name}/")
        assert (shown.brightness() > 128) == (scheme == "light")
        for width in WIDTHS:
            shown.look(width, scheme)
            where = f"{name}, {width} pixels, {scheme}: "
            found += [f"{where}cut: {each}" for each in shown.page.evaluate(_CUT)]
            contrast = name in KINDS
            if contrast or (width, scheme) == (390, "light"):
                found += [where + each for each in shown.findings_of_axe(contrast=contrast)]
    assert found == []
    assert shown.complaints == []
    assert [url for url in shown.requests if not url.startswith((address, "data:"))] == []
    shown.close()


def test_the_search_finds_a_check(browser, address):
    shown = Shown(browser, address)
    with shown.page.expect_response("**/search.json"):
        shown.page.reload()
    shown.page.wait_for_load_state("networkidle")
    shown.page.keyboard.press("Control+k")
    # The theme shows results in a closed tree, of which a test sees what Enter opens.
    shown.page.wait_for_timeout(1000)
    shown.page.keyboard.type("Noise in each tensor", delay=20)
    shown.page.wait_for_timeout(3000)
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_url("**/checks/**")
    assert shown.page.url.endswith("#noise-in-each-tensor") or "noise.tensor" in shown.page.url
    shown.close()


def test_the_reference_shows_public_names_formulas_and_examples():
    for page in ("training", "results", "many", "statistics", "testing"):
        text = (SITE / "api" / page / "index.html").read_text(encoding="utf-8")
        shown = re.findall(r'<h\d id="lightning_audit[\w.]*\.(\w+)"', text)
        hooks = [name for name in shown if name.startswith(("_", "on_")) or name == "teardown"]
        assert shown
        assert hooks == []
        assert ".. math" not in text
        assert "<blockquote" not in text
    assert "<math " in (SITE / "api" / "statistics" / "index.html").read_text(encoding="utf-8")
