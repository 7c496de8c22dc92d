"""A card answers what standards ask, and promises nothing that the audit does not support."""

import dataclasses
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
from places import DOCS
from shown_code import blocks, run, text_of

from lightning_audit import card as cards
from lightning_audit.checks.check import QUESTIONS, REGISTRY
from lightning_audit.files import visible
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import ClaimedValue, ExaminationTold

# --- A card answers what standards ask, and promises nothing that the audit does not support.


def guarantee(report: AuditReport) -> str:
    return cards.privacy_card(report, {}, "t").rows["guarantee"][0].title


def answers(report: AuditReport) -> dict[str, tuple[str, str]]:
    found = cards.privacy_card(report, {}, "t").answers
    topics = {question: topic for topic, question in QUESTIONS.items()}
    return {topics[a.question]: (a.sign, a.answer) for a in found if a.question in topics}


def with_topic(report: AuditReport, topic: str, status: Any) -> AuditReport:
    """The report with all checks of a topic in one status."""
    checks = tuple(
        dataclasses.replace(check, status=status) if REGISTRY[check.name].topic == topic else check
        for check in report.checks
    )
    return dataclasses.replace(report, checks=checks)


def test_the_guarantee_has_the_standing_that_the_verdict_gives_it():
    assert guarantee(made_report()) == "Guarantee, claimed, and no fault was found"
    assert guarantee(violated()) == "Guarantee, claimed and refuted"
    assert guarantee(made_report("INCONCLUSIVE")) == "Guarantee, claimed and not confirmed"


@pytest.mark.parametrize("spent", [3.0, 13.0])
def test_what_the_owner_accepts_and_what_it_refutes_is_in_the_guarantee(spent):
    report = made_report(spent=spent, epsilon_refuted_by=("sampling.not_poisson",))
    verdict = dataclasses.replace(report.verdict, allowed=("sampling.not_poisson",))
    row = cards.privacy_card(dataclasses.replace(report, verdict=verdict), {}, "t").rows[
        "guarantee"
    ][0]
    assert row.title.startswith("Guarantee, except sampling.not_poisson, which the owner accepts: ")
    assert row.title.endswith("claimed, and no other fault was found")
    assert ("not known to hold" in row.text) == (spent > 8.0)
    assert f"ε = {max(spent, 8.0):g}," in row.text


def test_no_epsilon_is_made_up():
    report = made_report(claimed=None, spent=None, proved=None, epsilon_not_excluded=None)
    card = cards.privacy_card(report, {}, "t")
    assert card.rows["guarantee"][0].text == "no epsilon is claimed"
    assert {r.title: r.text for r in card.rows["guarantee"]}["Accounting"] == (
        "epsilon of the steps is unknown"
    )
    assert card.epsilons == ("Measured: no leak is proved by 800 readings.",)


def test_each_question_of_a_correct_run_has_the_answer_no_fault_found():
    assert answers(made_report()) == dict.fromkeys(QUESTIONS, ("✓", "no fault found"))


def test_a_violated_run_names_the_fault_and_no_question_that_rests_on_it_is_confirmed():
    found = answers(violated())
    assert found["Noise"] == ("✕", "no: too little noise overall")
    told = "only for the stated noise and clipping, which did not run"
    assert found["Total epsilon"] == ("?", told)
    assert found["Clipping"] == ("✓", "no fault found")


def test_a_failure_that_follows_is_not_named_as_a_fault():
    follows = {"reuse.lag": {"status": "violated", "follows_from": "noise"}}
    report = violated()
    checks = tuple(dataclasses.replace(c, **follows.get(c.name, {})) for c in report.checks)
    found = answers(dataclasses.replace(report, checks=checks))
    assert found["Fresh randomness"] == ("✕", "no: it follows from the fault that was found")


