"""The printer of kernels. In: a Kernel. Out: stable text: parameters, axes, then one line a statement, loops indented.

A value is printed where it is made, with its type and the axes over which it varies:

    kernel softmax: row, resident
      in x : f32[8, 64] contiguous
      axis row of 8, grid
      axis col of 64, serial by 16
      for col:
        x = load x[64*row + col] : f32 over row, col
        max = max of x along col, carry : f32 over row
"""

from __future__ import annotations

from interfuse.base.text import Writer
from interfuse.ir.layout import Layout
from interfuse.lower.kernel import (
    Axis,
    Bound,
    Kernel,
    Let,
    Load,
    Loop,
    Meet,
    Param,
    Pick,
    Reduce,
    Role,
    Scan,
    Stmt,
    Store,
    Value,
)

_BLOCK = {
    Role.GRID: "{0} a program",
    Role.TILE: "{0} lanes",
    Role.SERIAL: "by {0}",
    Role.TEAM: "a program each",
}
"""What the block of an axis means, by role."""


def _typed(value: Value) -> str:
    over = f" over {', '.join(value.axes)}" if value.axes else ""
    return f"{value.dtype}{over}"


def _param_line(p: Param) -> str:
    shape = f"[{', '.join(map(str, p.shape))}]"
    if p.mode == "scratch":
        return f"scratch {p.name} : {p.dtype}{shape}, one a program"
    layout = Layout(p.strides)
    laid = "contiguous" if layout.is_contiguous(p.shape) else f"strides [{', '.join(map(str, p.strides))}]"
    return f"{p.mode} {p.name} : {p.dtype}{shape} {laid}"


def _axis_line(a: Axis) -> str:
    single = a.role is Role.GRID and a.block == 1
    block = (
        ""
        if single
        else f" {_BLOCK[a.role].format(a.block)}"
        if a.role is Role.SERIAL
        else (f", {_BLOCK[a.role].format(a.block)}")
    )
    shared = f", shared out{' in turn' if a.in_turn else ''} among {a.among}" if a.among else ""
    shared += f", in vectors of {a.vector} from {a.origin}" if a.vector > 1 else ""
    each = f", {a.each} a thread" if a.each else ""
    return f"axis {a.name} of {a.extent}, {a.role.value}{block}{shared}{each}"


def _where(bounds: tuple[Bound, ...]) -> str:
    return " and ".join(
        f"{'' if b.lo is None else f'{b.lo} <= '}{b.expr}{'' if b.hi is None else f' < {b.hi}'}" for b in bounds
    )


def _let(s: Let) -> str:
    attrs = dict(s.attrs)
    if s.op == "const":
        return repr(attrs["value"])
    if s.op == "index":
        return f"index {attrs['expr']}"
    if s.op == "within":
        return _where(attrs["bounds"])
    given = [a.name for a in s.args] + [f"{name}={value!r}" for name, value in s.attrs]
    return f"{s.op}({', '.join(given)})"


def _pick(p: Pick) -> str:
    """What an index looked up stands for."""
    return f", {p.symbol} = {p.value.name} {'from either end of' if p.wraps else 'below'} {p.extent}"


def _statement(s: Stmt, w: Writer) -> None:
    if isinstance(s, Loop):
        with w.block(f"for {s.axis}{' backwards' if s.backwards else ''}:"):
            for inner in s.body:
                _statement(inner, w)
    elif isinstance(s, Load):
        where = f" where {_where(s.within)}" if s.within else ""
        told = "".join(map(_pick, s.picks))
        w.line(f"{s.out.name} = load {s.param}[{s.index}]{told}{where} : {_typed(s.out)}")
    elif isinstance(s, Store):
        w.line(f"store {s.param}[{s.index}] = {s.arg.name}")
    elif isinstance(s, Meet):
        w.line(f"{s.out.name} = {s.arg.name} of every program of the team : {_typed(s.out)}")
    elif isinstance(s, (Reduce, Scan)):
        w.line(f"{s.out.name} = {s.op} of {s.arg.name} along {s.axis}, {s.scope.value} : {_typed(s.out)}")
    else:
        note = f"  # {s.note}" if s.note else ""
        w.line(f"{s.out.name} = {_let(s)} : {_typed(s.out)}{note}")


def show(kernel: Kernel) -> str:
    """The whole kernel as text: name and family, doc lines, parameters in call order, axes, then the loop tree."""
    w = Writer("  ")
    with w.block(f"kernel {kernel.name}: {kernel.family}"):
        for line in kernel.doc:
            if line:
                w.line(f"# {line}")
        for p in kernel.params:
            w.line(_param_line(p))
        for name in kernel.symbols:
            w.line(f"size {name}")
        for a in kernel.axes:
            w.line(_axis_line(a))
        for s in kernel.body:
            _statement(s, w)
        if kernel.packed:
            w.line("one launch for all members: each has buffers and sizes of its own")
        if kernel.warps != 1:
            w.line(f"warps {kernel.warps}{f', {kernel.stages} stages' if kernel.stages > 1 else ''}")
        if kernel.reduction_order:
            w.line(f"bits repeat under {kernel.reduction_order}")
        if kernel.beyond is not None:
            longer = " or ".join(f"{a.extent} > {a.block}" for a in kernel.tiles)
            w.line(f"where {longer}: {kernel.beyond.family}, axes {', '.join(map(_axis_line, kernel.beyond.axes))}")
    return w.text()
