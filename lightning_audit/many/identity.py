"""Digests of functions by what they do, and of values by what they hold.

A function counts by its syntax tree without comments and docstrings, its defaults, the contents of
its closure and the globals that it reads, recursively in the user's own code. Modules and classes
of that code count by their source and by the plain values that they have now. A library counts by
its name and version. The digest does not depend on the process, on PYTHONHASHSEED, or on whether
the function is in a script or in a module.

A global, or an attribute of a module or class, that this code itself writes is no part of what it
does: a counter or a cache, which trainings before a resume have changed. So the code is read twice:
for what it writes, then for the digest.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import lightning_audit
from lightning_audit._validate import shown

#: Folders of installed libraries.
_OUTSIDE = tuple({sysconfig.get_path(p) for p in ("purelib", "platlib", "stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_MEMBERS = (types.FunctionType, staticmethod, classmethod, property)
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, types.BuiltinFunctionType)
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
#: Methods that change a container.
_CHANGES = {"append", "add", "update", "setdefault", "extend", "insert", "pop", "popitem", "clear"}
#: Types that are written in C have no Python source, and may hold state that nothing shows.
_HEAP_TYPE = 1 << 9


@dataclasses.dataclass(frozen=True)
class _Path:
    """What is on the way from the root to a value, by `id` with its depth, and code seen so far.

    Functions, classes and modules refer to each other in many ways: each is described once, then
    by its number. ``written`` are the names that the code writes; they are known in the second
    reading, and in the first no data are read.
    """

    written: set[str]
    first: bool
    above: Mapping[int, int] = dataclasses.field(default_factory=dict)
    code: dict[int, int] = dataclasses.field(default_factory=dict)

    def kept(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values, by name, that the code does not write itself."""
        code = types.ModuleType | types.FunctionType | type
        return {n: v for n, v in values.items() if n not in self.written or isinstance(v, code)}

    def into(self, value: Any) -> _Path:
        return dataclasses.replace(self, above={**self.above, id(value): len(self.above)})


class NoIdentity(TypeError):
    """A value whose content cannot be determined."""