@pytest.mark.parametrize("topic", list(QUESTIONS))
def test_a_group_of_which_nothing_ran_is_not_examined(topic):
    found = answers(with_topic(made_report(), topic, "not_run"))
    assert found.pop(topic)[1] == "not examined"
    assert set(found.values()) == {("✓", "no fault found")}
    card = cards.privacy_card(with_topic(made_report(), topic, "not_run"), {}, "t")
    assert any(line.startswith("Not examined: ") for line in card.not_examined)


@pytest.mark.parametrize(("status", "word"), [("undecided", "undecided"), ("allowed", "accepted")])
def test_what_is_undecided_or_accepted_is_named(status, word):
    report = with_status("sampling.not_poisson", status)
    assert answers(report)["Sampling and bookkeeping"][1].startswith(f"{word}: ")


def test_power_is_stated_with_the_size_of_the_fault():
    card = cards.privacy_card(made_report(), {}, "t")
    by_question = {a.question: a.certainty for a in card.answers}
    assert by_question[QUESTIONS["Noise"]].endswith(
        "0.8 times the noise would be seen with 99\xa0%"
    )
    assert "2 times the clipping norm" in by_question[QUESTIONS["Clipping"]]


def test_statements_are_marked_and_missing_ones_are_not_stated():
    card = cards.privacy_card(made_report(), {"harm": "low"}, "t")
    stated = {row.title: row for rows in card.rows.values() for row in rows if row.stated}
    assert [row.title for row in stated.values()] == [fact.title for fact in cards.FACTS.values()]
    harm = stated.pop(cards.FACTS["harm"].title)
    assert (harm.text, harm.known) == ("low", True)
    assert {(row.text, row.known) for row in stated.values()} == {(cards.NOT_STATED, False)}


def test_what_is_logged_is_published_without_noise_and_warnings_have_a_row():
    report = made_report(published=("loss",))
    rows = {row.title: row for row in cards.privacy_card(report, {}, "lit").rows["guarantee"]}
    published = rows["Published without noise"]
    assert (published.text, published.stated) == ("the training logs `loss` (by the audit)", False)
    assert rows["Warnings"].text.startswith("the training logs `loss` without noise")
    stated = {"unprotected": "the accuracy"}
    rows = {row.title: row for row in cards.privacy_card(report, stated, "lit").rows["guarantee"]}
    both = "the accuracy; the training logs `loss` (by the audit)"
    assert (rows["Published without noise"].text, rows["Published without noise"].stated) == (
        both,
        True,
    )
    assert cards.privacy_block(report)["logged_without_noise"] == ["loss"]


def test_the_mechanism_is_that_of_the_claim_or_of_the_history():
    history = ((1.5, 0.01, 60), (1.0, 0.01, 40))
    words = "DP-SGD: Gaussian noise of {} times the clipping norm{}, Poisson sampling at rate {}"
    assert cards.mechanism(made_report(history=history)) == (
        f"{words.format('1.5 and 1', '', '0.01')}, 100 steps"
    )
    claim = {
        "noise_multiplier": ClaimedValue([1.0, 0.5], "optimizer"),
        "max_grad_norm": ClaimedValue(1.2, "user"),
        "sample_rate": ClaimedValue(0.02, "accountant"),
    }
    assert cards.mechanism(made_report(claim=claim, history=history)) == (
        f"{words.format('1 and 0.5', ' 1.2', '0.02')}, 100 steps"
    )
    assert "at the stated rate" in cards.mechanism(made_report(history=((1.0, None, 100),)))


def test_the_claims_adjacency_and_the_examinations_are_shown():
    report = made_report(
        settings={**made_report().settings, "claim": {"adjacency": "replace_one"}},
        examinations=(ExaminationTold(0, ("coupling",), (), 1.0),),
        complete=False,
    )
    rows = {r.title: r.text for r in cards.privacy_card(report, {}, "t").rows["guarantee"]}
    assert rows["Neighboring data sets"] == "one record is replaced by another"
    assert rows["Audit"].endswith("1 step run again without a record, the training had not ended")


