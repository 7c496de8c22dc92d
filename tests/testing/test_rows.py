from __future__ import annotations

import pickle

import pytest

from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import planned


def test_every_fault_of_the_registry_is_trained_within_its_steps() -> None:
    own = {row.fault.name: row.fault for row in planned() if row.group == "fault"}
    assert own == dict(FAULTS)


def test_named_faults_are_trained_alone_with_their_other_configurations() -> None:
    rows = planned(["half_noise"])
    assert {row.fault.name for row in rows} == {"half_noise", "noise_too_small"}
    assert {row.group for row in rows} == {"fault", "configuration", "published"}
    assert len(planned(["half_noise"], quick=True)) == 1


def test_a_row_can_be_sent_to_another_process_and_has_a_title_of_its_own() -> None:
    rows = planned()
    assert len({(row.group, row.title) for row in rows}) == len(rows)
    for row in rows:
        copied = pickle.loads(pickle.dumps(row))
        assert (copied.group, copied.title) == (row.group, row.title)
        assert copied.fault.training is row.fault.training


def test_a_fault_in_another_configuration_is_the_same_fault_for_as_many_optimizer_steps() -> None:
    own = FAULTS["half_noise"]
    others = {r.configuration: r.fault for r in planned(["half_noise"]) if r.group != "published"}
    assert {fault.optimizer for fault in others.values()} == {own.optimizer}
    assert others["split batches"].steps == 4 * others["functorch"].steps


def test_a_fault_of_the_clipping_is_not_trained_where_another_clipping_replaces_it() -> None:
    configurations = {row.configuration for row in planned(["no_clipping"])}
    assert not configurations & {"per layer", "adaptive clipping", "ghost clipping"}


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--fault noisy must be one of .*half_noise"):
        planned(["noisy"])
