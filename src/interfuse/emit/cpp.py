"""Kernel IR to C++ text. In: one Kernel and a vector level. Out: one header-free C++17 translation unit.

The function is `extern "C" void name(void* const* buffers, const long* sizes)`: buffers are the parameters that are not
scratch, in order, sizes the kernel's symbols. Where values tell places it is an `int`: 1 where one was outside, and
then what the kernel wrote is worth nothing. A packed kernel takes a third argument, the number of members: buffers
and sizes then hold one row a member, and threads share the programs of all members. A value that varies over the lane
axis (the one walked in a block of more than one index) is a vector; any other is a scalar. What a full vector does and
what the shorter last one does is one lambda, compiled for both. Programs of all GRID axes run under one OpenMP loop
when they are worth it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from interfuse.base.text import Writer
from interfuse.emit import cpp_prelude
from interfuse.emit.cpp_ahead import RowsAhead
from interfuse.emit.cpp_curves import quotients
from interfuse.emit.cpp_facts import work_of
from interfuse.emit.cpp_names import entry
from interfuse.emit.cpp_passes import two_passes
from interfuse.emit.cpp_types import VECTOR_BYTES, stored
from interfuse.ir.index import product, unwrap
from interfuse.lower.kernel import Kernel

PARALLEL_FROM = 1 << 17
"""Work (about one unit an operation and element) from which a kernel runs on several threads."""


def emit(kernel: Kernel, vector: str, streaming: frozenset[str] = frozenset()) -> str:
    """The C++ source of `kernel` for a vector level (avx512, avx2, portable; native is written as avx512).

    `streaming` names output parameters that are stored past the caches. UnsupportedError says what has no C++ form.
    """
    body = _Emitter(quotients(kernel), VECTOR_BYTES[vector], streaming)
    code = body.function()
    head = Writer()
    for line in "\n".join(kernel.doc or (kernel.name,)).splitlines():
        head.line(f"// {line}".rstrip("\\ "))  # a backslash would join the next line to the comment
    head.line(f"// Family: {kernel.family}. {body.summary()}")
    prelude = cpp_prelude.select(f"{code} LANES")
    return (
        f"{head.text()}\n#define LANES {body.lanes}  // elements a vector\n\n"
        f"namespace {{\n\n{prelude}\n\n}}  // namespace\n\n{code}"
    )


class _Emitter(RowsAhead):
    """Writes one kernel's function."""

    def __init__(self, kernel: Kernel, register_bytes: int, streaming: frozenset[str]) -> None:
        super().__init__(kernel, register_bytes, streaming)
        self.member = ""

    def summary(self) -> str:
        """One sentence on how the kernel runs."""
        over = " and ".join(f"{a.name} ({a.extent})" for a in self.grid) or "nothing: one program"
        lane = f"{self.lanes} elements of {self.lane_axis.name}" if self.lane_axis else "one element"
        return f"Programs over {over}; {lane} at a time."

    # ---- the function and its loops -------------------------------------------------------------------------------

    def function(self) -> str:
        """The text of the kernel's function."""
        kernel, body = self.kernel, Writer()
        self.names.taken.add(entry(kernel.name))
        if kernel.packed:
            self.names.taken |= {"first", "last", "m", "members", "programs"}
            self.member = self.names.fresh("member")
        arguments = [p for p in kernel.params if p.mode != "scratch"]
        opening = []
        for k, name in enumerate(kernel.symbols):
            opening.append((f"const long {self.names.give_index(name)} = sizes[{k}];", self.names.index[name]))
        for k, p in enumerate(arguments):
            pointer = self.buffers[p.name] = self.names.fresh(f"{p.name}_ptr")
            kind = f"{'const ' if p.mode == 'in' else ''}{stored(p.dtype)}*"
            opening.append((f"{kind} {pointer} = ({kind})buffers[{k}];", pointer))
        with self.w.block():
            if kernel.packed:
                self.members_programs()
            else:
                self.programs()
        code = self.w.text()
        words = set(re.findall(r"\w+", code))
        used = [line for line, name in opening if name in words]
        sizes = "const long* sizes" if any("sizes[" in line for line in used) else "const long*"
        if kernel.packed:
            body.line("// Programs `first` to `last` of one member.")
            body.line(f"static {self.kind} {self.member}(void* const* buffers, {sizes}, long first, long last) {{")
        else:
            body.line(f'extern "C" {self.kind} {entry(kernel.name)}(void* const* buffers, {sizes}) {{')
        with body.block():
            for line in (*used, *self.first_checks()):
                body.line(line)
        members = self.pack(len(arguments), opening) if kernel.packed else ""
        return f"{body.text()}\n{code}{self.back}}}\n{members}"

    # ---- packs -----------------------------------------------------------------------------------------------------

    def pack(self, buffers: int, opening: Sequence[tuple[str, str]]) -> str:
        """The function that is launched: it tells how many programs a member has and what each costs."""
        axis, step = self.split()
        extent = self.dim(axis.extent)
        others = product(tuple(a.extent for a in self.grid if a is not axis))
        work = self.dim(work_of(self.kernel, self.kernel.body) * others)
        count = extent if step == "1" else f"({extent} + {step} - 1) / {step if step == 'LANES' else f'({step})'}"
        each, symbols = ("" if step == "1" else f" * {step}"), len(self.kernel.symbols)
        named = [line for line, name in opening if re.search(rf"\b{name}\b", f"{count} {work}")]
        w = Writer()
        w.line()
        run = f"{self.member}(buffers + m * {buffers}, sizes + m * {symbols}, first, last)"
        run = f"if ({run}) __atomic_store_n(&{self.outside}, 1, __ATOMIC_RELAXED)" if self.kind == "int" else run
        name = entry(self.kernel.name)
        w.line(f'extern "C" {self.kind} {name}(void* const* buffers, const long* sizes, long members) {{')
        with w.block():
            if self.kind == "int":
                w.line(f"int {self.outside} = 0;")
            w.line(f"const auto programs = [&](long {'m' if named else ''}) {{")
            with w.block():
                for line in named:
                    w.line(re.sub(r"sizes\[(\d+)\]", rf"sizes[m * {symbols} + \1]", line))
                w.line(f"return Programs{{{count}, {work}{each}}};")
            w.line("};")
            w.line(f"run_members(members, {PARALLEL_FROM}, programs, [&](long m, long first, long last) {{")
            with w.block():
                w.line(f"{run};")
            w.line("});")
        return f"{w.text()}{self.back}}}\n"

    def programs(self) -> None:
        """The loop over all programs, on several threads where the work is worth it."""
        if not self.grid:
            self.program(self.kernel.body)
            return
        condition = self.parallel_condition()
        collapse = f" collapse({len(self.grid)})" if len(self.grid) > 1 else ""
        streams = self.streams()
        clause = f" if ({condition})" if condition not in ("true", "false") else ""
        pieces, passes = self.lane_pieces(), two_passes(self.kernel, self.lane_axis)
        if passes is not None and (condition != "false" or passes.weights is not None):
            if condition != "false":
                # What threads share would be read again behind each request for memory.
                own = ", ".join(self.buffers.values())
                self.w.line(f"#pragma omp parallel{clause} firstprivate({own})")
            with self.w.block("{", "}"):
                self.rows_ahead(passes)
                if streams:
                    self.w.line("finish_streams();")
            return
        if condition == "false":
            for piece in pieces:
                self.grid_loops(piece)
        elif streams or len(pieces) > 1:
            self.w.line(f"#pragma omp parallel{clause}")
            with self.w.block("{", "}"):
                for piece in pieces:
                    self.w.line(f"#pragma omp for schedule(static) nowait{collapse}")
                    self.grid_loops(piece)
                if streams:
                    self.w.line("finish_streams();")
        else:
            self.w.line(f"#pragma omp parallel for schedule(static){collapse}{clause}")
            self.grid_loops(pieces[0])
        if streams and condition == "false":
            self.w.line("finish_streams();")

    def parallel_condition(self) -> str:
        """Whether threads pay: "true", "false", or a C++ condition on the sizes."""
        work = unwrap(work_of(self.kernel, self.kernel.body) * product(tuple(a.extent for a in self.grid)))
        if isinstance(work, int):
            return "true" if work >= PARALLEL_FROM else "false"
        return f"{self.index(work)} >= {PARALLEL_FROM}"
