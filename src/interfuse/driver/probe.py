"""Measuring the devices of this machine. In: nothing. Out: their profiles, measured and kept."""

from __future__ import annotations

from interfuse.base.knobs import current
from interfuse.device.profile import DeviceProfile
from interfuse.driver.compiler import Watcher, about
from interfuse.driver.device import measure, names_here


def probe(watch: Watcher | None = None) -> dict[str, DeviceProfile]:
    """Measure each device that PyTorch sees here, a few seconds each, and keep what is found for later compiles.

    Out: a profile for each PyTorch name. DeviceError where one cannot be measured.
    """
    found = {}
    for name in names_here():
        found[name] = measure(name, current(), about(name, watch)).profile
    return found
