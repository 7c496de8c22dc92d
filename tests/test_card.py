"""A card answers what standards ask, and promises nothing that the audit does not support.

Cards are compared whole with tests/data/cards: one, and of the others what differs from it.
`PYTHONPATH=tests/support:. python tests/test_card.py` writes them.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from checked_reports import HOSTILE, hostile, violated, with_status
from huggingface_hub import ModelCard, ModelCardData
from made_report import made_report
from many_trainings import audited
from markdown_it import MarkdownIt
from places import DATA, DOCS
from shown_code import blocks, run, text_of

from lightning_audit import __version__
from lightning_audit import card as cards
from lightning_audit.checks.check import QUESTIONS, REGISTRY
from lightning_audit.files import visible
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import ClaimedValue, ExaminationTold

CARDS = DATA / "cards"


def not_poisson(spent: float = 13.7, **changes: Any) -> AuditReport:
    """A pass with batches that are not Poisson, which the user allows."""
    found = {"loader": "DataLoader with RandomSampler", "poisson": False}
    report = with_status("sampling.not_poisson", "allowed", evidence=found)
    verdict = dataclasses.replace(report.verdict, allowed=("sampling.not_poisson",))
    refuted = {"epsilon_refuted_by": ("sampling.not_poisson",), "epsilon_spent": spent}
    return dataclasses.replace(report, **{"verdict": verdict, **refuted, **changes})


def following() -> AuditReport:
    """A violation with a failure that follows from its fault."""
    follows = {"reuse.lag": {"status": "violated", "follows_from": "noise"}}
    report = violated()
    checks = tuple(dataclasses.replace(c, **follows.get(c.name, {})) for c in report.checks)
    return dataclasses.replace(report, checks=checks)


CLAIM = {
    "noise_multiplier": ClaimedValue([1.0, 0.5], "optimizer"),
    "max_grad_norm": ClaimedValue(1.2, "user"),
    "sample_rate": ClaimedValue(0.02, "accountant"),
}
REPLACED = {**made_report().settings, "claim": {"adjacency": "replace_one"}}
#: Makes the report of each card.
REPORTS: dict[str, Callable[[], AuditReport]] = {
    "correct": made_report,
    "violated": violated,
    "follows": following,
    "inconclusive": lambda: made_report("INCONCLUSIVE"),
    "nothing-known": lambda: made_report(
        claimed=None, spent=None, proved=None, epsilon_not_excluded=None
    ),
    "accepted": not_poisson,
    "accepted-below-the-claim": lambda: not_poisson(5.0),
    "accepted-and-no-epsilon": lambda: not_poisson(epsilon_spent=None, claimed_epsilon=None),
    "undecided": lambda: with_status("sampling.not_poisson", "undecided"),
    "published": lambda: made_report(published=("loss",)),
    "history": lambda: made_report(history=((1.5, 0.01, 60), (1.0, 0.01, 40))),
    "rate-unknown": lambda: made_report(history=((1.0, None, 100),)),
    "claim": lambda: made_report(claim=CLAIM),
    "replace-one-broken-off": lambda: made_report(
        settings=REPLACED,
        examinations=(ExaminationTold(0, ("coupling",), (), 1.0),),
        complete=False,
    ),
    "many-not-refuted": lambda: audited(mu=1.0, n=400).to_report(),
    "many-refuted": lambda: audited(mu=2.5, n=200).to_report(),
    "many-not-confirmed": lambda: audited(mu=0.3, n=60).to_report(),
}
FACTS = {"harm": "low", "unprotected": "the accuracy"}


def card_of(name: str) -> str:
    report = dataclasses.replace(REPORTS[name](), created="", environment={})
    text = cards.as_markdown(report, FACTS, "digits")
    # Machines round differently.
    text = re.sub(r"\d+\.\d{9,}", lambda n: f"{float(n[0]):.9g}", text)
    return re.sub("[0-9a-f]{64}", "...", text).replace(f"lightning-audit {__version__}", "...")


def shown(name: str) -> str:
    """The card of a correct run, or what differs from it in another one."""
    if name == "correct":
        return card_of(name)
    lines = (card_of(one).splitlines() for one in ("correct", name))
    return "\n".join(difflib.unified_diff(*lines, "correct", name, "", "", 0, "")) + "\n"


def place_of(name: str) -> Path:
    return CARDS / (f"{name}.md" if name == "correct" else f"{name}.diff")


@pytest.mark.parametrize("name", REPORTS)
def test_a_card_is_as_it_was(name):
    assert shown(name) == place_of(name).read_text(encoding="utf-8")


def answers(report: AuditReport) -> dict[str, tuple[str, str]]:
    found = cards.privacy_card(report, {}, "t")["answers"]
    topics = {question: topic for topic, question in QUESTIONS.items()}
    return {topics[q]: (sign, answer) for q, sign, answer, _ in found if q in topics}


def with_topic(report: AuditReport, topic: str, status: Any) -> AuditReport:
    """The report with all checks of a topic in one status."""
    checks = tuple(
        dataclasses.replace(check, status=status) if REGISTRY[check.name].topic == topic else check
        for check in report.checks
    )
    return dataclasses.replace(report, checks=checks)


@pytest.mark.parametrize("topic", list(QUESTIONS))
def test_a_group_of_which_nothing_ran_is_not_examined(topic):
    found = answers(with_topic(made_report(), topic, "not_run"))
    assert found.pop(topic)[1] == "not examined"
    assert set(found.values()) == {("✓", "no fault found")}
    card = cards.privacy_card(with_topic(made_report(), topic, "not_run"), {}, "t")
    assert any(line.startswith("Not examined: ") for line in card["not_examined"])


# --- card.yaml is read as text, and what is wrong in it is named.


def written(folder: Path, text: str) -> Path:
    path = folder / "card.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_scalar_is_text_a_list_becomes_one_and_tags_of_python_run_nothing(tmp_path):
    text = (
        "review: 2027-01-01\nother_releases: no\nrecipients: [a, b]\nharm: |\n  two\n  lines\n"
        "product: é\x20\u202e\nthreats:\n"
    )
    assert cards.read_facts(written(tmp_path, text)) == {
        "product": "é \\u202e",
        "recipients": "a; b",
        "other_releases": "no",
        "harm": "two lines",
        "review": "2027-01-01",
    }
    assert cards.read_facts(written(tmp_path, "")) == {}
    path = written(tmp_path, "product: !!python/object/apply:os.system ['touch made']\n")
    assert cards.read_facts(path) == {"product": "touch made"}


def test_an_unknown_key_is_named_with_the_nearest_and_what_is_no_file_by_its_path(tmp_path):
    with pytest.raises(cards.BadFacts) as error:
        cards.read_facts(written(tmp_path, "recipents: x\n7: y\nproduct: z\n"))
    assert "'recipents': did you mean 'recipients'?" in str(error.value)
    assert "'7': allowed: actors, collection, " in str(error.value)
    assert "'product':" not in str(error.value)
    with pytest.raises(cards.BadFacts, match=r"cannot read the facts .*none\.yaml"):
        cards.read_facts(tmp_path / "none.yaml")
    with pytest.raises(cards.BadFacts, match="it is a directory"):
        cards.read_facts(tmp_path)


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
def test_what_is_no_mapping_of_texts_is_refused(tmp_path, text, message):
    with pytest.raises(cards.BadFacts, match=message):
        cards.read_facts(written(tmp_path, text))


def test_the_page_of_docs_lists_every_key_and_its_example_is_read(tmp_path):
    page = DOCS / "privacy-card.md"
    rows = [line for line in text_of(page).splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{key}` | {fact.title} | {', '.join(fact.asked_by)} |"
        for key, fact in cards.FACTS.items()
    ]
    (example,) = blocks(page, "yaml")
    assert len(cards.read_facts(written(tmp_path, example))) == len(example.splitlines())


# --- The card as Markdown: YAML that a model card reads, and text that stays text.


def parts(text: str) -> tuple[dict[str, object], str]:
    """The YAML at the start, and the rest."""
    front, rest = text.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(front), rest


@pytest.mark.parametrize("text", [HOSTILE, "x" * 300, "a | b", "```\n---\n", "- x: {{ y }}"])
def test_foreign_text_is_shown_as_it_is(text):
    report = hostile()[0].report
    assert report is not None
    facts = dict.fromkeys(cards.FACTS, visible(" ".join(text.split())))  # as they are read
    front, rest = parts(cards.as_markdown(report, facts, text))
    assert front["privacy"]["stated_by_the_owner"] == facts
    page = MarkdownIt("commonmark", {"html": True}).enable("table")
    kinds = {t.type for token in page.parse(rest) for t in (token, *(token.children or ()))}
    assert not {kind for kind in kinds if kind.startswith(("html", "link", "image"))}
    rows = [line for line in rest.splitlines() if line.startswith("| **")]
    assert all(row.count(" | ") == 2 for row in rows)


# --- The card as a page: one file without script, in which foreign text stays text.


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


def test_the_page_loads_nothing_has_unique_names_and_shows_what_is_refuted_or_not_stated():
    read = Read(cards.as_page(violated(), {"harm": "low"}, "digits"))
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert not {"src", "style", "onclick"} & {name for name, _ in read.attributes}
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 5
    assert read.tags.count("h1") == 1
    assert "claimed and refuted" in read.text
    assert read.text.count("not stated") == len(cards.FACTS) - 1


def test_foreign_text_is_shown_on_the_page_as_it_is():
    report = hostile()[0].report
    assert report is not None
    facts = dict.fromkeys(cards.FACTS, "<script>alert(1)</script>")
    read = Read(cards.as_page(report, facts, HOSTILE))
    assert "script" not in read.tags
    assert read.text.count("<script>alert(1)</script>") >= len(cards.FACTS)
    assert "\x1b" not in read.text


# --- The privacy block and section in huggingface_hub's own model card.

STATEMENTS = {"product": "weights", "harm": HOSTILE, "curator": "us", "justification": "a budget"}


def test_a_model_card_holds_block_and_section_and_gives_them_back(tmp_path):
    report = made_report(environment={"lightning-audit": "9.9"})
    data = ModelCardData(license="mit", privacy=cards.privacy_block(report, STATEMENTS))
    section = cards.privacy_section(report, STATEMENTS, "digits")
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n# digits\n\n{section}")
    card.save(tmp_path / "README.md")
    read = ModelCard.load(tmp_path / "README.md")
    assert read.data.license == "mit"
    assert read.data.privacy == cards.privacy_block(report, STATEMENTS)
    assert read.data.privacy["audited_by"] == "lightning-audit 9.9"
    assert read.text.strip().endswith(section.strip())


def test_a_refuted_run_states_no_epsilon_of_steps_that_did_not_run():
    report = violated()
    accounting = dataclasses.replace(report.verdict, kind="accounting")
    for made, spent in (
        (report, None),
        (made_report(), 3.0),
        (dataclasses.replace(report, verdict=accounting), 3.0),
        (made_report(spent=float("inf")), "inf"),
    ):
        block = yaml.safe_load(yaml.safe_dump(cards.privacy_block(made)))
        assert block.get("epsilon_spent") == spent
    text = cards.as_markdown(report, {}, "digits")
    block = ModelCard(text, ignore_metadata_errors=False).data.privacy
    assert (block["guarantee"], block["finding"]) == ("claimed and refuted", "noise")


def test_the_code_of_the_page_of_docs_makes_a_model_card(tmp_path, monkeypatch):
    (code,) = blocks(DOCS / "privacy-card.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit").mkdir()
    made_report().save(tmp_path / "audit" / "report.json")
    (tmp_path / "card.yaml").write_text("harm: low\n")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    run(code)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit"
    assert card.data.privacy["audit_outcome"] == "PASS"
    assert "# Mine" in card.text
    assert "\n## Privacy\n" in card.text


if __name__ == "__main__":
    for each in REPORTS:
        place_of(each).write_text(shown(each), encoding="utf-8")
