"""Names of a kernel's values. In: what nodes are called. Out: readable, unique identifiers."""

from __future__ import annotations

import re
from functools import lru_cache

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
        return self._free(_identifier(wish))

    def _free(self, name: str) -> str:
        count = self._used.get(name, 0) + 1
        self._used[name] = count
        return name if count == 1 else self._free(f"{name}_{count}")


@lru_cache(maxsize=1 << 12)
def _identifier(wish: str) -> str:
    wish = re.sub(r"\W", "_", wish).strip("_").lower() or "v"
    return f"v_{wish}" if wish[0].isdigit() else wish
