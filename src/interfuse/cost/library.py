"""What captured calls cost. In: a call, the sizes, a device. Out: counted Asked, and an Estimate from it.

The library's element-wise kernels run at the speed of their bytes where all operands lie as the result does. Others,
and its reductions, take an element at a time, so many operations each; what goes across memory, as scans and transposed
copies do, takes more. A scan walks its axis step by step, each after the one before. A norm's program takes one row, a
thread its elements one after the other, so that few rows leave the device waiting; a softmax reads rows that do not fit
on chip three times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from interfuse.cost.estimate import Estimate
from interfuse.cost.model import FITTED, Fit, estimate
from interfuse.cost.traffic import GATHERS, call_bytes, view
from interfuse.device.profile import DeviceProfile
from interfuse.ir.graph import Call, Ref
from interfuse.ir.index import at_sizes
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.passes.few_rows import FEW

LINEAR_RATE = 0.7
"""Share of the peak rate that a library matrix product reaches."""

TILE, AT_ONCE, DEEP = 64 * 64, 2, 256
"""Results of a program of a library's f32 product, programs that fill a unit, and what one of several programs takes
that share a result.
"""

NORM, GROUPS = "aten.native_layer_norm.default", "aten.native_group_norm.default"
SOFTMAXES = frozenset(("aten._softmax.default", "aten._log_softmax.default"))
JOINS = frozenset(("aten.cat.default",))

TILE_ROWS, BLOCK_ROWS, SPLIT_FLOPS = 32, 256, 60
"""Rows of x that tile registers take at once, those that stay split while the weight passes, and the operations that
splitting a number takes as long as.
"""

PRODUCTS = frozenset(("aten.linear.default", "aten.mm.default", "aten.addmm.default"))
"""Matrix products, whether a pass has spelled them out or not."""

ATTENTION = "aten._scaled_dot_product"
"""How the targets of PyTorch's attentions begin."""

LANES = 8
"""A layer norm whose rows are multiples of so many elements reads them in vectors."""

VECTOR_THREADS, PLAIN_THREADS, UNIT_THREADS = 128, 512, 2048
"""Threads of a norm's program where it reads vectors and where it does not, and of all programs of a unit."""

WARP_ROW = 1024
"""A softmax gives rows of up to so many elements to a warp each, which reads them once, in vectors."""

ROW_BYTES = 48 << 10
"""A softmax keeps rows of up to so many bytes on chip."""

PASSES = 3
"""Times that a softmax passes over a row that it does not keep."""

SOFTMAX_AT_ONCE = 2
"""Rows that a unit takes at once in a softmax."""

SCAN_THREADS, SCAN_MEETS = 512, 4
"""Threads of a program that scans innermost axes, and how many times a step of another scan each step of it takes."""


@dataclass(frozen=True)
class Asked:
    """One captured call: bytes and launches as counted.

    single        elements that are taken one at a time: reduced, or with an operand that lies otherwise than the result
    across        elements that go across memory: scanned, copied from what is transposed, or divided by a sum along an
                  axis that is not the innermost
    rows          reductions that run side by side where each is needed to go on, as in a softmax; 0 for any number
    norms         rows that are normalised, a program of `threads` threads each, of which one takes `walked` elements
    steps         steps of a scan, each after the one before
    meets         1 where threads wait for each other's results, as in a reduction or a scan
    again, span   bytes that are read a second and a third time, and those of them that one row is
    flops, dtype  operations of matrix products, and on what
    programs      programs of a library's product
    """

    bytes: int
    launches: int
    single: int = 0
    across: int = 0
    rows: int = 0
    norms: int = 0
    threads: int = 0
    walked: float = 0.0
    steps: int = 0
    meets: int = 0
    again: int = 0
    span: int = 0
    flops: float = 0.0
    dtype: str = "f32"
    programs: int = 0