def digest_of(*values: Any) -> str:
    """Return the SHA-256 of values, which is the same in each process.

    Args:
        values: functions, modules of torch, data sets, arrays, plain values and containers of them.

    Raises:
        NoIdentity: if the content of a value cannot be determined; the message names the type and
            says what to do.
    """
    written: set[str] = set()
    for first in (True, False):
        path = _Path(written, first)
        content = json.dumps([_of(value, path) for value in values], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _of(value: Any, path: _Path) -> Any:
    """Return the content of a value as lists, texts and numbers."""
    if value is None or isinstance(value, bool | int | str):
        return [type(value).__name__, value]
    if isinstance(value, float | complex):
        return [type(value).__name__, repr(value)]
    if isinstance(value, bytes | bytearray):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    if id(value) in path.above:  # a cycle: how far up
        return ["within", len(path.above) - path.above[id(value)]]
    path = path.into(value)
    for known in (_of_numbers, _of_container, _of_code):
        found = known(value, path)
        if found is not None:
            return found
    return _of_object(value, path)


def _of_numbers(value: Any, path: _Path) -> Any:
    torch = sys.modules.get("torch")  # no tensor exists unless torch is loaded
    if torch is not None and isinstance(value, torch.Tensor):
        wide = value.float() if value.dtype == torch.bfloat16 and not path.first else value
        numbers = None if path.first else _of_numbers(wide.detach().cpu().numpy(), path)
        hooks = [_of(hook, path) for hook in (value._backward_hooks or {}).values()]
        return ["tensor", str(value.dtype), value.requires_grad, hooks, numbers]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return ["objects", value.shape, [_of(item, path) for item in value.ravel()]]
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        data = "" if path.first else hashlib.sha256(array.tobytes()).hexdigest()
        return ["array", array.dtype.str, np.shape(value), data]
    if torch is not None and isinstance(value, torch.dtype | torch.device | torch.Size):
        return ["torch", repr(value)]
    if isinstance(value, np.dtype):
        return ["dtype", value.str]
    return None


def _of_container(value: Any, path: _Path) -> Any:
    name = type(value).__name__
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [name, [_of(item, path) for item in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(_of(item, path)) for item in value)]
    if isinstance(value, dict):
        keys = sorted((json.dumps(_of(key, path)), place) for place, key in enumerate(value))
        items = list(value.values())
        return ["dict", [[key, _of(items[place], path)] for key, place in keys]]
    if isinstance(value, range | slice):
        return [name, repr(value)]
    return None


def _of_code(value: Any, path: _Path) -> Any:
    if isinstance(value, types.ModuleType | types.FunctionType | type):
        if id(value) in path.code:
            return ["again", path.code[id(value)]]
        path.code[id(value)] = len(path.code)
    if isinstance(value, types.ModuleType):
        return _of_module(value, path)
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return ["builtin", getattr(value, "__module__", None) or "", value.__name__]
    if isinstance(value, types.FunctionType):
        return _of_function(value, path)
    if isinstance(value, type):
        return _of_class(value, path)
    for kind, parts in _PARTS.items():
        if isinstance(value, kind):
            return [kind.__name__, *(_of(getattr(value, part), path) for part in parts)]
    return None


def _of_object(value: Any, path: _Path) -> Any:
    kind = type(value)
    if hasattr(value, "state_dict") and hasattr(value, "named_modules"):
        return ["module", _of(kind, path), _of_attributes(vars(value), path)]
    if dataclasses.is_dataclass(value):
        fields = {
            f.name: getattr(value, f.name)
            for f in dataclasses.fields(value)
            if "counts_if_set" not in f.metadata or getattr(value, f.name) is not None
        }
        return ["dataclass", _of(kind, path), _of(fields, path)]
    own = [vars(each) for each in kind.__mro__[:-1]]
    plain = not any("__reduce__" in names or "__reduce_ex__" in names for names in own)
    if plain and hasattr(value, "__dict__") and all(map(_is_python, kind.__mro__[:-1])):
        return ["object", _of(kind, path), _of(vars(value), path)]
    raise NoIdentity(
        f"{kind.__module__}.{kind.__qualname__} {shown(value)} has a content that cannot be "
        "determined; pass identity='...', a text that you change whenever the training changes."
    )


def _of_attributes(attributes: Mapping[str, Any], path: _Path) -> Any:
    """Return the attributes of a torch module: its tensors, modules, hooks, mode, and own values.

    What has no content that can be determined counts by its type: torch keeps much in a module.
    """
    found = {}
    for name, value in attributes.items():
        if "_hooks_" not in name:  # flags of hooks, by numbers that each process counts for itself
            hooks = name.endswith("_hooks") and isinstance(value, dict)
            try:
                found[name] = _of([*value.values()] if hooks else value, path)
            except NoIdentity:
                found[name] = type(value).__qualname__
    return found


def _is_python(kind: type) -> bool:
    """Return whether all state of a class' objects is in their `__dict__`."""
    if kind.__module__ in ("typing", "abc"):
        return True
    return bool(kind.__flags__ & _HEAP_TYPE) and "__slots__" not in vars(kind)


def _of_function(function: types.FunctionType, path: _Path) -> Any:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    if _is_library(function):  # one made by a library's function has what that was given
        return [*_named(function), _of({} if _is_in_module(function) else closure, path)]
    path.written.update(_writes(_tree(function)))
    return [
        "function",
        _syntax(function),
        _of(function.__defaults__, path),
        _of(function.__kwdefaults__, path),
        _of(path.kept(closure), path),
        _of_globals(function.__code__, function.__globals__, path),
        _of_plain(vars(function), path),
    ]


def _of_globals(code: types.CodeType, names: Mapping[str, Any], path: _Path) -> Any:
    """Return the globals that a code reads and the modules that it imports, by name."""
    read: dict[str, Any] = {}
    for each in _with_inner(code):
        for step in dis.get_instructions(each):
            if step.opname in _READS and step.argval in names:
                read[step.argval] = names[step.argval]
            elif step.opname == "IMPORT_NAME":
                read[f"import {step.argval}"] = _imported(step.argval)
    return _of(path.kept(read), path)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and those of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _imported(name: str) -> types.ModuleType | str:
    """Return a module that a function imports; its name if it is a library's or is absent."""
    root = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(root) if root else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or _in_library(spec.origin):
        return f"{name} {_version(name)}"
    return importlib.import_module(name)


def _syntax(function: types.FunctionType) -> str:
    """Return the syntax tree of a function; its bytecode for a lambda, or without a source."""
    if function.__name__ != "<lambda>" and (tree := _tree(function)) is not None:
        return _dumped(tree)
    codes = list(_with_inner(function.__code__))
    constants = [
        sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for code in codes
        for c in code.co_consts
        if not isinstance(c, types.CodeType)
    ]
    return json.dumps([[c.co_code.hex(), c.co_names, c.co_varnames] for c in codes] + constants)


def _tree(code: Any) -> ast.Module | None:
    """Return the syntax tree of a function, class or module; None without a source."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return None


def _writes(tree: ast.Module | None) -> Iterator[str]:
    """Yield the globals, and attributes of anything but local variables, that functions write."""
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = [*ast.walk(function)]
        own = {node.arg for node in inside if isinstance(node, ast.arg)} - {"cls"}
        own |= {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in inside:
            changed: ast.AST | None = None
            if isinstance(node, ast.Global | ast.Nonlocal):
                yield from node.names
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                changed = node
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                changed = node.value
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CHANGES:
                changed = node.func.value  # type: ignore[attr-defined]
            if changed is not None and _root(changed) not in own:
                yield getattr(changed, "attr", getattr(changed, "id", ""))


def _root(node: ast.AST) -> str:
    """Return the variable that an expression begins with; empty for a class or a call."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if getattr(node, "attr", "") == "__class__":
            return ""
        node = node.value
    return getattr(node, "id", "")


def _of_plain(values: Mapping[str, Any], path: _Path) -> Any:
    """Return the plain ones of the values in a namespace that the code does not write itself."""
    plain = {n: v for n, v in values.items() if not n.startswith("__") and _is_plain(v)}
    return _of(path.kept(plain), path)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _PLAIN)


