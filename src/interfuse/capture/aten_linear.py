"""Matrix products. In: ATen calls of linear, addmm, mm and bmm. Out: `linear` nodes on the untransposed weight, and
sums for the products of many matrices with a vector each, products of their elements for those of vectors.

A transposed weight arrives as a permute; permuting it back cancels, so the operand is the parameter itself.
"""

from __future__ import annotations

from typing import Any

from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, permute, reshape, unsupported, wide
from interfuse.ir import build
from interfuse.ir.index import product
from interfuse.ir.node import Node


def _checked(x: Node, weight: Node) -> None:
    if not x.dtype.is_float or x.dtype.bytes < 2 or weight.dtype is not x.dtype:
        raise unsupported("a matrix product that is not of one floating type")
    if product((*x.shape, *weight.shape)) == 0:
        raise unsupported("a matrix product of no elements")


@lowers("linear")
def _linear(c: Maker, input: Node, weight: Node, bias: Node | None = None) -> Node:
    _checked(input, weight)
    if len(weight.shape) != 2 or not input.shape or (bias is not None and len(bias.shape) != 1):
        raise unsupported("a linear layer on vectors")
    rows = reshape(input, (product(input.shape[:-1]), input.shape[-1]))
    return reshape(build.linear(rows, weight, bias), c.shape)


@lowers("mm")
def _mm(c: Maker, self: Node, mat2: Node) -> Node:
    _checked(self, mat2)
    return build.linear(self, permute(mat2, (1, 0)))


@lowers("addmm")
def _addmm(c: Maker, self: Node, mat1: Node, mat2: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    _checked(mat1, mat2)
    if beta != 1 or alpha != 1 or self.shape != (mat2.shape[1],) or self.dtype is not mat1.dtype:
        raise unsupported("a matrix product whose addend is not a plain vector")
    return build.linear(mat1, permute(mat2, (1, 0)), self)


@lowers("bmm")
def _bmm(c: Maker, self: Node, mat2: Node) -> Node:
    """Matrices that are each read for one row or column alone take as long as that takes: a sum, in f32 or wider. A
    column times a row is one product an element.
    """
    _checked(self, mat2)
    (many, rows, inner), columns = self.shape, mat2.shape[2]
    if inner == 1:
        return c.narrow(c("mul", wide(self), wide(mat2)))
    if rows == 1:
        terms = c("mul", reshape(wide(self), (many, inner, 1)), wide(mat2))
    elif columns == 1:
        terms = c("mul", wide(self), reshape(wide(mat2), (many, 1, inner)))
    else:
        raise unsupported("a matrix product that is no plain linear layer")
    return reshape(c.narrow(c.reduce("sum", terms, (1 if rows == 1 else 2,))), c.shape)
