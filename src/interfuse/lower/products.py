"""Products of rows with a matrix. In: a region whose reductions are sums of products, or a kernel. Out: the axes on
which tensor cores multiply, and what each sum multiplies.

What rows and features have in common is walked. A few rows are held whole, so that the matrix is read once. The first
axis is what tensor cores take as rows: features where they take more than there are rows. They multiply f16 and bf16
exactly and add up in f32, though the last digits of that are theirs: only regions that end in narrow types take them.
F32 they take split in two numbers (lower/split_products.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import BF16, F16, F32, DType
from interfuse.ir.index import INF
from interfuse.ir.node import Node
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower import split_products
from interfuse.lower.axes import Rows, power
from interfuse.lower.domain import find, inside
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Reduce, Role, Stmt, Value, step_along, varies_over
from interfuse.lower.schedule import Schedule
from interfuse.lower.split_products import SPLIT, Sizes
from interfuse.lower.target import Target
from interfuse.lower.traced import Trace
from interfuse.lower.tree import statements
from interfuse.lower.work import Work
from interfuse.passes.few_rows import FEW

FAMILY = "product"

KINDS = (F16, BF16)
"""Types that tensor cores multiply exactly."""

MOST = 128
"""Rows of which a product still takes about as long as its matrix takes to be read."""

FEATURES, COMMON = 64, 64
"""Features of a program at most, and what it takes of each at once then: 128 bytes of a matrix laid either way."""

WIDE = 128
"""Features of a program at most where there are many rows: every program reads all of these again."""

NAMES, PART = ("row", "feature", "col"), "chunk"
"""The axes: of the rows, of the matrix, and of both; and that of parts of the last."""

Traced = Callable[..., Trace]
"""Traces a region over a domain, with `rows` as several axes."""

Lowered = tuple[tuple[Axis, ...], Trace, tuple[Stmt, ...], tuple[()]]


@dataclass(frozen=True)
class Product:
    """What a sum multiplies: elements of the rows and of the matrix."""

    row: Load
    weight: Load


def multiplied(work: Work, target: Target, schedule: Schedule, trace: Traced) -> Lowered | None:
    """Axes, trace and statements of a region that multiplies few rows; None for any other. UnsupportedError for a
    schedule that tensor cores cannot have.
    """
    sizes = _sizes(inside(work.roots, work.leaves)) if target.backend == "triton" else None
    if sizes is None or schedule.streamed or not (_few(sizes, work.outputs) or split_products.pays(sizes, target)):
        return None
    part, row, feature, col = (Axis(n, d, Role.GRID) for n, d in zip((PART, *NAMES), sizes, strict=True))
    kept = (part, row, feature) if sizes[0] > 1 else (row, feature)
    many = part.symbol * row.extent + row.symbol if sizes[0] > 1 else row.symbol
    rows = Rows(many * feature.extent + feature.symbol, kept)
    traced = trace(replace(find(work.roots, work.leaves), most=INF), rows=rows)
    body, _ = statements(traced, replace(col, role=Role.SERIAL), keep=False)
    types = {name: n.dtype for n, name in traced.reads.items()}
    found = products(body, types)
    split = any(types[p.row.param] is SPLIT for p in found.values())
    if not found or not (split_products.pays(sizes, target) if split else _few(sizes, work.outputs)):
        return None
    if split and not all(split_products.in_vectors(side, (row, feature, col)) for side in sides(found)):
        return None
    long = any(step_along(p.weight, feature.symbol) == 1 for p in found.values())
    if row.extent == 1 and not long:
        return None  # a row of the matrix is added up as it lies
    if split:
        both = [p.row for p in found.values()], [p.weight for p in found.values()]
        axes, turned = split_products.blocks(sizes[0], row, feature, col, *both, target)
        body = split_products.late(body)
    else:
        axes = _blocks(row, feature, col, long, len(found), target)
    row, feature, col = schedule.placed((*kept[:-2], *axes), target.backend, target.lanes)[-3:]
    if min(row.block, feature.block, col.block) < FEW:
        raise UnsupportedError(f"the schedule {schedule}: tensor cores take {FEW} at once at least")
    turned = turned if split else row.block < target.dot <= feature.block
    return (*kept[:-2], *((feature, row) if turned else (row, feature)), col), traced, body, ()


def factors(total: Node) -> tuple[Node, Node] | None:
    """The rows and the matrix of a sum that multiplies them; None for any other node."""
    if total.op != "sum" or total.attr("axes") != (2,) or total.inputs[0].op != "mul":
        return None
    first, second = total.inputs[0].inputs
    if _repeats(first) == _repeats(second):
        return None
    row, weight = (first, second) if _repeats(first) else (second, first)
    return _plain(row), _plain(weight)


def _repeats(node: Node) -> bool:
    """True for rows that are repeated for each feature."""
    return node.op == "expand" and node.inputs[0].shape[1] == 1


def _plain(node: Node) -> Node:
    """What a node repeats, shapes or takes a part of."""
    while node.op in ("reshape", "expand", "permute", "slice"):
        node = node.inputs[0]
    return node


def sizes_of(nodes: Sequence[Node], outputs: Iterable[Node]) -> Sizes | None:
    """Few rows, features, and what they have in common, where sums over products of these sizes are all that a region
    with narrow `outputs` reduces.
    """
    sizes = _sizes(nodes)
    return sizes if sizes is not None and _few(sizes, outputs) else None


def _few(sizes: Sizes, outputs: Iterable[Node]) -> bool:
    """True for few rows that end in narrow types."""
    return sizes[0] == 1 and sizes[1] <= MOST and all(o.dtype in KINDS for o in outputs)


def _sizes(nodes: Sequence[Node]) -> Sizes | None:
    """Parts, rows, features, and what they have in common, where sums over products of these sizes are all that is
    reduced.
    """
    sums = [n for n in nodes if n.op in REDUCES or n.op in SCANS]
    if not all(n.op == "sum" and n.dtype is F32 and n.inputs[0].op == "mul" and _reduces_last(n) for n in sums):
        return None
    shapes = {n.inputs[0].shape for n in sums}
    if len(shapes) != 1:
        return None
    sizes = tuple(d for d in shapes.pop() if isinstance(d, int))
    if len(sizes) not in (3, 4):
        return None
    parts, rows, features, common = (1, *sizes)[-4:]
    return (parts, rows, features, common) if min(features, common) >= FEW else None


def _reduces_last(total: Node) -> bool:
    """True for a sum over the last of its three dimensions, or four with parts of that one."""
    last = len(total.inputs[0].shape) - 1
    return last in (2, 3) and total.attr("axes") == (last,)


def _blocks(row: Axis, feature: Axis, col: Axis, long: bool, matrices: int, target: Target) -> tuple[Axis, ...]:
    """What a program takes: all rows, as many features as leave a program for every unit, no fewer than make a `long`
    piece where they lie side by side, and the more of what they share the less it takes of all `matrices`.
    """
    rows, features = int(row.extent), int(feature.extent)  # type: ignore[arg-type]
    if rows > FEW:
        return _many(row, feature, col, matrices, target)
    block, least = FEATURES, 2 * FEW if long else FEW
    while block > least and features < target.programs * block:
        block //= 2
    common = 2 * COMMON if block * matrices < FEATURES else COMMON
    # Programs that have a unit each, and little to do a step, take long ones.
    alone = matrices == 1 and block == FEW and features < target.programs * block
    common = 4 * COMMON if alone else common
    return replace(row, block=FEW), replace(feature, block=block), replace(col, role=Role.SERIAL, block=common)


def _many(row: Axis, feature: Axis, col: Axis, matrices: int, target: Target) -> tuple[Axis, ...]:
    """The same for more rows than tensor cores take at least: what programs read of these again weighs as much as the
    matrix, so that each takes as many features as leave seven units of eight one, or three of eight where tensor cores
    take features as rows. Steps are long where few programs fit a unit, or have little to do in each.
    """
    tall, features = power(int(row.extent)), int(feature.extent)  # type: ignore[arg-type]
    turned = tall < target.dot
    block, busy = (FEATURES, 3) if turned else (WIDE // matrices if tall >= FEATURES else FEATURES, 7)
    while block > 2 * FEW and 8 * features < busy * target.programs * block:
        block //= 2
    common = 2 * COMMON if tall == MOST or (turned and matrices == 1) else COMMON
    return replace(row, block=tall), replace(feature, block=block), replace(col, role=Role.SERIAL, block=common)


def products(body: Sequence[Stmt], types: Mapping[str, DType]) -> dict[Reduce, Product]:
    """What each sum of a body multiplies, `types` being those of buffers; nothing where the body walks its columns for
    anything else.
    """
    loops = [s for s in body if isinstance(s, Loop)]
    inside = loops[0].body if len(loops) == 1 else ()
    makers = {s.out: s for s in inside if isinstance(s, (Load, Let))}
    found, used = dict[Reduce, Product](), set[Stmt]()
    for s in inside:
        if not isinstance(s, Reduce):
            continue
        terms = makers.get(s.arg)
        if s.op != "sum" or not isinstance(terms, Let) or terms.op != "mul":
            return {}
        sides = [_read(v, makers) for v in terms.args]
        product = _product([chain[-1] for chain in sides if chain], types)
        if product is None:
            return {}
        used.update((s, terms), *sides)
        found[s] = product
    return found if used.issuperset(inside) else {}


def _read(value: Value, makers: Mapping[Value, Load | Let]) -> list[Load | Let]:
    """What makes a value, from a conversion to f32 where there is one to the load."""
    chain = [makers[value]] if value in makers else []
    if chain and isinstance(chain[0], Let) and chain[0].op == "cast" and chain[0].args[0] in makers:
        chain.append(makers[chain[0].args[0]])
    return chain


def _product(sides: Sequence[Load | Let], types: Mapping[str, DType]) -> Product | None:
    """The two sides of a product that tensor cores can multiply as they are stored."""
    row, feature, common = NAMES
    loads = [s for s in sides if isinstance(s, Load) and not s.picks and not s.within]
    kinds = {types.get(s.param) for s in loads}
    if len(loads) != 2 or len(kinds) != 1 or not kinds <= {*KINDS, SPLIT}:
        return None
    first, second = sorted(loads, key=lambda s: feature in varies_over(s))
    own = varies_over(first) - {row, PART} == {common} and varies_over(second) - {PART} == {feature, common}
    return Product(first, second) if own else None


def products_of(kernel: Kernel) -> dict[Reduce, Product]:
    """What each sum of a kernel of this family multiplies; nothing for other kernels."""
    types = {p.name: p.dtype for p in kernel.params}
    return products(kernel.body, types) if kernel.family == FAMILY else {}


def sides(found: Mapping[Reduce, Product]) -> dict[Load, None]:
    """What products multiply, each load once."""
    return dict.fromkeys(side for p in found.values() for side in (p.row, p.weight))
