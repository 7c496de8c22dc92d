"""Pages of real reports in headless Chromium, on a light desk and a dark phone.

`make browser` runs these tests. With ``SHOTS=folder`` it leaves pictures of the pages there.
"""

import os
from pathlib import Path

import pytest
from browser_pages import Shown
from browser_trainings import LONG, MANY, TRAININGS, train, train_many

from lightning_audit.card import FACTS
from lightning_audit.cli import main

pytestmark = [pytest.mark.browser, pytest.mark.training]
CARDS = ("correct", "half-noise", "short", "long-names", "many-refuted")
PAGES = ("index", *TRAININGS, *MANY, *(f"card-{name}" for name in CARDS))
#: Boxes may scroll sideways in these on a desk: their names have 300 letters.
LONGEST = {"long-names", "card-long-names"}


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """A folder of all pages, as the command writes them from trainings."""
    folder, into = tmp_path_factory.mktemp("trainings"), tmp_path_factory.mktemp("pages")
    reports = {name: train(name, folder / name) for name in TRAININGS}
    reports |= {name: train_many(name, folder / name) for name in MANY}
    assert main.main(["report", str(folder), "-o", str(into)]) == 0
    facts = into / "card.yaml"
    facts.write_text("".join(f"{key}: '{LONG}'\n" for key in FACTS), encoding="utf-8")
    for name in CARDS:
        stated = ["--facts", str(facts)] if name in LONGEST else []
        target = str(into / f"card-{name}.html")
        assert main.main(["card", str(reports[name]), *stated, "-o", target]) == 0
    beside = into / "beside"
    beside.mkdir()
    page = str(beside / "report.html")
    assert main.main(["report", str(reports["correct"]), "--css", "beside", "-o", page]) == 0
    return into


#: What a page looks like on a phone and in the other scheme change apart from each other.
VIEWS = ((1280, "light"), (1280, "dark"), (390, "dark"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_fits_each_window_has_both_schemes_and_loads_nothing(
    pages, browser, name
):
    shown = Shown(browser, pages / f"{name}.html")
    shown.open_all()
    for width, scheme in VIEWS:
        shown.look(width, scheme)
        if folder := os.environ.get("SHOTS"):
            path = Path(folder, f"{name}-{width}-{scheme}.png")
            shown.page.screenshot(path=path, full_page=True)
        assert shown.findings_of_axe() == []
        assert shown.sideways() == {"scrolls": 0, "hides": 0}
        if width == 1280 and name not in LONGEST:
            assert shown.scrolling_boxes() == []
        assert shown.brightness() < 60 if scheme == "dark" else shown.brightness() > 200
    assert (shown.complaints, shown.requests) == ([], [])
    shown.close()


@pytest.mark.parametrize("name", ["correct", "half-noise", "long-names"])
def test_groups_are_closed_open_by_keyboard_and_print_opens_all(pages, browser, name):
    shown = Shown(browser, pages / f"{name}.html")
    closed = shown.visible_groups("screen")
    assert len(closed) >= 6
    assert not any(closed)
    assert all(shown.visible_groups("print"))
    shown.visible_groups("screen")
    assert shown.tab_to("details.group > summary")
    shown.page.keyboard.press("Enter")
    assert shown.visible_groups("screen").count(True) == 1
    shown.close()


def test_markup_in_names_is_shown_as_text(pages, browser):
    for name in sorted(LONGEST):
        shown = Shown(browser, pages / f"{name}.html")
        shown.open_all()
        assert shown.page.locator("img, script, iframe").count() == 0
        assert LONG[:60] in shown.page.content().replace("&lt;", "<").replace("&gt;", ">").replace(
            "&amp;", "&"
        )
        shown.close()


def test_a_style_sheet_next_to_the_page_is_all_that_it_loads(pages, browser):
    shown = Shown(browser, pages / "beside" / "report.html", scheme="dark")
    assert [Path(address).name for address in shown.requests] == ["report.css"]
    assert shown.complaints == []
    assert shown.brightness() < 60
    shown.close()


def test_the_index_leads_to_every_page(pages, browser):
    shown = Shown(browser, pages / "index.html")
    links = shown.page.locator("ul.trainings a, .trainings a")
    addresses = {links.nth(i).get_attribute("href") for i in range(links.count())}
    assert addresses == {f"{name}.html" for name in (*TRAININGS, *MANY)}
    shown.close()


def test_the_checks_of_this_file_can_fail(tmp_path, browser):
    page = tmp_path / "bad.html"
    page.write_text(
        "<title>t</title><img src=absent.png><p style='color:#eee;width:2000px'>pale</p>"
        "<div style='overflow-x:auto;width:9em'><p style='width:99em'>wide</p></div>"
        "<script>console.log('said'); alert(1)</script><details><summary>s</summary>x<p>y</details>"
    )
    shown = Shown(browser, page)
    rules = {line.split(": ")[1] for line in shown.findings_of_axe()}
    assert {"image-alt", "html-has-lang", "color-contrast"} <= rules
    assert shown.sideways()["scrolls"] > 0
    assert len(shown.scrolling_boxes()) == 1
    assert {"said", "dialog: 1"} <= set(shown.complaints)
    assert [Path(address).name for address in shown.requests] == ["absent.png"]
    assert shown.visible_groups("screen") == [False]
    assert shown.tab_to("summary")
    assert not shown.tab_to("button")
    shown.close()
