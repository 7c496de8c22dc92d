"""Details that a report holds in addition to its verdict; fields of schema 6 with defaults.

Every view of a report is rendered from them. Their steps count from 0, as all steps of
report.json do; texts that people read count from 1.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

#: Places in code as text: "Lit.training_step at src/model.py:41, Half at src/half.py:7".
_PLACE = re.compile(r"(?:^|, )([^,]+?) at (?!/)([^:]+?):([1-9]\d{0,6})(?=, |$)")


#: What a report of `attach` has as the strategy.
PLAIN_LOOP = "plain loop"
#: What a text says to users of Lightning alone.
_OF_LIGHTNING = re.compile(r" \(Lightning: (?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")


def for_plain_loop(value: Any) -> Any:
    """Return a report, or a part of one, without what its texts say to users of Lightning alone."""
    if isinstance(value, str):
        return _OF_LIGHTNING.sub("", value)
    if isinstance(value, tuple):
        return tuple(map(for_plain_loop, value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: for_plain_loop(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **parts)
    return value


@dataclass(frozen=True)
class CodePlace:
    """A part of the user's code.

    Args:
        file: path from the root of its repository, else from the working directory; the name
            alone if it is in neither.
        line: first line, from 1.
        end_line: last line.
        name: qualified name of the class or function, such as "HalfNoise.add_noise".
        source: its first 12 lines at most; empty with ``source_in_report=False``.
    """

    file: str
    line: int
    end_line: int
    name: str
    source: str = ""

    def __str__(self) -> str:
        """The name and the place of its first line."""
        return f"{self.name} at {self.file}:{self.line}"

    @property
    def pointer(self) -> str:
        """The same as compilers and terminals have it, such as "a.py:7 Half.add_noise"."""
        return f"{self.file}:{self.line} {self.name}"

    @property
    def is_relative(self) -> bool:
        """Whether its file lies in the repository; false in a report that was edited."""
        path = self.file.replace("\\", "/")
        leaves = path.startswith("/") or ":" in path or ".." in path.split("/")
        return bool(path) and not leaves and 1 <= self.line < 10**7


def places_in(text: str) -> tuple[CodePlace, ...]:
    """Read places of code from text; a path that leaves the repository is none.

    Example:
        >>> [str(place) for place in places_in("Half at a.py:3, nowhere, f at ../b.py:1")]
        ['Half at a.py:3']
    """
    found = (CodePlace(f, int(n), int(n), name) for name, f, n in _PLACE.findall(text))
    return tuple(place for place in found if place.is_relative)


def as_now(data: Any) -> Any:
    """Return a report's JSON with the places of code as objects, which were text once."""
    verdict = data.get("verdict")
    faults = verdict.get("faults") if isinstance(verdict, dict) else None
    for fault in faults if isinstance(faults, list) else []:
        place = fault.get("place") if isinstance(fault, dict) else None
        if isinstance(place, dict) and isinstance(place.get("code"), str):
            place["code"] = [asdict(one) for one in places_in(place["code"])]
    return data


@dataclass(frozen=True)
class CheckGrowth:
    """How the e-value of a check by e-process grew.

    Args:
        threshold: natural logarithm of the e-value at which it flags; `growth` is compared with it.
        growth: (step, largest log e-value so far), 12 at most. Of a private check whole powers of
            ten only, and only since the last resume.
        optimizer: of which private optimizer, the one closest to its threshold; empty if there is
            one only, or if the check is of the run.
    """

    threshold: float
    growth: tuple[tuple[int, float], ...] = ()
    optimizer: str = ""


@dataclass(frozen=True)
class TensorNoise:
    """What was read of a tensor's noise at its probe coordinates.

    Args:
        name: of the tensor.
        size: its entries.
        entries: its probe coordinates.
        reads: readings of them, over all steps.
        ratio: standard deviation of the readings over the claimed noise, of noise plus data;
            None if nothing was read.
        lower: lower limit of ``ratio`` if readings are Gaussian, for a single look.
        upper: upper limit of the noise over its claim, for any data and at all looks.
        flagged: whether `noise.tensor` accuses it.
        optimizer: of which private optimizer; empty if there is one only.
    """

    name: str
    size: int
    entries: int
    reads: int
    ratio: float | None
    lower: float | None
    upper: float | None
    flagged: bool
    optimizer: str = ""


