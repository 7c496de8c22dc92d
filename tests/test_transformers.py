"""Hugging Face's Trainer under audit, in an environment of its own."""

from typing import Any

import pytest
from environments import printed_by

EXAMINED = {"replay.noise", "replay.sensitivity", "replay.clipping", "replay.release"}


@pytest.fixture
def cases(tmp_path):
    """Runs cases of transformers_worker.py in one process."""

    def run(*names: str) -> Any:
        script, quiet = "transformers_worker.py", {"HF_HUB_OFFLINE": "1"}
        return printed_by("transformers", script, tmp_path, ",".join(names), str(tmp_path), **quiet)

    return run


@pytest.mark.heavy
def test_a_trainer_passes_with_its_own_parameters_and_faults_are_named(cases):
    found = cases("correct", "half_noise", "accumulated", "lightnings")
    correct, half = found["correct"], found["half_noise"]
    assert (correct["outcome"], correct["steps"], correct["notes"]) == ("PASS", 100, [])
    assert {*correct["examined"]} == EXAMINED
    assert correct["difference"] < 1e-5
    assert half["error"].startswith("PrivacyViolation")
    assert (half["name"], half["steps"]) == ("noise_too_small", 1)
    assert "examples/finetune.py" in half["error"]
    assert "gradient_accumulation_steps=2" in found["accumulated"]["error"]
    assert "lightning_audit.transformers.PrivacyAuditCallback" in found["lightnings"]["error"]


@pytest.mark.nightly
def test_each_model_in_each_mode_passes_and_its_faults_are_named(cases):
    found = cases("matrix", "differences")
    names = {
        "correct": "",
        "half noise": "noise_too_small",
        "head": "clipping_misses_tensors",
        "own loader": "not_poisson",
    }
    wrong = {
        cell: (one["outcome"], one["name"], one["error"][:300])
        for cell, one in found["matrix"].items()
        for kind, name in names.items()
        if cell.endswith(kind)
        and (one["outcome"], one["name"]) != ("VIOLATION" if name else "PASS", name)
        # With LoRA one of its two tensors has no gradient in the first step.
        and not ("lora" in cell and one["name"] == "no_clipping")
    }
    assert wrong == {}
    assert len(found["matrix"]) == 72
    assert max(found["differences"].values()) < 1e-5


@pytest.mark.nightly
def test_ghost_clipping_and_a_loop_through_accelerate_pass(cases):
    found = cases("ghost", "accelerated")
    assert [one["outcome"] for one in found.values()] == ["PASS", "PASS"]
    assert {*found["accelerated"]["examined"]} == EXAMINED


@pytest.mark.nightly
def test_a_loss_divided_by_the_tokens_of_a_batch_couples_records(cases):
    found = cases("tokens")["tokens"]
    for name in ("as it is", "smoothed"):
        one = found[name]
        assert (one["name"], one["finding"], one["steps"]) == ("records_coupled", "coupling", 0)
        assert "compute_loss" in one["error"]
    assert found["mean of records"]["outcome"] == "PASS"


@pytest.mark.nightly
def test_a_checkpoint_has_the_audits_state_and_a_resumed_training_continues_it(cases):
    found = cases("resumed")["resumed"]
    assert found["first"]["steps"] == 50
    assert "privacy_audit.pt" in found["files"]
    then = found["then"]
    assert (then["outcome"], then["steps"], then["error"]) == ("PASS", 100, "")
    assert any("resumed once" in note for note in then["notes"])


@pytest.mark.nightly
def test_every_end_of_a_training_ends_its_audit(cases):
    found = cases("ends")["ends"]
    assert found["breaks"]["error"] == "KeyError: 'a record'"
    assert "the training broke off with KeyError" in found["breaks"]["blockers"]
    assert found["stop"]["error"] == ""
    assert (found["stop"]["outcome"], found["stop"]["steps"]) == ("VIOLATION", 2)
    assert (found["warn"]["outcome"], found["warn"]["steps"]) == ("VIOLATION", 100)
    assert found["budget"]["error"].startswith("ClaimUsedUp")
    assert found["budget stop"]["error"] == ""
    assert found["budget"]["steps"] == found["budget stop"]["steps"] < 100
    assert found["best"]["outcome"] == "PASS"
    assert [one["outcome"] for one in found["twice"]] == ["PASS", "PASS"]
    assert found["left"] == []
    assert found["around nothing"]


@pytest.mark.heavy
def test_a_failure_before_the_audit_begins_is_named_and_the_training_goes_on(cases):
    found = cases("failed")["failed"]
    places = {"state": "_saved", "labels": "_look_at_labels", "alone": "_trainers_frame"}
    for name, place in places.items():
        assert found[name]["error"] == ""
        assert found[name]["outcome"] == "INCONCLUSIVE"
        assert f"in transformers.{place}" in found[name]["blockers"][0]
    assert found["state"]["last"] == found["labels"]["last"] == 4
    assert found["raised"]["error"].startswith("InconclusiveAudit")


@pytest.mark.nightly
def test_the_trainers_loggers_get_the_metrics_of_the_last_epoch(cases):
    found = cases("logged")["logged"]
    assert {"train/audit/epsilon_lower", "train/audit/epsilon_spent"} <= {*found["board"]}
    assert any(note.startswith("max_grad_norm of TrainingArguments") for note in found["notes"])


@pytest.mark.nightly
def test_settings_that_cannot_be_audited_are_refused_with_what_to_write(cases):
    found = cases("refused")["refused"]
    assert "bf16=True" in found["fp16"]
    assert "gradient_checkpointing=False" in found["checkpointing"]
    assert "auto_find_batch_size=False" in found["batch size"]
    assert found["unknown"].startswith("TypeError")
    assert "claimd" in found["unknown"]
    assert found["negative"].startswith("ValueError: claimed_epsilon=-1")
    assert found["stream"] == "not_poisson"  # its loader has no length


@pytest.mark.nightly
def test_the_example_is_as_expected(cases):
    assert cases("examples")["examples"] == {"code": 0}
