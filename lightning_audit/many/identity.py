"""Digests of functions by their source files and settings, and of values by what they hold.

A function counts by its own file and the files of the user's code that this imports, directly or
through others; by its instructions; and by its settings: its defaults, what its closure holds, and
the globals that it reads, recursively in the user's own functions and classes. An edit anywhere in
those files, other than in comments and layout, is another function. A library counts by its name
and version. The digest does not depend on the process, on PYTHONHASHSEED or on the folder.

A name that a function of this code binds by ``global`` or ``nonlocal`` is no setting: trainings
before a resume have changed it. A list or dict that the code changes counts as it is now.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import json
import os
import sys
import sysconfig
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import numpy as np

from lightning_audit._validate import shown
from lightning_audit._version import __version__

#: Folders of installed libraries.
_OUTSIDE = tuple({sysconfig.get_path(p) for p in ("purelib", "platlib", "stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
#: What code is made of, by its type.
_PARTS: Mapping[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.partial: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",),
}
#: Metadata of a dataclass' field that is no part of an identity while it is None: stores were begun
#: before there was such a field.
COUNTS_IF_SET: Mapping[str, bool] = {"counts_if_set": True}
#: Types that are written in C have no Python source, and may hold state that nothing shows.
_HEAP_TYPE = 1 << 9


class NoIdentity(TypeError):
    """A value whose content cannot be determined."""


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What was seen: values on the way from the root, code by `id`, files, imports.

    Functions, classes and modules refer to each other in many ways: each is described once, then
    by its number. Files have the package from which their relative imports start.
    """

    above: list[int] = dataclasses.field(default_factory=list)
    code: dict[int, int] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    imports: set[str] = dataclasses.field(default_factory=set)


