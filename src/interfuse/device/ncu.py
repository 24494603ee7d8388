"""Nsight Compute, which reads memory counters of NVIDIA GPUs. In: knobs. Out: where its command is."""

from __future__ import annotations

import shutil
from pathlib import Path

from interfuse.base.knobs import Knobs

USUAL_PLACE = Path("/usr/local/cuda/bin/ncu")
REMEDY = "install Nsight Compute, or name its ncu in INTERFUSE_NCU"


def find_ncu(knobs: Knobs) -> str | None:
    """The command that knob `ncu` names, on the path or where CUDA puts it; None where it is not there."""
    usual = str(USUAL_PLACE) if knobs.ncu == "ncu" and USUAL_PLACE.exists() else None
    return shutil.which(knobs.ncu) or usual
