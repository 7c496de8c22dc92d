"""Changes of a source, one place at a time, each with the lines whose tests must find it.

Another comparison, `and` for `or`, another arithmetic operator, a number plus or minus 1, the other
truth value, no `not` or minus, a condition that always or never holds, `return None`, a call that
is left out. Texts, annotations and decorators are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.AST], Any] = {
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        path: the file, below the root.
        start: of the changed code, in bytes of the file.
        end: of the changed code.
        code: what replaces it.
        line: its first line.
        lines: those whose tests test it; None for all tests of the room.
    """

    path: str
    start: int
    end: int
    code: str
    line: int
    lines: range | None

    def of(self, source: bytes) -> bytes:
        """Return the file with the change; the other lines keep their numbers."""
        return source[: self.start] + self.code.encode() + source[self.end :]


def mutants(path: str, source: bytes) -> Iterator[Mutant]:
    """Yield all mutants of a file.

    Args:
        path: the file, below the root.
        source: its text.
    """
    begins = [0]
    for row in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(row))
    for node, lines in _nodes(ast.parse(source)):
        for old, new in _changes(node):
            start = begins[old.lineno - 1] + old.col_offset
            end = begins[old.end_lineno - 1] + old.end_col_offset
            code, rows = ast.unparse(new), "\n" * (old.end_lineno - old.lineno)
            if isinstance(new, ast.stmt):
                code += rows
            elif rows or not isinstance(new, ast.Constant | ast.Compare):
                code = f"({code}{rows})"
            yield Mutant(path, start, end, code, old.lineno, lines)


def _nodes(node: ast.AST, lines: range | None = None) -> Iterator[tuple[Any, range | None]]:
    """Yield the nodes below a node, each with the lines whose tests test its mutants."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            within = lines
            if isinstance(node, ast.FunctionDef) and name == "args":  # defaults
                within = range(node.body[0].lineno, node.end_lineno + 1)
            elif isinstance(node, ast.Lambda):
                within = lines or range(node.lineno, node.end_lineno + 1)
            elif isinstance(node, ast.FunctionDef) or (
                lines and not isinstance(node, ast.ClassDef)
            ):
                within = _own_lines(child) if isinstance(child, ast.stmt) else lines
            yield child, within
            yield from _nodes(child, within)


def _own_lines(statement: Any) -> range:
    """Return the lines of a statement, without those of the statements in it."""
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else statement.end_lineno + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _changes(node: Any) -> Iterator[tuple[Any, ast.AST]]:
    """Yield the changes of a node: what is replaced, and by what."""
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    changed = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    yield node, ast.Compare(node.left, changed, node.comparators)
        case ast.BoolOp():
            yield node, ast.BoolOp(_OPERATORS[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            yield node, ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
        case ast.AugAssign() if type(node.op) in _OPERATORS:
            yield node, ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, node.operand
        case ast.Constant(value=bool()):
            yield node, ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield from ((node, ast.Constant(node.value + one)) for one in (1, -1))
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield node, ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield node, ast.Pass()
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from ((test, ast.Constant(always)) for always in (True, False))
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield test, ast.Constant(False)
        case ast.comprehension():
            yield from ((test, ast.Constant(b)) for test in node.ifs for b in (True, False))