def digest_of(*values: Any) -> str:
    """Return the SHA-256 of values, which is the same in each process.

    Args:
        values: functions, modules of torch, data sets, arrays, plain values and containers of them.

    Raises:
        NoIdentity: if the content of a value cannot be determined; the message names the type and
            says what to do.
    """
    reading = _Reading()
    content = [_of(value, reading) for value in values]
    text = json.dumps([content, _sources(reading)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _of(value: Any, reading: _Reading) -> Any:
    """Return the content of a value as lists, texts and numbers."""
    name = type(value).__name__
    if value is None or isinstance(value, bool | int | str):
        return [name, value]
    if isinstance(value, float | complex | range | slice):
        return [name, repr(value)]
    if isinstance(value, bytes | bytearray):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    if id(value) in reading.above:  # a cycle: how far up
        return ["within", reading.above[::-1].index(id(value))]
    reading.above.append(id(value))
    try:
        for known in (_of_numbers, _of_container, _of_code, _of_object):
            found = known(value, reading)
            if found is not None:
                return found
    finally:
        reading.above.pop()
    raise NoIdentity(
        f"{type(value).__module__}.{type(value).__qualname__} {shown(value)} has a content that "
        "cannot be determined; pass identity='...', a text that you change whenever the training "
        "changes."
    )


def _of_numbers(value: Any, reading: _Reading) -> Any:
    torch = sys.modules.get("torch")  # no tensor exists unless torch is loaded
    if torch is not None and isinstance(value, torch.Tensor):
        wide = value.float() if value.dtype == torch.bfloat16 else value
        hooks = [_of(hook, reading) for hook in (value._backward_hooks or {}).values()]
        numbers = _of_numbers(wide.detach().cpu().numpy(), reading)
        return ["tensor", str(value.dtype), value.requires_grad, hooks, numbers]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return ["objects", value.shape, [_of(item, reading) for item in value.ravel()]]
    if isinstance(value, np.ndarray | np.generic):
        data = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ["array", value.dtype.str, np.shape(value), data]
    if isinstance(value, np.dtype):
        return ["dtype", value.str]
    if torch is not None and isinstance(value, torch.dtype | torch.device | torch.Size):
        return ["torch", repr(value)]
    return None


def _of_container(value: Any, reading: _Reading) -> Any:
    if type(value) in (list, tuple):
        return [type(value).__name__, [_of(item, reading) for item in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(_of(item, reading)) for item in value)]
    if isinstance(value, dict):
        items = [[json.dumps(_of(key, reading)), _of(item, reading)] for key, item in value.items()]
        return ["dict", sorted(items, key=lambda item: item[0])]
    return None


def _of_code(value: Any, reading: _Reading) -> Any:
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return ["builtin", getattr(value, "__module__", None) or "", value.__name__]
    for kind, parts in _PARTS.items():
        if isinstance(value, kind):
            return [kind.__name__, *(_of(getattr(value, part), reading) for part in parts)]
    if not isinstance(value, types.ModuleType | types.FunctionType | type):
        return None
    if id(value) in reading.code:
        return ["again", reading.code[id(value)]]
    reading.code[id(value)] = len(reading.code)
    home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__ or ""
    file = _file_of(value)
    if _is_library(home, file):  # a function that one of a library made has what that was given
        name = getattr(value, "__qualname__", "")
        given = {}
        if isinstance(value, types.FunctionType) and "<locals>" in name:
            given = _closure(value)
        return ["library", home, name, _version(home), _of(given, reading)]
    if os.path.isfile(file):
        package = getattr(sys.modules.get(home), "__package__", None)
        reading.files[os.path.abspath(file)] = package or ""
    if isinstance(value, types.ModuleType):
        return ["module"]
    if isinstance(value, type):
        bases = [_of(base, reading) for base in value.__bases__]
        members = {n: v for n, v in vars(value).items() if callable(v) or not n.startswith("__")}
        return ["class", value.__qualname__, bases, _lenient(members, reading)]
    settings = [value.__defaults__, value.__kwdefaults__, _read(value, reading), vars(value)]
    return ["function", _instructions(value.__code__), *(_of(each, reading) for each in settings)]


def _of_object(value: Any, reading: _Reading) -> Any:
    kind = type(value)
    if hasattr(value, "state_dict") and hasattr(value, "named_modules"):  # a module of torch
        found = {
            name: [*each.values()] if name.endswith("_hooks") and isinstance(each, dict) else each
            for name, each in vars(value).items()
            if "_hooks_" not in name  # flags of hooks, by numbers that each process counts itself
        }
        return ["module", _of(kind, reading), _lenient(found, reading)]
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if "counts_if_set" not in field.metadata or getattr(value, field.name) is not None
        }
        return ["dataclass", _of(kind, reading), _of(fields, reading)]
    own = [vars(each) for each in kind.__mro__[:-1]]
    plain = not any("__reduce__" in names or "__reduce_ex__" in names for names in own)
    if plain and hasattr(value, "__dict__") and all(map(_is_python, kind.__mro__[:-1])):
        return ["object", _of(kind, reading), _of(vars(value), reading)]
    return None


def _lenient(attributes: Mapping[str, Any], reading: _Reading) -> dict[str, Any]:
    """Return attributes by their content, or by their type if that cannot be determined."""
    found = {}
    for name, value in attributes.items():
        try:
            found[name] = _of(value, reading)
        except NoIdentity:
            found[name] = type(value).__qualname__
    return found


def _is_python(kind: type) -> bool:
    """Return whether all state of a class' objects is in their `__dict__`."""
    if kind.__module__ in ("typing", "abc"):
        return True
    return bool(kind.__flags__ & _HEAP_TYPE) and "__slots__" not in vars(kind)


# --- Functions: their instructions, and the settings that they read.


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and those of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _instructions(code: types.CodeType) -> list[Any]:
    """Return the bytecode of a function and of those in it, with names and constants."""
    codes = list(_with_inner(code))
    constants = [c for each in codes for c in each.co_consts if not isinstance(c, types.CodeType)]
    texts = [sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c) for c in constants]
    return [[each.co_code.hex(), each.co_names, each.co_varnames] for each in codes] + texts


