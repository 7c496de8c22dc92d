"""The privacy block and section in huggingface_hub's own model card."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import yaml
from checked_reports import HOSTILE, violated
from huggingface_hub import ModelCard, ModelCardData
from made_report import made_report
from places import DOCS
from shown_code import blocks, run

from lightning_audit.card import as_markdown, privacy_block, privacy_section, registry_entry

FACTS = {"product": "weights", "harm": HOSTILE, "curator": "us", "justification": "a budget"}


def test_a_model_card_holds_block_and_section_and_gives_them_back(tmp_path: Path) -> None:
    report = made_report(environment={"lightning-audit": "9.9"})
    data = ModelCardData(license="mit", privacy=privacy_block(report, FACTS))
    section = privacy_section(report, FACTS, "digits")
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n# digits\n\n{section}")
    card.save(tmp_path / "README.md")
    read = ModelCard.load(tmp_path / "README.md")
    assert read.data.license == "mit"
    assert read.data.privacy == privacy_block(report, FACTS)
    assert read.data.privacy["audited_by"] == "lightning-audit 9.9"
    assert read.text.strip().endswith(section.strip())


def test_the_card_that_the_command_writes_is_a_model_card() -> None:
    card = ModelCard(as_markdown(violated(), {}, "digits"), ignore_metadata_errors=False)
    assert card.data.privacy["guarantee"] == "claimed and refuted"
    assert card.data.privacy["finding"] == "noise"
    assert card.text.strip().startswith("# Privacy card: digits")


def test_a_refuted_run_states_no_epsilon_of_steps_that_did_not_run() -> None:
    assert "epsilon_spent" not in privacy_block(violated())
    assert privacy_block(made_report())["epsilon_spent"] == 3.0
    report = violated()
    accounting = dataclasses.replace(report.verdict, kind="accounting")
    assert privacy_block(dataclasses.replace(report, verdict=accounting))["epsilon_spent"] == 3.0


def test_an_infinite_epsilon_is_text_that_yaml_keeps() -> None:
    block = privacy_block(made_report(spent=float("inf")))
    assert yaml.safe_load(yaml.safe_dump(block))["epsilon_spent"] == "inf"


def test_the_registrys_entry_has_known_parts_and_statements_in_their_places() -> None:
    entry = registry_entry(made_report(), FACTS)["deployment"]
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 8.0, "delta": 1e-5}
    assert entry["product"]["data_curators"] == "us"
    assert entry["implementation"]["justification"] == "a budget"
    assert "epsilon 3 at delta 1e-05" in entry["accounting"]["composition"]
    assert HOSTILE not in str(entry)


def test_a_refuted_claim_is_no_parameter_of_the_registrys_entry() -> None:
    entry = registry_entry(violated(), {})["deployment"]
    assert "privacy_parameters" not in entry["privacy_loss"]
    assert "claimed and refuted" in entry["privacy_loss"]["privacy_parameters_description"]
    assert "accounting" not in entry


def test_the_code_of_the_page_of_docs_makes_a_model_card(tmp_path: Path, monkeypatch) -> None:
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
