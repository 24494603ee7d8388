"""Measuring the devices of this machine. In: nothing. Out: their profiles, measured and kept."""

from __future__ import annotations

from functools import partial

from interfuse.base.knobs import current
from interfuse.device.profile import DeviceProfile
from interfuse.driver.compiler import Watcher
from interfuse.driver.device import measure, names_here


def probe(watch: Watcher | None = None) -> dict[str, DeviceProfile]:
    """Measure each device that PyTorch sees here, a few seconds each, and keep what is found for later compiles.

    Out: a profile for each PyTorch name. DeviceError where one cannot be measured.
    """
    found = {}
    for name in names_here():
        told = None if watch is None else partial(_tell, watch, name)
        found[name] = measure(name, current(), told).profile
    return found


def _tell(watch: Watcher, name: str, what: str, done: int, total: int) -> None:
    watch(f"{name}: {what}", done, total)
