"""The first line of a pass names what was examined, and what was not with its reason."""

from __future__ import annotations

from lightning_audit.checks.replay import Answer, Coupling, ExaminationLog
from lightning_audit.checks.replayed_noise import NoiseLook
from lightning_audit.verdict.judge import describe_examined


def line(log: ExaminationLog, coupling: Coupling) -> str:
    return describe_examined([*log.results(0.05), coupling.result(log.off)])


def test_what_was_asked_is_named_without_the_counts_that_batch_sizes_decide() -> None:
    log, coupling = ExaminationLog(), Coupling()
    for step in (0, 5):
        answers = {
            "replay.sensitivity": Answer(9),
            "replay.clipping": Answer(32),
            "replay.release": Answer(2),
            "replay.noise": Answer(12, noise=NoiseLook({}, draws=12, entries=30)),
        }
        log.take(step, answers)
        coupling.take(step, Answer(1))
    assert line(log, coupling) == (
        "examined by replay: records, crafted gradients, the state after a step, draws of the "
        "noise, coupling of records"
    )


def test_what_was_not_asked_has_its_reason_and_equal_reasons_stand_once() -> None:
    log, coupling = ExaminationLog(), Coupling()
    none = Answer(reason="no per-sample gradients are formed")
    log.take(0, {"replay.sensitivity": Answer(9), "replay.clipping": none, "replay.noise": none})
    log.take(0, {"replay.release": Answer(reason="optimizer state does not fit")})
    coupling.take(0, none)
    log.between_epochs = 1
    assert line(log, coupling) == (
        "by canaries and noise; examined by replay: records; not examined: clipping, noise, "
        "coupling (no per-sample gradients are formed); release (optimizer state does not fit)"
    )


def test_weights_that_change_between_epochs_are_named() -> None:
    log = ExaminationLog(between_epochs=1)
    log.take(0, {"replay.release": Answer(2)})
    assert line(log, Coupling()).endswith("; what changes the weights between epochs")


def test_where_nothing_was_examined_it_says_so() -> None:
    log = ExaminationLog(off="examinations=0")
    assert line(log, Coupling()) == (
        "by canaries and noise; not examined: sensitivity, clipping, release, noise, coupling "
        "(examinations=0)"
    )
    assert describe_examined([]) == ""
