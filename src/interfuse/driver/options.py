"""Options of a compile. In: keyword arguments or torch.compile's options=. Out: one validated, frozen value."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from interfuse.base.errors import OptionError
from interfuse.base.knobs import Knobs, current

MODES: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "max-autotune": {"race_seconds": 120.0},
    "no-race": {"race": False},
}
"""torch.compile's mode= by name, as options."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "fuse": (bool,),
    "race": (bool,),
    "race_seconds": (int, float),
    "off": (str, tuple, list),
    "lock": (str,),
    "tiles": (bool,),
}


@dataclass(frozen=True)
class Options:
    """What a caller may choose. None leaves the knob of the same name (see base/knobs.py) in force.

    fuse          False keeps every call on the library path
    race          False trusts predictions and takes no times
    race_seconds  longest time that one compile may spend measuring, in seconds
    off           region names, or parts of them, that stay on the library path: a tuple, a list or comma-separated text
    lock          file of measured choices, which `interfuse tune --lock` wrote: its regions are not measured
    tiles         True lets f32 products on a CPU's tile registers (AMX) race the library's

    OptionError for an option that is not there and for a value that is not of its type.
    """

    fuse: bool | None = None
    race: bool | None = None
    race_seconds: float | None = None
    off: tuple[str, ...] | None = None
    lock: str | None = None
    tiles: bool | None = None

    def __new__(cls, *values: object, **named: object) -> Options:
        """A TypeError of Python's own would not say what there is."""
        check_names(named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, types in _TYPES.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
                wanted = " or ".join(t.__name__ for t in types)
                raise OptionError(f"option {name}={value!r} must be {wanted}.")
        if self.race_seconds is not None and not (self.race_seconds >= 0 and math.isfinite(self.race_seconds)):
            raise OptionError(f"option race_seconds={self.race_seconds!r} must be a number of seconds, 0 or more.")
        if self.off is not None:
            names = [self.off] if isinstance(self.off, str) else self.off
            if not all(isinstance(n, str) for n in names):
                raise OptionError(f"option off={self.off!r} must hold names of regions as text.")
            object.__setattr__(self, "off", parts(",".join(names)))

    def knobs(self) -> Knobs:
        """The environment's knobs with these options over them."""
        mine = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) is not None}
        if self.off is not None:
            mine["off"] = ",".join(self.off)
        return dataclasses.replace(current(), **mine)


def check_names(names: Iterable[str]) -> None:
    """OptionError for the first that is no option, with those that are spelled like it first."""
    for name in names:
        if name not in _TYPES:
            like = difflib.get_close_matches(str(name), _TYPES, n=len(_TYPES), cutoff=0.5)
            meant = f"{' or '.join(like)} may be meant; " if like else ""
            raise OptionError(f"there is no option {name!r}; {meant}the options are {', '.join(_TYPES)}.")


def parts(off: str) -> tuple[str, ...]:
    """The names in a comma-separated text."""
    return tuple(p.strip() for p in off.split(",") if p.strip())


def mapping(options: Mapping[str, object] | Options | None) -> Mapping[str, object]:
    """What options= gives, as a mapping without what is left open. OptionError where it is neither that nor Options."""
    if isinstance(options, Options):
        return {k: v for k, v in asdict(options).items() if v is not None}
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options= takes a mapping or interfuse.Options, not {type(options).__name__}.")
    return options or {}


def read(mode: str | None = None, options: Mapping[str, object] | Options | None = None) -> Options:
    """Options from torch.compile's mode= and options=. OptionError names what is not known or not of its type.

    Options that are given win over those of the mode.
    """
    if mode is not None and mode not in MODES:
        raise OptionError(f"there is no mode {mode!r} for the interfuse backend; the modes are {', '.join(MODES)}.")
    chosen = {**MODES[mode or "default"], **mapping(options)}
    return Options(**chosen)  # type: ignore[arg-type]
