"""What a sigmoid weighs, in fewer operations. In: a Kernel. Out: one in which x * sigmoid(z) is x / (1 + 2^(b z)).

b is -1 / log 2. Where numbers inside z take it in, as those of GELU's tanh form do, the argument of the power costs
nothing more and is rounded as often as before; and the division takes the place of the product with x.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from interfuse.emit.tidy import drop_unused
from interfuse.ir.dtypes import F32
from interfuse.lower.kernel import Kernel, Let, Loop, Stmt, Value, operands, walk

STEPS = -math.log2(math.e)


def quotients(kernel: Kernel) -> Kernel:
    """The kernel with each product of a float32 value and a sigmoid that is used nowhere else as a quotient, where
    numbers inside the sigmoid take in its factor.
    """
    statements, users = walk(kernel.body), defaultdict[Value, set[Stmt]](set)
    for s in statements:
        for v in operands(s):
            users[v].add(s)
    lets = [s for s in statements if isinstance(s, Let) and s.out.dtype is F32]
    once = {s.out: s for s in lets if len(users[s.out]) == 1}
    body = _Found(once, {s.out: s for s in lets if s.op == "const"}).body(kernel.body)
    return kernel if body == kernel.body else replace(kernel, body=drop_unused(body))


@dataclass(frozen=True)
class _Found:
    """Of a kernel what makes values that one statement alone uses, and what makes numbers."""

    once: Mapping[Value, Let]
    numbers: Mapping[Value, Let]

    def body(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The statements of one scope, rewritten."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                out.append(replace(s, body=self.body(s.body)))
            else:
                out += (isinstance(s, Let) and self.quotient(s)) or (s,)
        return tuple(out)

    def quotient(self, s: Let) -> tuple[Let, ...]:
        """What stands in place of a product with such a sigmoid; nothing for any other statement."""
        curves = [v for v in s.args if v in self.once and self.once[v].op == "sigmoid"]
        if s.op != "mul" or len(curves) != 1:
            return ()
        (curve,), (x,) = curves, [v for v in s.args if v is not curves[0]]
        steps = self.scaled(self.once[curve].args[0], STEPS)
        if not steps:
            return ()
        power, whole = (replace(curve, name=f"{curve.name} {what}") for what in ("power", "whole"))
        one = Value(f"{curve.name} one", F32)
        return (
            *steps,
            Let(power, "exp2", (steps[-1].out,), note=s.note),
            Let(one, "const", attrs=(("value", 1.0),)),
            Let(whole, "add", (power, one), note=s.note),
            replace(s, op="div", args=(x, whole)),
        )

    def scaled(self, z: Value, by: float) -> tuple[Let, ...]:
        """Statements that end with the product of z and a number, no more of them than make z itself: numbers inside
        take it in. None at all where that cannot be.
        """
        out = replace(z, name=f"{z.name} scaled")
        if z in self.numbers:
            return (Let(out, "const", attrs=(("value", dict(self.numbers[z].attrs)["value"] * by),)),)
        made = self.once.get(z)
        if made is None or made.op not in ("mul", "add"):
            return ()
        parts = [self.scaled(v, by) for v in made.args]
        if made.op == "add":
            new = parts if all(parts) else []
        else:
            first = next((k for k in (0, 1) if parts[k]), None)
            new = [p if k == first else () for k, p in enumerate(parts)] if first is not None else []
        if not new:
            return ()
        args = tuple(p[-1].out if p else v for p, v in zip(new, made.args, strict=True))
        return (*(let for p in new for let in p), replace(made, out=out, args=args))
