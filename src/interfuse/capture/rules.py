"""The registry of lowerings. In: rules, registered by decorator. Out: RULES, from a call's target to its rule.

A rule takes the call's Maker and then the operator's own arguments under their schema names: tensors as IR nodes,
sizes as Dims, element types as DType. It returns one node a result, or raises UnsupportedError with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
"""Every lowering, by target."""


def lowers(*targets: str) -> Callable[[Rule], Rule]:
    """Register the decorated rule for ATen operators: "add.Tensor" stands for "aten.add.Tensor", "relu" for
    "aten.relu.default".
    """

    def register(rule: Rule) -> Rule:
        for target in targets:
            name = target if target.startswith("prims.") else f"aten.{target}"
            RULES[name if name.count(".") == 2 else f"{name}.default"] = rule
        return rule

    return register