def asked(call: Call, sizes: Mapping[str, int]) -> Asked:
    """What the call asks of a device; `sizes` gives the size symbols."""
    found = Asked(call_bytes(call, sizes), call.launches)
    if call.target.startswith(ATTENTION) and "backward" not in call.target:
        return _attended(found, call, sizes)
    outs = [o for o in call.outs if o is not None and at_sizes(o.size, sizes)]
    if call.opaque or not found.bytes or not outs:
        return found
    if call.target in PRODUCTS:
        matrices = (at_sizes(n.size, sizes) for n in (*call.operands, *outs) if len(n.shape) > 1)
        flops, out = 2 * math.prod(matrices) ** 0.5, outs[0]  # 2 MKN of MK, KN, MN
        programs = product_programs(out, flops, len(call.operands) > 2, sizes)
        return replace(found, flops=flops, dtype=out.dtype.name, programs=programs)
    largest = max((at_sizes(o.size, sizes) for o in outs), default=0)
    lies = max((_lies(n, n if call.target in JOINS else outs[0], sizes) for n in call.operands), default=DENSE)
    plain = call.target not in GATHERS and len(outs) == 1
    given = _given(call)
    goes_on = set(topological([o for o in outs if at_sizes(o.size, sizes) == largest], given))
    for node in topological(outs, given):
        if node in given:
            continue
        if node.op in REDUCES:
            plain = False
            found = _reduced(found, node, call.target, largest if node in goes_on else 0, sizes)
        elif node.op in SCANS:
            plain = False
            found = _scanned(found, node, sizes)
    if lies == ACROSS and call.target not in GATHERS:
        found = replace(found, across=max(found.across, largest))  # the library copies it first
    return replace(found, single=largest) if plain and lies == APART else found


def _attended(found: Asked, call: Call, sizes: Mapping[str, int]) -> Asked:
    """What is asked, with the two products of an attention: queries by keys, and what comes of it by values."""
    nodes = [call.operands[a.k] for a in (*call.args, *dict(call.kwargs).values()) if isinstance(a, Ref)]
    query, key = ([at_sizes(d, sizes) for d in n.shape] for n in nodes[:2])
    return replace(found, flops=4.0 * math.prod(query) * key[-2], dtype=nodes[0].dtype.name)


def _given(call: Call) -> set[Node]:
    """The call's operands, also as they were before their rounding: a pass may have looked through that."""
    found = set(call.operands)
    for node in call.operands:
        while node.op == "cast":
            node = node.inputs[0]
            found.add(node)
    return found