def _dumped(tree: ast.Module) -> str:
    """Return a syntax tree as text, without docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _of_class(kind: type, path: _Path) -> Any:
    if _is_library(kind):
        return _named(kind)
    tree = _tree(kind)
    path.written.update(_writes(tree))
    members = {name: member for name, member in vars(kind).items() if isinstance(member, _MEMBERS)}
    generated = {name for name, member in members.items() if _is_generated(member)}
    methods = [[name, _of(members[name], path)] for name in sorted(set(members) - generated)]
    bases = [_of(base, path) for base in kind.__bases__ if base is not object]
    syntax = "" if tree is None else _dumped(tree)
    return ["class", syntax, bases, methods, _of_plain(vars(kind), path)]


def _is_generated(member: Any) -> bool:
    """Return whether a method was made by a decorator such as `dataclass`."""
    code = getattr(member, "__code__", None)
    return code is not None and code.co_filename.startswith("<string>")


def _of_module(module: types.ModuleType, path: _Path) -> Any:
    if _is_library(module):
        return ["library", module.__name__, _version(module.__name__)]
    tree = _tree(module)
    path.written.update(_writes(tree))
    if tree is None:  # compiled: by its bytes
        return ["module", hashlib.sha256(Path(inspect.getfile(module)).read_bytes()).hexdigest()]
    own = types.ModuleType | types.FunctionType | type
    used = {name: v for name, v in vars(module).items() if isinstance(v, own)}
    others = {n: v for n, v in used.items() if getattr(v, "__module__", None) != module.__name__}
    as_they_are = {name: _as_it_is(v, path) for name, v in used.items() if name not in others}
    return ["module", _dumped(tree), as_they_are, _of(others, path), _of_plain(vars(module), path)]


def _as_it_is(value: Any, path: _Path) -> Any:
    """Return what a function or class of a module may be at run time that its source does not say.

    What it reads elsewhere is left out: the module's other parts may have nothing to do with it.
    """
    if isinstance(value, types.FunctionType):
        return _syntax(value)
    if not isinstance(value, type):
        return ""
    members = {name: getattr(v, "__func__", v) for name, v in vars(value).items()}
    methods = {n: _syntax(v) for n, v in members.items() if isinstance(v, types.FunctionType)}
    return [methods, _of_plain(vars(value), path)]


def _named(value: Any) -> Any:
    return ["library", value.__module__, value.__qualname__, _version(value.__module__ or "")]


def _is_in_module(function: types.FunctionType) -> bool:
    """Return whether a function is found by its name in its module."""
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not None


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the function is not defined yet
        return False


def _is_library(value: Any) -> bool:
    home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if (home or "").partition(".")[0] == lightning_audit.__name__:
        return True
    try:
        return _in_library(inspect.getfile(value))
    except TypeError:  # built in, or typed in at a prompt
        return home != "__main__" and not getattr(value, "__code__", None)
    except OSError:
        return False


def _in_library(file: str) -> bool:
    # Packages of another environment are on the path too, by PYTHONPATH or a .pth file.
    installed = not _INSTALLED.isdisjoint(Path(file).parts)
    return installed or file in ("built-in", "frozen") or file.startswith(_OUTSIDE)


def _version(name: str) -> str:
    root = name.partition(".")[0]
    if root == lightning_audit.__name__:
        return lightning_audit.__version__
    try:
        return importlib.metadata.version(root.replace("_", "-"))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return str(getattr(sys.modules.get(root), "__version__", ""))
