"""Names of a kernel's values. In: what nodes are called. Out: readable, unique identifiers."""

from __future__ import annotations

import re

GENERATED = re.compile(
    r"^((arg|primals|tangents|input|view|permute|getitem|t|_unsafe_view)[_\d]*|l_.*)?$", re.IGNORECASE
)


class Names:
    """Readable, unique names."""

    def __init__(self) -> None:
        own = ("outer", "row", "turn", "col", "part", "at", "tl", "triton")
        self._used: dict[str, int] = dict.fromkeys(own, 1)

    def take(self, wish: str) -> str:
        """`wish` as an identifier, numbered where it is taken."""
        wish = re.sub(r"\W", "_", wish).strip("_").lower() or "v"
        wish = f"v_{wish}" if wish[0].isdigit() else wish
        count = self._used.get(wish, 0) + 1
        self._used[wish] = count
        return wish if count == 1 else self.take(f"{wish}_{count}")
