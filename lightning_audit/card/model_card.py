"""The privacy block and section of a model card, and the entry of the OpenDP registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit import __version__
from lightning_audit.card.card_content import (
    claimed,
    digest_of,
    mechanism,
    privacy_card,
    refuted_mechanism,
    standing,
)
from lightning_audit.card.card_facts import FACTS
from lightning_audit.page.epsilon_rows import adjacency_words
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_json import plain


def privacy_block(report: AuditReport, facts: Mapping[str, str] = {}) -> dict[str, Any]:
    """Return the value of ``privacy`` in the YAML of a model card.

    Args:
        report: of the training.
        facts: statements of the owner, from `card_facts.read_facts`.

    Returns:
        Plain values, without those that are unknown.

    Example:
        >>> from huggingface_hub import ModelCardData  # doctest: +SKIP
        >>> data = ModelCardData(license="mit", privacy=privacy_block(report))  # doctest: +SKIP
    """
    root, seen = report.verdict.root, report.trainings
    block = {
        "guarantee": standing(report),
        "audit_outcome": report.verdict.outcome,
        "finding": root.finding if root else None,
        "accepted_findings": list(report.verdict.allowed) or None,
        "epsilon_claimed": report.claimed_epsilon,
        "epsilon_spent": None if refuted_mechanism(report) else report.epsilon_spent,
        "epsilon_proved_at_least": report.epsilon_lower,
        "epsilon_not_excluded": report.epsilon_not_excluded,
        "delta": report.delta,
        "neighboring_data_sets": adjacency_words(report),
        "mechanism": mechanism(report),
        "noise_multiplier": claimed(report, "noise_multiplier"),
        "clipping_norm": claimed(report, "max_grad_norm"),
        "steps": report.steps if seen is None else None,
        "trainings": None if seen is None else seen.trainings,
        "audited_by": f"lightning-audit {report.environment.get('lightning-audit', __version__)}",
        "report_sha256": digest_of(report),
        "stated_by_the_owner": dict(facts) or None,
    }
    return {name: plain(value) for name, value in block.items() if value is not None}


def privacy_section(
    report: AuditReport,
    facts: Mapping[str, str] = {},
    name: str = "this model",
) -> str:
    """Return the section "Privacy" of a model card as Markdown.

    Args:
        report: of the training.
        facts: statements of the owner, from `card_facts.read_facts`.
        name: of the model.
    """
    from lightning_audit.card.card_markdown import body

    return "## Privacy\n\n" + body(privacy_card(report, facts, name), level=3)


def registry_entry(report: AuditReport, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of the OpenDP deployments registry, as far as it is known.

    The layout is that of the files in https://github.com/opendp/deployments-registry-data. A claim
    that is refuted is described, and is no parameter of the entry.
    """
    claim = f"epsilon {report.claimed_epsilon} at delta {report.delta:g}"
    loss: dict[str, Any] = {"privacy_unit": "record-level"}
    if report.claimed_epsilon is not None:
        if report.verdict.outcome != "VIOLATION":
            loss["privacy_parameters"] = {"epsilon": report.claimed_epsilon, "delta": report.delta}
        loss["privacy_parameters_description"] = f"{claim}, {standing(report)} (by lightning-audit)"
    deployment: dict[str, dict[str, Any]] = {
        "product": {"data_product_type": "Machine learning model"},
        "dp_flavor": {
            "name": "Approximate DP",
            "bound_on_input_distance": adjacency_words(report),
        },
        "privacy_loss": loss,
        "model": {"model_name": "Central"},
        "accounting": {},
        "implementation": {"mechanisms": mechanism(report)},
    }
    if report.epsilon_spent is not None and not refuted_mechanism(report):
        spent = f"epsilon {report.epsilon_spent:.4g} at delta {report.delta:g}"
        deployment["accounting"]["composition"] = (
            f"privacy loss distributions over {report.steps} steps: {spent}"
        )
    for key, text in facts.items():
        part, *rest = FACTS[key].registry or ("",)
        if rest:
            deployment[part][rest[0]] = text
    kept = {part: values for part, values in deployment.items() if values}
    entry: dict[str, Any] = plain({"status": "Draft", "deployment": kept})
    return entry
