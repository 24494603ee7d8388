"""What the command line's TARGET names. In: package.module:function, file.py:function or file.pt2. Out: a Case.

The function takes no arguments and returns (model, inputs) or (model, inputs, kwargs), inputs a tuple or one tensor.
A .pt2 file is what torch.export.save wrote, with the example inputs that it was exported with.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from interfuse.base.errors import ModelError, OptionError, said
from interfuse.base.keys import short

FORMS = "package.module:function, path/file.py:function or path/file.pt2"


@dataclass(frozen=True)
class Case:
    """A model to call as model(*inputs, **kwargs), what it is called, and the kind of device that it lies on."""

    name: str
    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    device: str


def load(target: str) -> Case:
    """The model and inputs that `target` names.

    OptionError where it names nothing usable, ModelError where the user's code raises. Modules are also looked for in
    the working directory, as `python -m` does.
    """
    if target.endswith(".pt2"):
        return _exported(Path(target))
    place, colon, name = target.rpartition(":")
    if not (place and colon and name):
        raise OptionError(f"{target!r} names no model: write {FORMS}.")
    module = _from_file(Path(place)) if place.endswith(".py") else _imported(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{place} has no function {name}: check the name after the colon.")
    try:
        made = function()
    except (Exception, SystemExit) as error:  # the user's code: anything may come out of it
        raise ModelError(f"{target} raised {said(error)}; call it from Python to see where.") from error
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])):
        raise OptionError(f"{name} must return (model, inputs) or (model, inputs, kwargs), with a model to call.")
    model, inputs, *rest = made
    if rest and not isinstance(rest[0], Mapping):
        raise OptionError(f"{name} must return keyword arguments as a dictionary, not {type(rest[0]).__name__}.")
    return _case(target, model, inputs if isinstance(inputs, (tuple, list)) else (inputs,), rest[0] if rest else {})


def _case(name: str, model: Callable[..., Any], inputs: Any, kwargs: Mapping[str, Any]) -> Case:
    given = tree_leaves((tuple(inputs), dict(kwargs)))
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    if isinstance(model, torch.nn.Module):
        tensors += model.parameters()
    device = next((t.device.type for t in tensors if t.device.type != "cpu"), "cpu")
    return Case(name, model, tuple(inputs), dict(kwargs), device)


def _imported(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if Path(name).is_file():
            raise OptionError(f"{name} is no .py file: write {FORMS}.") from error
        raise OptionError(
            f"{name} cannot be imported ({error}): run from the folder that holds it, or install it."
        ) from error
    except (Exception, SystemExit) as error:  # the module's own code, run by the import
        raise ModelError(f"importing {name} raised {said(error)}; import it from Python to see where.") from error


def _from_file(path: Path) -> ModuleType:
    _check_file(path, "check the path before the colon")
    name = f"{path.stem}_{short(path.resolve())}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module  # as an import does, for code that looks its own module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ModelError(f"running {path} raised {said(error)}; run it with Python to see where.") from error
    return module


def _check_file(path: Path, remedy: str) -> None:
    if path.is_dir():
        raise OptionError(f"{path} is a folder: {remedy}.")
    if not path.is_file():
        raise OptionError(f"there is no file {path}: {remedy}.")


def _exported(path: Path) -> Case:
    _check_file(path, "check the path")
    log = logging.getLogger("torch.export")
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)  # what goes wrong is said once, by us
        program = torch.export.load(str(path))
        example, model = program.example_inputs, program.module()
    except Exception as error:  # whatever is wrong with the file, PyTorch reports it in many ways
        raise OptionError(
            f"{path} is not a program that this PyTorch can load ({said(error)}): "
            "write it again with torch.export.save."
        ) from error
    finally:
        log.setLevel(level)
    if example is None:
        raise OptionError(f"{path} holds no example inputs: export it with them, or write {FORMS}.")
    inputs, kwargs = example
    return _case(path.name, model, inputs, kwargs)
