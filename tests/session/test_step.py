"""In any order of events, with exceptions anywhere, no canary stays and nothing else changes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bare_session import KeptEntries
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Dirac, Spread
from lightning_audit.dpsgd.opacus import OpacusStep
from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.hooks.boundary import Boundary, entry
from lightning_audit.session.begin import begin_session
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import TRANSITIONS, AuditSession, Event, State

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

# --- The table: every action exists, and every state leads to an end.


@pytest.mark.parametrize("kind", TRANSITIONS, ids=lambda kind: kind.__name__)
def test_every_action_exists_and_every_step_can_end(kind):
    table = TRANSITIONS[kind]
    for action, _ in table.values():
        assert callable(getattr(AuditSession, action))
    for state in State:
        assert (state, Event.FAILURE) in table
        assert state is State.READ or (state, Event.NOISE) in table
        if state is not State.FAILED:
            assert (state, Event.UPDATED) in table
    # What is summed or laid out leaves with the batch, or stays for the step to go on.
    for state in (State.READ, State.OUT):
        assert table[state, Event.BATCH] == ("_drop_step", State.SKIPPED)


def test_every_state_and_event_is_used():
    used = {pair for table in TRANSITIONS.values() for pair in table}
    assert {state for state, _ in used} == set(State)
    assert {event for _, event in used} == set(Event)


# --- Any order of events: the same weights, gradients and random numbers as without an audit.


class Stop(Exception):
    """Of the user's own code."""


class Own(DPOptimizer):
    """Raises where it is told to."""

    stops = ""

    def _stop(self, place: str) -> None:
        if self.stops == place:
            self.stops = ""
            raise Stop(place)

    def clip_and_accumulate(self) -> None:
        self._stop("before clipping")
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        self._stop("before the noise")
        super().add_noise()
        self._stop("after the noise")


