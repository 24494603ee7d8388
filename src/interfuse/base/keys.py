"""Content keys. In: texts and plain values. Out: short stable hashes that name cache entries."""

from __future__ import annotations

import hashlib


def digest(*parts: object) -> str:
    """SHA-256 over the parts' texts, each with its length before it, as 64 hexadecimal digits."""
    h = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def short(*parts: object) -> str:
    """The first twelve digits of `digest`: for names that people read."""
    return digest(*parts)[:12]