def _reduced(found: Asked, node: Node, target: str, largest: int, sizes: Mapping[str, int]) -> Asked:
    """What is asked, with a reduction more that a result of `largest` elements needs."""
    shape = [at_sizes(d, sizes) for d in node.inputs[0].shape]
    count, rows = math.prod(shape), at_sizes(node.size, sizes)
    if largest < count:
        return replace(found, single=max(found.single, count), meets=1)
    # Something of every element goes on, so that each row waits for its own sum.
    length = count // max(rows, 1)
    innermost = max((k for k, d in enumerate(shape) if d > 1), default=0)
    if innermost not in node.attr("axes"):
        steps = PASSES * length if target in SOFTMAXES else 0
        return replace(found, across=max(found.across, count), steps=max(found.steps, steps), meets=1)
    if target in SOFTMAXES:
        return _softmax(found, rows, length, found.bytes // 2)
    if target not in (NORM, GROUPS):
        return replace(found, single=max(found.single, count), rows=max(found.rows, rows), meets=1)
    vectors = target == NORM and length % LANES == 0
    threads = VECTOR_THREADS if vectors else PLAIN_THREADS
    # What a thread reads in vectors it waits for once, not once an element.
    walked = length / threads / (2 if vectors else 1)
    single = max(found.single, 0 if vectors else count)
    return replace(found, single=single, norms=rows, threads=threads, walked=walked, meets=1)


def _softmax(found: Asked, rows: int, length: int, read: int) -> Asked:
    """What is asked, with the softmax of so many rows that `read` bytes are."""
    if length <= WARP_ROW:
        return replace(found, meets=1)
    span = read // max(rows, 1)
    if span <= ROW_BYTES:
        return replace(found, single=rows * length // 2, rows=rows, meets=1, span=span)
    # Read in vectors, every time: the wider the elements, the fewer at once.
    single = round(rows * length * min(1.0, span / length / 4))
    return replace(found, single=single, rows=rows, meets=1, again=(PASSES - 1) * read, span=span)


def _scanned(found: Asked, node: Node, sizes: Mapping[str, int]) -> Asked:
    """What is asked, with a scan."""
    count, axis = at_sizes(node.size, sizes), node.attr("axis")
    length = at_sizes(node.shape[axis], sizes)
    inner = math.prod(at_sizes(d, sizes) for d in node.shape[axis + 1 :])
    # Along the innermost axis a step takes two elements a thread; a program shares its threads among rows.
    rows = count // max(length, 1)
    threads = 2 ** min(9, max(4, (9 + (length - 1).bit_length() - max(rows - 1, 0).bit_length()) // 2))
    steps = length if inner > 1 else SCAN_MEETS * math.ceil(length / (2 * threads))
    return replace(found, across=max(found.across, count), steps=max(found.steps, steps), meets=1)


DENSE, APART, ACROSS = range(3)


def _lies(operand: Node, out: Node, sizes: Mapping[str, int]) -> int:
    """How an operand lies beside a dense result: alike, otherwise but along it, or across it."""
    shape = [at_sizes(d, sizes) for d in operand.shape]
    if math.prod(shape) <= 1:
        return DENSE  # a number
    if shape != [at_sizes(d, sizes) for d in out.shape]:
        return APART
    strides = [at_sizes(d, sizes) for d in view(operand).strides]
    wide = [(d, s) for d, s in zip(shape, strides, strict=True) if d > 1]
    if wide[-1][1] > 1:
        return ACROSS
    dense = all(outer == inner * d for (_, outer), (d, inner) in pairwise(wide))
    return DENSE if dense and wide[-1][1] == 1 else APART


def product_programs(out: Node, flops: float, biased: bool, sizes: Mapping[str, int]) -> int:
    """Programs of a library's product. Several share a result where it has few rows, or no bias is added to it."""
    results, rows = at_sizes(out.size, sizes), at_sizes(out.size, sizes) // max(1, at_sizes(out.shape[-1], sizes))
    deep = flops / 2 / max(1, results)
    return math.ceil(results / TILE) * (1 if biased and rows > FEW else math.ceil(deep / DEEP))


def split_flops(out: Node, sizes: Mapping[str, int]) -> float:
    """Operations of a product on a CPU's tile registers, its operands' numbers split before: whole tiles of rows, and
    the second operand once for each block of rows.
    """
    deep, columns = (at_sizes(out.inputs[k].shape[-1 - k], sizes) for k in (0, 1))
    rows = at_sizes(out.size, sizes) // max(1, columns)
    tiled, blocks = math.ceil(rows / TILE_ROWS) * TILE_ROWS, math.ceil(rows / BLOCK_ROWS)
    return deep * (2.0 * tiled * columns + SPLIT_FLOPS * (tiled + blocks * columns))


def product_share(programs: int, dtype: str, profile: DeviceProfile) -> float:
    """The part of a device that a library's f32 product of so many programs keeps busy; 1 for other types, which tensor
    cores multiply.
    """
    if profile.kind == "cpu" or dtype != "f32" or not programs:
        return 1.0
    return min(1.0, programs / (AT_ONCE * profile.units))


def library_estimate(call: Asked, profile: DeviceProfile, fit: Fit = FITTED) -> Estimate:
    """Predicted seconds of one captured call."""
    one = estimate(
        call.bytes,
        call.flops,
        call.launches,
        profile,
        slack=fit.slack,
        reached=LINEAR_RATE * product_share(call.programs, call.dtype, profile),
        dtype=call.dtype,
    )
    parts = dict(one.parts)
    if profile.kind == "cpu" or not parts["launch"]:
        return one
    share = min(1.0, call.rows / profile.units) if call.rows else 1.0
    work = (fit.single * call.single / share + fit.across * call.across) / (profile.flops_of("f32") / 2)
    passing = max(work, call.steps * fit.walk)
    if call.norms:
        waves = max(1.0, call.norms * call.threads / (UNIT_THREADS * profile.units))
        passing += waves * (fit.norm + fit.each * call.walked)
    waiting = call.meets * fit.join * max(1.0, call.rows / (SOFTMAX_AT_ONCE * profile.units))
    memory = max(one.seconds - parts["launch"], call.launches * fit.first)
    if min(call.rows, SOFTMAX_AT_ONCE * profile.units) * call.span > fit.lost * profile.cache:
        memory += profile.seconds("copy", call.again)
    seconds = parts["launch"] + max(memory, passing) + waiting
    return replace(one, seconds=seconds, parts=(*one.parts, ("passing", passing), ("waiting", waiting)))
