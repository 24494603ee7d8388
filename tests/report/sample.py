"""Records as a compile and its races would write them. In: nothing. Out: records for tests; all figures invented."""

from __future__ import annotations

from interfuse.base.record import Record

MIB = 2**20


def candidate(label: str, family: str, launches: int, mib: float, predicted: float) -> dict[str, object]:
    return {
        "label": label,
        "family": family,
        "launches": launches,
        "bytes": int(mib * MIB),
        "predicted_us": predicted,
        "error_bar": 0.3,
        "parts": [["launch", 5.0], ["memory", predicted - 5.0], ["arithmetic", 0.0]],
        "ceiling_us": predicted * 0.9,
        "flops": 2.0 * mib * MIB,
        "kernels": ["add_layer_norm"] if family == "row" else [],
    }


def add_region(
    record: Record,
    index: int,
    name: str,
    targets: list[str],
    before: tuple[int, float],
    candidates: list[dict[str, object]],
    chosen: int,
    reason: str,
    opaque: str = "",
) -> str:
    subject = f"{index}:{name}"
    record.add(
        "region",
        subject,
        name=name,
        calls=list(range(index, index + len(targets))),
        targets=targets,
        sources=["block.py:41", "block.py:42"][: len(targets)],
        before_launches=before[0],
        before_bytes=int(before[1] * MIB),
        candidates=candidates,
        chosen=chosen,
        reason=reason,
        rejected=[{"with": "linear", "reason": "a matrix product runs through the library"}],
    )
    for k, target in enumerate(targets):
        record.add(
            "call",
            str(index + k),
            target=target,
            launches=1,
            bytes=int(before[1] * MIB) // len(targets),
            view=False,
            opaque=bool(opaque),
            reason=opaque,
            source=f"block.py:{41 + k}",
        )
    return subject


def compiled() -> Record:
    """Two equal norms that share a race, a linear that stayed, a product that nothing else can run, what is unfused."""
    record = Record()
    record.add(
        "model",
        "sample",
        device="cpu",
        device_name="a CPU, 2 cores",
        dtype="f32",
        torch="2.13.0",
        batch="8 x 128",
        plan="a41f",
        bandwidth=1e11,
        peak_flops=1e12,
    )
    norm = [candidate("library", "library", 2, 7.5, 610.0), candidate("fused: row, resident", "row", 1, 4.5, 210.0)]
    for index in (0, 2):
        add_region(
            record,
            index,
            "add + layer_norm",
            ["aten.add.Tensor", "aten.layer_norm.default"],
            (2, 7.5),
            norm,
            1,
            "predicted 2.9x",
        )
    linear = [candidate("library", "library", 2, 18.0, 4000.0), candidate("onednn gelu", "provider", 1, 9.0, 3900.0)]
    add_region(
        record, 4, "linear + gelu", ["aten.addmm.default", "aten.gelu.default"], (2, 18.0), linear, 1, "predicted"
    )
    add_region(
        record,
        6,
        "matmul[b]",
        ["aten.bmm.default"],
        (1, 6.0),
        [candidate("library", "library", 1, 6.0, 2000.0)],
        0,
        "no other way to run it",
    )
    record.add(
        "race",
        "0:add + layer_norm",
        chosen="fused: row, resident",
        reason="2.77x faster",
        times={
            "library": {"median_us": 610.0, "low_us": 600.0, "high_us": 630.0},
            "fused: row, resident": {"median_us": 220.0, "low_us": 218.0, "high_us": 225.0},
        },
        errors={"library": {"rms": 2.0e-7, "share": 0.6}, "fused: row, resident": {"rms": 1.5e-7, "share": 0.45}},
    )
    record.add(
        "race",
        "4:linear + gelu",
        chosen="library",
        reason="the library is 9 % faster",
        times={
            "library": {"median_us": 4110.0, "low_us": 4100.0, "high_us": 4120.0},
            "onednn gelu": {"median_us": 4480.0, "low_us": 4400.0, "high_us": 4500.0},
        },
        errors={},
    )
    add_region(
        record,
        10,
        "nonzero",
        ["aten.nonzero.default"],
        (1, 1.0),
        [candidate("library", "library", 1, 1.0, 10.0)],
        0,
        *["its result's size depends on data"] * 2,
    )
    for index in (7, 8, 9):
        record.add(
            "call",
            str(index),
            target="aten.view.default",
            launches=0,
            bytes=0,
            view=True,
            opaque=False,
            reason="",
            source="",
        )
    record.add(
        "kernel",
        "add_layer_norm",
        family="row",
        source_path="k.cpp",
        key="ab12",
        cached=False,
        build_seconds=0.05,
        registers=40,
        spills=0,
        shared_bytes=512,
        warps=8,
        occupancy=0.75,
    )
    record.add("stage", "capture", seconds=1.5)
    record.add("stage", "capture", seconds=0.5)
    return record


def measured() -> Record:
    """What explain adds: the contenders, interleaved."""
    record = Record()
    record.add(
        "measure",
        "inductor",
        median_ms=80.0,
        low_ms=79.0,
        high_ms=81.5,
        runs=50,
        launches=None,
        peak_bytes=None,
        error_rms=2.0e-7,
    )
    record.add(
        "measure",
        "interfuse",
        median_ms=61.8,
        low_ms=61.5,
        high_ms=62.6,
        runs=50,
        launches=6,
        peak_bytes=71 * MIB,
        error_rms=1.6e-7,
    )
    record.add(
        "measure",
        "eager",
        median_ms=132.4,
        low_ms=131.0,
        high_ms=133.9,
        runs=50,
        launches=8,
        peak_bytes=96 * MIB,
        error_rms=2.1e-7,
    )
    return record
