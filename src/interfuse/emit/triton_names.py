"""What gets a name in Triton text. In: a kernel's statements. Out: names of shared indices, constants to be values."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from interfuse.emit import triton_prelude as prelude
from interfuse.ir.dtypes import BOOL, F32, F64, I32, I64
from interfuse.ir.index import Expr
from interfuse.lower.kernel import Let, Load, Pick, Stmt, Store, Value, operands


def name_indices(accesses: Sequence[Load | Store]) -> dict[Expr, str]:
    """Names for the indices that several accesses share: at, then at_<parameter>, numbered where it is taken."""
    named: dict[Expr, str] = {}
    for s in accesses:
        if isinstance(s, Load) and s.picks:
            continue  # known only once the values are
        if s.index not in named and s.index.args and sum(a.index is s.index for a in accesses) > 1:
            wish = "at" if not named else f"at_{s.param}"
            number = sum(n == wish or n.startswith(f"{wish}_") for n in named.values())
            named[s.index] = f"{wish}_{number + 1}" if number else wish
    return named


def typed_constants(statements: Sequence[Stmt], constants: Collection[Value]) -> set[Value]:
    """The constants that some user needs as a tensor of their type, not as a Python number."""
    typed: set[Value] = set()
    for s in statements:
        mine = {a for a in operands(s) if a in constants}
        if not isinstance(s, Let):
            typed |= mine
            continue
        weak = s.op in prelude.WEAK and all(a.dtype in (F32, I32, BOOL) for a in mine)
        alone = mine.issuperset(s.args) and s.op != "where"
        small = any(a.dtype not in (F32, F64, I32, I64, BOOL) for a in mine)
        if alone or small or not (weak or s.op in prelude.INFIX):
            typed |= mine
    return typed


def inside_name(p: Pick) -> str:
    """The name of the mask that tells where a pick lies inside what it picks from."""
    return f"{p.symbol.name}_inside"