class Private:
    """A net with a private optimizer, audited by a seed or not."""

    def __init__(self, seed: int | None) -> None:
        torch.manual_seed(0)
        self.net = GradSampleModule(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
        self.optimizer = Own(
            torch.optim.SGD(self.net.parameters(), lr=0.1),
            noise_multiplier=1.0,
            max_grad_norm=2.0,
            expected_batch_size=4,
            generator=torch.Generator().manual_seed(5),
        )
        self.data = torch.Generator().manual_seed(6)
        self.boundary, self.session = Boundary(), None
        if seed is not None:
            self.boundary.run(self._begin, (seed,), {})

    def _begin(self, seed: int) -> None:
        step = OpacusStep(self.optimizer, {}, self.net.modules())
        self.session = session_over(step, seed)
        self.session.watch()
        events = ("start_batch", "end_batch", "prepare", "conceal", "inject")
        self._entries = {name: entry(getattr(self.session, name)) for name in events}

    def told(self, event: str, *given: Any) -> None:
        """Call what a hook of Lightning calls; the audit's own failures end no training."""
        if self.session is not None:
            self._entries[event](*given)

    def backward(self, *, announced: bool) -> None:
        loss = self.net(torch.randn(3, 4, generator=self.data)).square().sum()
        if announced:
            self.told("prepare", Backward(loss))
        loss.backward()
        self.told("conceal")

    def seen(self) -> list[Any]:
        """What the user's code sees of the gradients."""
        held = [getattr(p, "grad_sample", None) for p in self.net.parameters()]
        return [
            [len(t) for t in rows] if isinstance(rows, list) else _length(rows) for rows in held
        ]


def _length(rows: Any) -> int | None:
    return None if rows is None else len(rows)


def session_over(step: Any, seed: int) -> AuditSession:
    audit = PrivacyAudit(seed=seed, canaries=(Dirac(), Spread()), every_n_steps=1)
    rng = np.random.default_rng(seed)
    record: Any = KeptEntries()
    return begin_session(
        step, audit.config, rng, lambda batches: None, lambda header: record, Ranks()
    )


#: Functions of the audit that fail, each by its owner.
FAILS = [
    ("planner", "plan"),
    ("planner", "count_batch"),
    ("step", "lay_out"),
    ("step", "put_in"),
    ("step", "copy_in"),
    ("inserter", "take_out"),
    ("inserter", "completed"),
    ("inserter", "clear"),
    ("noise", "read"),
    ("noise", "completed"),
    ("tap", "noise_is_in"),
    ("tap", "read"),
    ("tap", "due_gradient"),
    ("tap", "end_step"),
    ("recorder", "take"),
]


class AnyOrder(RuleBasedStateMachine):
    """A private optimizer, and its twin without an audit."""

    @initialize(seed=st.integers(0, 9))
    def begin(self, seed: int) -> None:
        self.both = [Private(seed), Private(None)]
        self.audited = self.both[0]
        self.done = False

    @property
    def session(self) -> AuditSession:
        assert self.audited.session is not None
        return self.audited.session

    def each(self, act: Callable[[Private], Any]) -> None:
        """Do the same with both; what is raised is the same."""
        raised = []
        for one in self.both:
            try:
                act(one)
            except (Stop, ValueError, AttributeError, RuntimeError) as error:
                raised.append(type(error))
            else:
                raised.append(type(None))
        assert raised[0] is raised[1], raised

    @rule()
    def batch(self) -> None:
        self.audited.told("start_batch")

    @rule()
    def batch_end(self) -> None:
        self.audited.told("end_batch")

    @rule(announced=st.booleans())
    def backward(self, announced: bool) -> None:
        self.each(lambda one: one.backward(announced=announced))

    @rule(announced=st.booleans())
    def part(self, announced: bool) -> None:
        """A physical batch of a larger logical one."""
        self.each(lambda one: one.optimizer.signal_skip_step(do_skip=True))
        self.each(lambda one: one.backward(announced=announced))
        if announced:
            self.audited.told("inject")
        self.step(again=True)

    @rule()
    def announce(self) -> None:
        self.audited.told("inject")

    @rule(again=st.booleans())
    def step(self, again: bool) -> None:
        self.each(lambda one: one.optimizer.step())
        if again:
            self.zero_grad()

    @rule()
    def closure(self) -> None:
        def run(one: Private) -> None:
            def closure() -> None:
                one.backward(announced=True)
                one.told("inject")

            one.optimizer.step(closure)

        self.each(run)

    @rule()
    def zero_grad(self) -> None:
        self.each(lambda one: one.optimizer.zero_grad())

    @rule(place=st.sampled_from(["before clipping", "before the noise", "after the noise"]))
    def stop(self, place: str) -> None:
        for one in self.both:
            one.optimizer.stops = place

    @rule(name=st.sampled_from(FAILS))
    def fail(self, name: tuple[str, str]) -> None:
        owner, method = getattr(self.session, name[0]), name[1]
        own = getattr(owner, method)

        def failing(*given: Any, **more: Any) -> Any:
            vars(owner).pop(method, None)
            if self.done:
                return own(*given, **more)
            raise MemoryError("of the audit")

        setattr(owner, method, failing)

    @rule()
    def interrupt(self) -> None:
        self.audited.boundary.leave()

    @rule()
    def pause(self) -> None:
        self.session.pause(paused=True)
        self.session.pause(paused=False)

    @invariant()
    def same(self) -> None:
        """The user's code sees the same gradients, weights and random numbers."""
        audited, alone = self.both
        inside = self.session.stage in (State.IN, State.SUMMED, State.OUT)
        if not inside:  # between `inject` and the end of the step, rows are in
            assert audited.seen() == alone.seen()
        for one, other in zip(audited.net.parameters(), alone.net.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=2e-5)
        states = [one.optimizer.generator.get_state() for one in self.both]
        assert torch.equal(*states)

    def teardown(self) -> None:
        """Nothing is hooked, and the twins go on alike."""
        if not hasattr(self, "both"):
            return
        self.done = True
        self.session.detach()
        audited, alone = self.both
        assert audited.seen() == alone.seen()
        for one, other in zip(audited.net.parameters(), alone.net.parameters(), strict=True):
            for name in ("grad_sample", "summed_grad", "grad"):
                pair = [getattr(p, name, None) for p in (one, other)]
                if all(isinstance(t, torch.Tensor) for t in pair):
                    torch.testing.assert_close(*pair, rtol=0.0, atol=2e-4)
        assert not {"pre_step", "add_noise", "clip_and_accumulate"} & set(vars(audited.optimizer))
        assert self.session.stage in (State.SKIPPED, State.SUMMED)
        for each in self.both:
            each.optimizer.stops = ""
            each.optimizer._step_skip_queue.clear()
            each.optimizer.zero_grad()
            each.backward(announced=False)
        self.each(lambda one: one.optimizer.step())
        self.same()


AnyOrder.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=18,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
TestAnyOrder = AnyOrder.TestCase
