"""C++ names. In: IR names of values and axes. Out: spellings that mean nothing else in C++, prelude or scope."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from interfuse.emit import cpp_prelude

_KEYWORDS = frozenset(
    """
    alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default
    delete do double else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register return short signed
    sizeof static struct switch template this throw true try typedef typeid typename union unsigned using
    virtual void volatile while xor n part lane buffers sizes LANES
""".split()
)
_LIBRARY = frozenset(
    """
    std abs acos asin atan atan2 ceil copysign cos cosh div erf exp exp2 expm1 floor fmax fmin fmod gamma hypot
    isinf isnan lerp lgamma log log10 log1p log2 max min pow remainder rint round signbit sin sinh sqrt tan tanh trunc
""".split()
)


def entry(kernel: str) -> str:
    """The C function of a kernel of this name, with an ending where C++, its library or the prelude has the name."""
    taken = kernel in _KEYWORDS or kernel in _LIBRARY or kernel in cpp_prelude.names()
    return f"{kernel}_kernel" if taken else kernel


@dataclass
class Names:
    """C++ names in sight: spellings `of` values, of axes and sizes (`index`), and every name that is taken."""

    of: dict[str, str] = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def inner(self) -> Names:
        """A scope inside this one."""
        return Names(dict(self.of), dict(self.index), set(self.taken))

    def fresh(self, wanted: str) -> str:
        """A name like `wanted` that nothing else has."""
        base = re.sub(r"\W", "_", wanted)
        base = f"v{base}" if base[:1].isdigit() or not base else base
        name, k = base, 2
        while name in self.taken or name in _KEYWORDS or name in cpp_prelude.names():
            name, k = f"{base}_{k}", k + 1
        self.taken.add(name)
        return name

    def give(self, value: str) -> str:
        """A fresh name for a value."""
        self.of[value] = self.fresh(value)
        return self.of[value]

    def give_index(self, name: str) -> str:
        """A fresh name for an axis or size."""
        self.index[name] = self.fresh(name)
        return self.index[name]
