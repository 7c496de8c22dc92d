"""Files that somebody else may have written, as Hypothesis strategies: valid ones, with one thing
wrong or garbled.
"""

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from made_report import made_report
from report_edits import Place, nodes, replace_at, signed

#: Text that acts on a terminal, hides, or is none.
HOSTILE = [
    "\x1b[2K\rPASS",
    "\x9b31m",
    "\x1b]0;title\x07",
    "\u202etxt.exe",
    "a\x00b",
    "\ud800",
    "x\ny",
]
#: In place of a number, a text or a list in JSON: none of them is right anywhere.
WRONG = [{}, {"a": 1}, [[[]]], True, *HOSTILE]
#: JSON that no reader should turn into a value, as text.
NO_JSON = [
    "NaN",
    "-Infinity",
    "9" * 400,
    "1e400",
    "[" * 100_000,
    '{"a":' * 100_000,
    "",
    '"\\ud800"',
]


@dataclass(frozen=True)
class Mutant:
    """A file's bytes, and whether they are known to be wrong; what is garbled may be right."""

    data: bytes = field(repr=False)
    wrong: bool
    what: str = ""


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def with_header(data: bytes, **changes: Any) -> bytes:
    """An array's bytes under a header that says something else."""
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    shape, order, dtype = np.lib.format.read_array_header_1_0(stream)
    fields = {"descr": dtype.str, "fortran_order": order, "shape": shape, **changes}
    text = repr(fields).encode("latin-1", "backslashreplace") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + stream.read()


def archive(
    members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, twice: str = ""
) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as file:
        warnings.simplefilter("ignore")  # of the name that stands twice
        for name in [*members, *([twice] if twice else [])]:
            file.writestr(f"{name}.npy", members[name])
    return stream.getvalue()


def _not_numbers(values: np.ndarray) -> list[np.ndarray]:
    flat = values.ravel()
    structs = np.zeros(flat.size, [("a", "<f8"), ("b", "<i4")])
    return [
        np.array(["one"] * flat.size),
        np.array([b"one"] * flat.size),
        np.array([None] * flat.size, dtype=object),
        structs,
        flat.astype(complex),
        flat.astype("datetime64[s]"),
    ]


