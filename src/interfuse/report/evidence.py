"""Why a region takes as long as it does. In: a region, the account that it stands in. Out: lines and a table.

The ceiling is what one launch that moves the fewest bytes would take, at the bandwidth that the profile gives for that
size; the roofline's ridge is where operations begin to take longer than bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from interfuse.report.figures import figure, percent, plain_table
from interfuse.report.values import Account, Candidate, Region

KIB, MIB = 1 << 10, 1 << 20


def lines(region: Region, account: Account) -> Iterator[str]:
    """The ceiling, the place on the roofline and the prediction's parts of the candidate that runs, where known."""
    choice, model = region.choice, account.model
    if region.ceiling_us is not None:
        took = choice.median_us if choice.median_us is not None else choice.predicted_us
        how = "measured" if choice.median_us is not None else "predicted"
        share = "" if not took else f"; {how} {figure(took)} us, {percent(region.ceiling_us / took)} of that speed"
        source = "measured" if model.profiled else "the table's"
        yield f"ceiling: {figure(region.ceiling_us)} us to move the bytes once, at {source} bandwidth{share}"
    yield from _from_counters(region, account)
    if choice.flops is not None and choice.bytes and model.bandwidth and model.peak_flops:
        density, ridge = choice.flops / choice.bytes, model.peak_flops / model.bandwidth
        side = "memory-bound" if density < ridge else "compute-bound"
        yield f"roofline: {figure(density)} operations a byte, the ridge is at {figure(ridge)}: {side}"
    if choice.parts:
        times = ", ".join(f"{name} {figure(us)}" for name, us in choice.parts if us)
        yield f"predicted, us: {times}; {choice.bound} takes longest{_corrected(choice)}"
    missed = [] if region.busy else [c.label for c in region.candidates if c.missed]
    if missed:
        yield f"predictions beyond their error bars: {'; '.join(missed)}"


def _corrected(choice: Candidate) -> str:
    return "" if choice.factor == 1 else f"; in all x{choice.factor:.2f}, as races of this family have shown"


def _from_counters(region: Region, account: Account) -> Iterator[str]:
    """What hardware counters say of the candidate that runs: bytes beside counted ones, and the speed of these."""
    choice, moved = region.choice, region.choice.dram_bytes
    if moved is None:
        return
    sides = f"read {figure(choice.dram_read / MIB)}, wrote {figure(choice.dram_written / MIB)} MiB"  # type: ignore[operator]
    beside = f", {percent(moved / choice.bytes)} of the bytes counted" if choice.bytes else ""
    speed = ""
    if choice.median_us and choice.dram_us:
        rate, share = moved / choice.median_us / 1e3, percent(choice.dram_us / choice.median_us)
        speed = f"; at {figure(rate)} GB/s, {share} of the speed that these bytes allow"
    yield f"counters: {sides}{beside}{speed}"


def kernels(region: Region, account: Account) -> Table | None:
    """What the assembler says of the kernels that the chosen candidate launches; None where it launches none."""
    known = {k.name: k for k in account.kernels}
    found = [known[n] for n in region.choice.kernels if n in known and known[n].registers is not None]
    if not found:
        return None
    table = plain_table(
        ("kernel", "left"), *((h, "right") for h in ("registers", "spills", "shared KiB", "warps", "occupancy"))
    )
    for k in found:
        shared = "" if k.shared_bytes is None else figure(k.shared_bytes / KIB)
        warps = "" if k.warps is None else str(k.warps)
        table.add_row(Text(k.name), str(k.registers), str(k.spills), shared, warps, percent(k.occupancy))
    return table