def _read(function: types.FunctionType, reading: _Reading) -> dict[str, Any]:
    """Return what a function reads and does not bind: of its closure, globals and modules."""
    used: dict[str, set[str]] = defaultdict(set)
    for step in itertools.chain(*map(dis.get_instructions, _with_inner(function.__code__))):
        used[step.opname].add(step.argval)
    reading.imports.update(used["IMPORT_NAME"])
    names = function.__globals__
    loaded = (used["LOAD_GLOBAL"] | used["LOAD_NAME"]) & names.keys()
    read = {name: names[name] for name in loaded} | _closure(function)
    attributes = used["LOAD_ATTR"] | used["LOAD_METHOD"]
    for name, module in list(read.items()):
        if isinstance(module, types.ModuleType) and not _is_library(
            module.__name__, _file_of(module)
        ):
            own = vars(module)
            read |= {f"{name}.{each}": own[each] for each in attributes & own.keys()}
    bound = used["STORE_GLOBAL"] | used["STORE_DEREF"]
    return {name: value for name, value in read.items() if name not in bound}


def _closure(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the function is not defined yet
            found[name] = cell.cell_contents
    return found


# --- Source files of the user's code, and versions of libraries.


def _sources(reading: _Reading) -> list[str]:
    """Return digests of files and of what they import, and the names and versions of libraries."""
    found: dict[str, str] = {}
    ahead, imported = dict(reading.files), list(reading.imports)
    while ahead or imported:
        for spec in itertools.chain.from_iterable(map(_specs, imported)):
            if _is_library(spec.name, spec.origin or "none"):
                found[spec.name] = f"{spec.name} {_version(spec.name)}"
            elif spec.origin and spec.origin not in found:
                ahead[spec.origin] = spec.parent or ""
        imported = []
        if ahead:
            file, package = ahead.popitem()
            content = Path(file).read_bytes()
            with contextlib.suppress(SyntaxError, ValueError):  # a compiled module, by its bytes
                tree = ast.parse(content)
                content, imported = ast.dump(tree).encode(), list(_imports(tree, package))
            found[file] = hashlib.sha256(content).hexdigest()
    return sorted({*found.values()})


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the full names that a file imports, wherever; what is no module is among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _specs(name: str) -> Iterator[ModuleSpec]:
    """Yield where the packages of a module and itself are, without importing them."""
    root, *rest = name.split(".")
    spec = None
    with contextlib.suppress(ImportError, ValueError):  # `__main__`, or it is being made
        spec = importlib.util.find_spec(root)
    while spec is not None:
        yield spec
        inside = spec.submodule_search_locations
        if not rest or inside is None or _is_library(spec.name, spec.origin or "none"):
            return
        root = f"{root}.{rest.pop(0)}"
        spec = PathFinder.find_spec(root, inside)


def _file_of(code: Any) -> str:
    """Return the file of a function, class or module; empty if it is built in or typed in."""
    try:
        return inspect.getfile(code)
    except (TypeError, OSError):
        return ""


def _is_library(name: str, file: str) -> bool:
    """Return whether a module belongs to a library; without a file, it is built in."""
    if name.partition(".")[0] == "lightning_audit":
        return True
    if not file:
        return name != "__main__"
    # Packages of another environment are on the path too, by PYTHONPATH or a .pth file.
    installed = not _INSTALLED.isdisjoint(Path(file).parts)
    return installed or file in ("built-in", "frozen") or file.startswith(_OUTSIDE)


def _version(name: str) -> str:
    root = name.partition(".")[0]
    if root == "lightning_audit":
        return __version__
    try:
        return importlib.metadata.version(root.replace("_", "-"))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return str(getattr(sys.modules.get(root), "__version__", ""))