@st.composite
def wrong_arrays(draw: st.DrawFn, values: np.ndarray) -> bytes:
    """An array that cannot stand for these numbers."""
    shapes = [(10**12,), (10**400,), (-1,), (3, 10**9), (), (2**63,), "x", (None,), (0,) * 70, 7]
    garbled = [b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00", npy(values)[:-9], npy(values) + b"more"]
    kinds = ["rank", "dtype", "bytes"]
    if values.dtype.kind != "U":
        kinds += ["kind", "shape"]
    match draw(st.sampled_from(kinds)):
        case "kind":
            return npy(draw(st.sampled_from(_not_numbers(values))))
        case "shape":
            return with_header(npy(values), shape=draw(st.sampled_from(shapes)))
        case "rank":
            return npy(values[None, None])
        case "dtype":
            descr = draw(
                st.sampled_from(["|O", "<U9", "V8", "", 5, "<f8, <i4", [("a", "<f8")] * 2])
            )
            return with_header(npy(values), descr=descr)
        case _:
            return draw(st.sampled_from(garbled))


@st.composite
def archives(draw: st.DrawFn, arrays: dict[str, np.ndarray], wrong: dict[str, list[Any]]) -> Mutant:
    """An archive of these arrays, or with one of them replaced, or with bytes that are garbled.

    Args:
        draw: Hypothesis' own.
        arrays: what is right.
        wrong: for each array, further ones that are wrong in its place.
    """
    members = {name: npy(values) for name, values in arrays.items()}
    name = draw(st.sampled_from(sorted(members)))
    kind = draw(
        st.sampled_from(["right", "array", "value", "absent", "twice", "bytes", "cut", "method"])
    )
    if kind == "array":
        members[name] = draw(wrong_arrays(arrays[name]))
    elif kind == "value" and wrong.get(name):
        members[name] = npy(draw(st.sampled_from(wrong[name])))
    elif kind == "absent" and name != "header":
        del members[name]
    elif kind == "method":
        return Mutant(archive(members, zipfile.ZIP_BZIP2), True, kind)
    elif kind == "twice":
        return Mutant(archive(members, twice=name), True, f"{name} {kind}")
    elif kind in ("bytes", "cut"):
        return draw(garbled(archive(members, draw(st.sampled_from([0, zipfile.ZIP_DEFLATED])))))
    else:
        return Mutant(archive(members), False)
    return Mutant(archive(members), True, f"{name} {kind}: {members.get(name, b'')[:200]!r}")


@st.composite
def garbled(draw: st.DrawFn, data: bytes) -> Mutant:
    """Some bytes replaced, or the file cut short."""
    if draw(st.booleans()):
        return Mutant(data[: draw(st.integers(0, len(data) - 1))], False)
    changed = bytearray(data)
    for at in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        changed[at] = draw(st.integers(0, 255))
    return Mutant(bytes(changed), False, f"garbled {bytes(changed)!r}")


@st.composite
def tables(draw: st.DrawFn, columns: str, rows: list[str]) -> Mutant:
    """A file with commas; every wrong line is one that the command must not pass over."""
    bad = ["", "x,x", "1", ",", "nan,1", "1,nan", f"{'9' * 140_000},1", '"', "\x00,1", "\ud800,1"]
    bad += [f"{text},1" for text in HOSTILE[:4]]
    kind = draw(st.sampled_from(["right", "line", "columns", "bytes"]))
    lines = [columns, *rows]
    if kind == "line":
        # An empty line is passed over, as everywhere.
        line = draw(st.sampled_from(bad[1:]))
        lines.insert(draw(st.integers(1, len(rows))), line)
    elif kind == "columns":
        lines[0] = draw(
            st.sampled_from([*HOSTILE, "", "a,b", "x" * 200_000, '"score', "score,score"])
        )
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    if kind == "bytes":
        return draw(garbled(text))
    return Mutant(text, kind != "right", f"{kind} {text[:300]!r}")


def places(value: Any, free: Callable[[Place], bool]) -> list[Place]:
    """Paths to all parts of a JSON value but those in which anything may stand."""
    every = [(), *nodes(value)]
    return [at for at in every if not any(free(at[:end]) for end in range(len(at) + 1))]


def replaced(value: Any, path: Place, new: Any) -> Any:
    return replace_at(value, path, new) if path else new


def _text(value: Any, path: tuple[Any, ...] = ()) -> str:
    """The JSON; that of a report has its digest, unless that is what was changed."""
    held = isinstance(value, dict) and "sha256" in value and path != ("sha256",)
    return signed(value) if held else json.dumps(value)


@st.composite
def objects(
    draw: st.DrawFn, value: dict[str, Any], free: Callable[[tuple[Any, ...]], bool]
) -> Mutant:
    """JSON with a part of another kind, or none, or a key twice, or garbled bytes."""
    kinds = ["right", "part", "no json", "absent", "twice", "bytes", "around"]
    kind = draw(st.sampled_from(kinds))
    path = draw(st.sampled_from(places(value, free)))
    if kind == "part":
        held = value
        for key in path:
            held = held[key]
        # Text may be any text that is no half of a pair.
        others = [w for w in WRONG if type(w) is not type(held) or type(w) is bool]
        text = _text(replaced(value, path, draw(st.sampled_from(others))), path)
        return Mutant(text.encode(), True, f"{path} {text}")
    if kind == "no json":
        text = json.dumps(replaced(value, path, "@")).replace('"@"', draw(st.sampled_from(NO_JSON)))
        return Mutant(text.encode(), True, f"{path} {text[:300]}")
    if kind == "absent":
        key = draw(st.sampled_from(sorted(value)))
        return Mutant(_text({k: v for k, v in value.items() if k != key}).encode(), False)
    text = json.dumps(value)
    if kind == "around":
        return Mutant(draw(st.sampled_from(["\ufeff" + text, text + text])).encode(), True, kind)
    if kind == "twice":
        key = draw(st.sampled_from(sorted(value)))
        return Mutant(f"{text[:-1]}, {json.dumps(key)}: {json.dumps(value[key])}}}".encode(), False)
    return draw(garbled(text.encode())) if kind == "bytes" else Mutant(text.encode(), False)


def report() -> dict[str, Any]:
    """A report that passes, as JSON has it."""
    made = made_report(
        epochs=({"step": 100, "epsilon_spent": 3.0},),
        environment={"torch": "2.6"},
        notes=("a note",),
        record="observations.bin",
        created="2026-01-01T00:00:00+00:00",
    )
    return json.loads(made.to_json())
