"""The C++ prelude: what generated kernels are written with. In: a kernel's text. Out: the helpers that it uses.

The helpers lie in `prelude/*.h`, in segments that begin with a line "//: name" or "//: name@type". A segment goes into
a file when its name is used there or in another segment that goes in; one with a type, when both name and type are.
With "//: name@type!" the kernel itself must use the type: a helper that does so has no need of the segment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ORDER = ("types", "memory", "operators", "math", "reduce", "scan", "loops", "attention", "split_product")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Segment:
    """One helper: the words that call for it (all of them must be in use, those in `kernel` by the kernel itself), its
    text, and the words that it uses.
    """

    wanted_by: frozenset[str]
    kernel: frozenset[str]
    text: str
    uses: frozenset[str]


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(re.sub(r"//.*", "", text)))


@lru_cache(maxsize=1)
def segments() -> tuple[Segment, ...]:
    """Every segment, in an order in which each stands after what its templates look up by name."""
    found = []
    for name in ORDER:
        text = (Path(__file__).parent / "prelude" / f"{name}.h").read_text(encoding="utf-8")
        for part in re.split(r"^//: ", text, flags=re.M)[1:]:
            head, body = part.split("\n", 1)
            words = head.strip().split("@")
            kernel = frozenset(w[:-1] for w in words if w.endswith("!"))
            found.append(Segment(frozenset(w.rstrip("!") for w in words), kernel, body.strip(), _words(body)))
    return tuple(found)


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """Every word that a segment is called by; kernels must not name their own values so."""
    return frozenset().union(*(s.wanted_by for s in segments()))


def select(kernel_text: str) -> str:
    """The segments that `kernel_text` needs, each once, in order, with a blank line between."""
    words, chosen = set(_words(kernel_text)), dict[int, Segment]()
    own = _words(re.sub(r"<[^<>]*>", "", kernel_text))  # a sum that is carried into doubles computes none
    while True:
        new = {k: s for k, s in enumerate(segments()) if k not in chosen and s.wanted_by <= words and s.kernel <= own}
        if not new:
            return "\n\n".join(chosen[k].text for k in sorted(chosen))
        chosen.update(new)
        words.update(*(s.uses for s in new.values()))


def all_text() -> str:
    """Every segment, for compiling the whole prelude at once."""
    return select(" ".join(names()))