@dataclass(frozen=True)
class CourseRow:
    """The state of an audit at an epoch's end.

    Args:
        step: steps of the private optimizers so far.
        epoch: number of the epoch, from 0.
        mu_lower: lower bound on the leakiest step's mu so far, for all looks; None if unknown.
        log_e: natural logarithm of the joint e-value of the checks of released gradients; the claim
            is refuted at ``log(1 / significance)``.
        observations: canary readings so far.
    """

    step: int
    epoch: int
    mu_lower: float | None
    log_e: float
    observations: int


@dataclass(frozen=True)
class OperatingPoint:
    """How often the coins were guessed wrong at one threshold, over the whole run.

    Args:
        threshold: a reading above it is guessed "in": 0.5 is half way between out and in.
        fn: canary in, guessed out.
        tp: canary in, guessed in.
        fp: canary out, guessed in.
        tn: canary out, guessed out.
        fpr: limits of the false positive rate, at a quarter of ``bound_significance`` each; None
            without a trial.
        fnr: limits of the false negative rate.
        outside: whether no rates within these limits fit the claimed mu.
    """

    threshold: float
    fn: int
    tp: int
    fp: int
    tn: int
    fpr: tuple[float, float] | None = None
    fnr: tuple[float, float] | None = None
    outside: bool = False


@dataclass(frozen=True)
class ClaimedValue:
    """A part of the claim that was audited.

    Args:
        value: a number or a word; a list in the order of the optimizers if they differ.
        source: "user", "optimizer", "accountant", "loader", or "default".
    """

    value: Any
    source: str


@dataclass(frozen=True)
class Ended:
    """How a training ended.

    Args:
        step: steps of the private optimizers that were taken.
        reason: "planned" (all planned steps or epochs), "violation" (the audit stopped it),
            "budget" (one step more would exceed the claim), "stopped" (by a callback or the user)
            or "broke off" (an exception).
    """

    step: int
    reason: str


@dataclass(frozen=True)
class PassBlocker:
    """What keeps an audit from a pass.

    Args:
        kind: "power", "optimizer" (another one of its steps), "check" or "run".
        sentence: in words, as in the verdict's `pass_blockers`.
        part: part of the resolution ("noise", "sensitivity"), or name of the check; or empty.
        power: probability that the run would have shown a violation of this part.
        power_needed: what a pass needs.
        steps_more: steps that are still missing, about; None if unknown.
    """

    kind: str
    sentence: str
    part: str = ""
    power: float | None = None
    power_needed: float | None = None
    steps_more: int | None = None


@dataclass(frozen=True)
class RunAbout:
    """The circumstances of a training.

    Args:
        name: class of the module that was trained.
        started: when its training began, in ISO 8601 with the zone.
        seconds: since then.
        device: such as "cpu" or "cuda (NVIDIA H100)".
        precision: by Lightning's name.
        processes: that train together.
        strategy: class of Lightning's strategy, or `PLAIN_LOOP`.
        commit: of the repository that holds the module's code; None if it is in none.
        data: class of the data set; empty if unknown.
    """

    name: str = ""
    started: str = ""
    seconds: float = 0.0
    device: str = ""
    precision: str = ""
    processes: int = 1
    strategy: str = ""
    commit: str | None = None
    data: str = ""


@dataclass(frozen=True)
class MeasuredEpsilon:
    """An estimate of the epsilon of the mechanism that ran, if everything else is as stated.

    Args:
        lower: at the least leakage that was measured; infinite without noise.
        upper: at the largest; None if only a lower limit was measured.
        about: at the leakage that was measured; None without ``upper``.
        steps: number of steps of which it is composed.
        planned: whether these are all planned steps, not only those that were taken.
        measured: what was measured, in words.
        of: whose gradients or steps it is about, in words; empty for those of any record.
        least_noise: name of the tensor with the least noise; empty if tensors may be alike.
        most: for records whose gradient lies in it alone; None if tensors may be alike.
    """

    lower: float
    upper: float | None
    about: float | None
    steps: int
    planned: bool
    measured: str
    of: str = ""
    least_noise: str = ""
    most: float | None = None


@dataclass(frozen=True)
class Assumption:
    """What a number rests on.

    Args:
        name: in a few words.
        sentence: in full.
    """

    name: str
    sentence: str


@dataclass(frozen=True)
class ExaminationTold:
    """An examination of a step by replay.

    Args:
        step: number of the step, from 0.
        questions: names of the checks that were tested.
        findings: those that found something.
        seconds: that it took.
    """

    step: int
    questions: tuple[str, ...]
    findings: tuple[str, ...]
    seconds: float