@pytest.mark.parametrize(
    ("mu", "n", "standing", "answer"),
    [
        (1.0, 400, "claimed and not refuted", ("✓", "not refuted")),
        (2.5, 200, "claimed and refuted", ("✕", "no: trainings show the canary more than claimed")),
        (0.3, 60, "claimed and not confirmed", ("?", "not confirmed")),
    ],
)
def test_many_trainings_have_their_own_words(mu, n, standing, answer):
    report = audited(mu=mu, n=n).to_report()
    assert guarantee(report) == f"Guarantee, {standing}"
    card = cards.privacy_card(report, {}, "t")
    assert [(a.sign, a.answer) for a in card.answers] == [answer]
    rows = {row.title: row.text for row in card.rows["guarantee"]}
    assert rows["Mechanism"] == "1-GDP"
    assert rows["Audit"].startswith(f"trainings: {n} of {n} planned; coins: ")
    text = cards.privacy_section(report).replace("number of steps of a training", "")
    assert not any(word in text for word in ("step", "reading", "Other checks"))
    block = cards.privacy_block(report)
    assert (block["trainings"], block["guarantee"]) == (n, standing)
    assert "steps" not in block


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


def test_the_start_is_yaml_with_the_key_privacy():
    front, rest = parts(cards.as_markdown(made_report(), {"harm": "low"}, "digits"))
    assert list(front) == ["privacy"]
    assert front["privacy"]["epsilon_claimed"] == 8.0
    assert rest.startswith("\n# Privacy card: digits\n")


def test_all_sections_and_tables_are_there_for_a_reader():
    html = (
        MarkdownIt()
        .enable("table")
        .render(cards.body(cards.privacy_card(violated(), {}, "t"), level=2))
    )
    assert html.count("<table>") == 4
    assert html.count("<em>not stated</em>") == len(cards.FACTS)
    assert "Guarantee, claimed and refuted" in html


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


def test_what_the_owner_states_is_marked():
    text = cards.body(
        cards.privacy_card(made_report(), {"harm": "low", "unit": "a person"}, "t"), level=2
    )
    assert text.count(f"| {cards.STATED} ") == 2


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


def not_poisson(spent: float = 13.7) -> AuditReport:
    """A pass with batches that are not Poisson, which the user allows."""
    found = {"loader": "DataLoader with RandomSampler", "poisson": False}
    report = made_report(spent=spent, epsilon_refuted_by=("sampling.not_poisson",))
    checks = tuple(
        dataclasses.replace(check, status="allowed", evidence=found)
        if check.name == "sampling.not_poisson"
        else check
        for check in report.checks
    )
    verdict = dataclasses.replace(report.verdict, allowed=("sampling.not_poisson",))
    return dataclasses.replace(report, checks=checks, verdict=verdict)


def test_the_block_states_what_was_found_with_an_allowed_finding():
    report = not_poisson()
    block = cards.privacy_block(report)
    accepted = "except sampling.not_poisson, which the owner accepts: "
    assert block["guarantee"] == f"{accepted}claimed, and no other fault was found"
    assert block["epsilon_that_holds"] == 13.7
    assert "Poisson sampling at rate" not in block["mechanism"]
    told = "batches are not Poisson-sampled (DataLoader with RandomSampler)"
    assert told in block["mechanism"]
    told = "only without sampling.not_poisson, which the owner accepts"
    assert answers(report)["Total epsilon"] == ("?", told)


def test_a_claim_above_what_holds_stays_the_guarantee():
    report = not_poisson(spent=5.0)
    assert report.epsilon_that_holds == 8.0
    assert "not known to hold" not in cards.privacy_card(report, {}, "t").rows["guarantee"][0].text
    assert answers(report)["Total epsilon"] == ("✓", "no fault found")


def test_no_epsilon_is_known_if_none_holds_with_an_allowed_finding():
    report = dataclasses.replace(not_poisson(), epsilon_spent=None, claimed_epsilon=None)
    row = cards.privacy_card(report, {}, "t").rows["guarantee"][0]
    assert row.text == "no epsilon is known to hold"
