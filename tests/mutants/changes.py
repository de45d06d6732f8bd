"""Small wrong changes to a piece of Python: what people get wrong, one at a time.

A change replaces a span of the text, so that everything else stays as it was written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "reversed": "list", "sorted": "list"}


class Change(NamedTuple):
    """Put `text` in the place of a span of the source."""

    node: ast.expr | ast.stmt
    """What is replaced."""
    text: str


def changes_of(node: ast.AST) -> Iterator[Change]:
    """Yield the changes of one node; not those of what it contains."""
    if isinstance(node, ast.stmt):
        yield from _statement(node)
    elif isinstance(node, ast.expr):
        yield from _expression(node)
    elif isinstance(node, ast.comprehension):
        yield from (Change(test, "True") for test in node.ifs)


def _statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.Assign() | ast.AnnAssign(value=ast.expr()) | ast.Delete() | ast.Raise():
            yield Change(node, "pass")
        case ast.AugAssign():
            yield Change(node, "pass")
            if text := OPERATORS.get(type(node.op)):
                yield Change(node, f"{ast.unparse(node.target)} {text}= {ast.unparse(node.value)}")
        case ast.If():
            yield Change(node.test, "True")
            yield Change(node.test, "False")
        case ast.While():
            yield Change(node.test, "False")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield Change(node, "return None")
        case ast.Break():
            yield Change(node, "continue")
            yield Change(node, "pass")
        case ast.Continue():
            yield Change(node, "break")
            yield Change(node, "pass")


def _expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp() | ast.IfExp():
            yield from _condition(node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield Change(node, f"({_operand(left)} {OPERATORS[type(op)]} {_operand(right)})")
        case ast.Constant(value=bool(value)):
            yield Change(node, str(not value))
        case ast.Constant(value=int(value) | float(value)):
            yield Change(node, str(value + 1))
            if value == 1:
                yield Change(node, "0")
        case ast.Subscript(slice=ast.Slice() as part):
            yield from _slice(part)
        case ast.Call():
            yield from _call(node)


def _condition(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op], left=left, comparators=[right]):
            yield Change(node, f"{ast.unparse(left)} {COMPARISONS[type(op)]} {ast.unparse(right)}")
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.And) else " or "
            for left_out in values:
                rest = [_operand(value) for value in values if value is not left_out]
                yield Change(node, f"({word.join(rest)})")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield Change(node, _operand(operand))
        case ast.IfExp(test=test):
            yield Change(test, "True")
            yield Change(test, "False")


def _slice(part: ast.Slice) -> Iterator[Change]:
    if part.lower is not None:
        yield Change(part.lower, "")
    if part.upper is not None:
        yield Change(part.upper, "")


def _call(call: ast.Call) -> Iterator[Change]:
    if isinstance(call.func, ast.Name) and call.func.id in FUNCTIONS:
        yield Change(call.func, FUNCTIONS[call.func.id])
    for left_out in call.keywords:
        if left_out.arg not in (None, "strict"):  # what `strict` asserts is for our own mistakes
            rest = [keyword for keyword in call.keywords if keyword is not left_out]
            yield Change(call, ast.unparse(ast.Call(call.func, call.args, rest)))


def _operand(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Constant) else f"({text})"
