"""The catalogue of errors. In: nothing. Out: one exception class for each thing that can go wrong, each saying what to
do.

Every class derives from InterfuseError, so a caller can catch the whole catalogue at once. A message is one sentence
that names what failed and ends with what the user can do about it.
"""

from __future__ import annotations


class InterfuseError(Exception):
    """Base of every error that Interfuse raises on purpose."""


class OptionError(InterfuseError):
    """An option, knob or argument has a value that means nothing; the message lists what is allowed."""


class GraphError(InterfuseError):
    """A graph breaks a rule of the tensor IR (types, shapes, order); a bug in a pass or in a hand-written graph."""


class ParseError(InterfuseError):
    """Text is not a graph in the printed form; the message names the line."""


class ModelError(InterfuseError):
    """The user's own code failed while a model was made, read or run; the message says where to look."""


class UnsupportedError(InterfuseError):
    """Something has no lowering here; callers catch it, record the reason and take the library path."""


class CompilerMissingError(InterfuseError):
    """No C++ compiler (or no Triton) can be found; the message says what to install or which knob names one."""


class BuildError(InterfuseError):
    """A generated kernel did not compile; the message carries the compiler's own first lines."""


class CacheError(InterfuseError):
    """The cache folder cannot be used or an entry does not match its hash; the entry is dropped and built again."""


class DeviceError(InterfuseError):
    """A device was asked for that is absent or unknown; the message lists the ones that are known."""


class LaunchError(InterfuseError):
    """A kernel could not be launched; the region runs the library path instead."""


class CounterError(InterfuseError):
    """Hardware counters cannot be read here; the ledger says so, and its bytes stay counted ones."""


class DataError(InterfuseError):
    """A kernel met an index outside what it picks from; the region's captured calls run on its inputs and report it."""


def said(error: BaseException) -> str:
    """An error as part of a sentence: its class and its first line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.')}" if text else type(error).__name__
