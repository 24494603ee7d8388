"""The parser of the printer's node form. In: text of `show_nodes`. Out: the nodes that its last line returns.

Nodes are interned, so reading printed text back gives the very nodes that were printed (hints and source lines, which
are no part of a node's identity, are not read). Every node read is checked by the verifier.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from interfuse.base.errors import GraphError, ParseError
from interfuse.ir import index
from interfuse.ir.dtypes import ALL
from interfuse.ir.node import Node, make
from interfuse.ir.verify import check_node

_SYMBOL = re.compile(r"symbol (\w+) in \[(-?\d+|-inf), (-?\d+|inf)\]")
_NODE = re.compile(r"(%\d+) = (\w+)\(((?:%\d+(?:, )?)*)(.*)\)(?: @(-?\d+))? : (\w+)\[([^\[\]]*)\]")
_RETURN = re.compile(r"return((?: %\d+,?)*)")
_COMMENT = re.compile(r"""((?:[^'"#]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*)(#.*)?""")


_BINARY: dict[type, index.Fold] = {
    ast.Add: index.add,
    ast.Sub: lambda a, b: index.wrap(a) - b,
    ast.Mult: index.mul,
    ast.FloorDiv: index.floordiv,
    ast.Mod: index.mod,
}
_CALLS: dict[str, index.Fold] = {"min": index.minimum, "max": index.maximum}
_NAMES: dict[str, Any] = {"inf": float("inf"), "nan": float("nan")}


def _folded(fold: index.Fold, a: Any, b: Any) -> index.Dim:
    if not all(isinstance(v, int | index.Expr) for v in (a, b)):
        raise ValueError(f"{a!r} and {b!r} are not both sizes")
    return index.unwrap(fold(a, b))


def _value(tree: ast.expr, names: dict[str, Any]) -> Any:
    """The plain value or index expression that an attribute's or size's syntax tree spells; ValueError for anything
    else.
    """
    match tree:
        case ast.Constant(value):
            return value
        case ast.Tuple(parts):
            return tuple(_value(p, names) for p in parts)
        case ast.Name(name) if name in names:
            return names[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, names)
        case ast.BinOp(left, sign, right) if type(sign) in _BINARY:
            return _folded(_BINARY[type(sign)], _value(left, names), _value(right, names))
        case ast.Call(ast.Name(name), [left, right], []) if name in _CALLS:
            return _folded(_CALLS[name], _value(left, names), _value(right, names))
    raise ValueError(f"{ast.unparse(tree)!r} is neither a plain value nor an index expression")


def _attributes(text: str, names: dict[str, Any]) -> dict[str, Any]:
    call = ast.parse(f"f({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError(f"{text!r} are not attributes")
    return {str(k.arg): _value(k.value, names) for k in call.keywords}


class _Reader:
    """What has been read so far: nodes by their number, symbols by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.names: dict[str, Any] = dict(_NAMES)

    def symbol(self, name: str, lo: str, hi: str) -> None:
        low, high = -index.INF if lo == "-inf" else int(lo), index.INF if hi == "inf" else int(hi)
        self.names[name] = index.sym(name, low, high)

    def node(
        self, number: str, op: str, operands: str, attributes: str, token: str | None, dtype: str, dims: str
    ) -> None:
        if number in self.nodes:
            raise ValueError(f"{number} is given twice")
        if dtype not in ALL:
            raise ValueError(f"{dtype!r} is not an element type")
        shape = _value(ast.parse(f"({dims},)" if dims else "()", mode="eval").body, self.names)
        node = make(
            op,
            self.found(operands),
            ALL[dtype],
            shape,
            None if token is None else int(token),
            **_attributes(attributes, self.names),
        )
        check_node(node)
        self.nodes[number] = node

    def found(self, operands: str) -> tuple[Node, ...]:
        """The nodes of "%1, %2"; ValueError where one is not given yet."""
        numbers = re.findall(r"%\d+", operands)
        missing = [n for n in numbers if n not in self.nodes]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not given by an earlier line")
        return tuple(self.nodes[n] for n in numbers)


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The nodes after `return` in the text that `show_nodes` prints. ParseError names the first line that is wrong."""
    reader = _Reader()
    for k, whole in enumerate(text.splitlines(), 1):
        clean = _COMMENT.fullmatch(whole)
        line = (clean.group(1) if clean else whole).strip()
        try:
            if found := _SYMBOL.fullmatch(line):
                reader.symbol(*found.groups())
            elif found := _NODE.fullmatch(line):
                reader.node(*found.groups())
            elif found := _RETURN.fullmatch(line):
                return reader.found(found.group(1))
            elif line:
                raise ValueError("it is neither a symbol, a node nor a return")
        except (ValueError, TypeError, SyntaxError, RecursionError, GraphError) as error:
            raise ParseError(f"line {k}, {whole.strip()!r}, cannot be read: {error}") from None
    raise ParseError("the text has no `return` line; print nodes with show_nodes.")
