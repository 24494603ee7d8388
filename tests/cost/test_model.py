"""Features and predictions. In: kernels that families make for a GPU. Out: counts worked by hand; slower is slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interfuse.cost.estimate import Estimate, in_turn
from interfuse.cost.features import TURNED, Features, features
from interfuse.cost.model import FITTED, ROW_LAUNCH, estimate, kernel_estimate, pack_estimate, predicted
from interfuse.device.table import TABLE, find
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.index import sym
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower import turned
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.schedule import Schedule
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work

H200 = find("H200")


def made(out: Node, *inputs: Node, target: Target = GPU, schedule: Schedule | None = None) -> Kernel:
    layouts = {n: contiguous(n.shape) for n in (out, *inputs)}
    return lower("k", Work((out,), frozenset(inputs), layouts), target, schedule=schedule)[0]


def doubled(rows: int, cols: int) -> Kernel:
    x = b.placeholder("x", F32, (rows, cols))
    return made(b.apply("add", x, x), x)


def softmax(rows: int, cols: int, target: Target = GPU) -> Kernel:
    x = b.placeholder("x", F32, (rows, cols))
    top = b.spread_over(b.reduce("max", x, (1,)), x, (1,))
    e = b.apply("exp", b.apply("sub", x, top))
    return made(b.apply("div", e, b.spread_over(b.reduce("sum", e, (1,)), x, (1,))), x, target=target)


def test_a_map() -> None:
    f = features(doubled(64, 4096), {})
    n = 64 * 4096
    assert (f.programs, f.lanes, f.warps) == (128, 2048, 8)
    assert (f.moved, f.read, f.through) == (8 * n, 4 * n, 8 * n)
    # 16 bytes a thread: a warp asks for 512 bytes at once.
    assert f.requests == 2 * 4 * n / 512
    assert (f.slots, f.exp, f.meets, f.again) == (3 * n, 0, 0, 0)


def test_a_row_that_is_held_and_one_that_is_not() -> None:
    n = 32 * 4096
    held = features(softmax(32, 4096), {})
    assert (held.programs, held.meets, held.again) == (32, 2, 0)
    assert (held.exp, held.div) == (n, n)
    streamed = features(softmax(32, 4096, replace(GPU, row_elements=64)), {})
    assert streamed.moved == held.moved and streamed.again == 4 * n and streamed.span == 4 * 4096


def test_rows_of_odd_width_ask_for_one_element_a_thread() -> None:
    even, odd = (features(softmax(64, cols), {}) for cols in (4096, 4095))
    assert odd.requests / even.requests == pytest.approx(4, rel=0.01)
    slow, fast = (kernel_estimate(softmax(8192, cols), H200).seconds for cols in (4095, 4096))
    assert slow > fast


def test_turns_of_a_loop_count_where_their_bytes_are_not_sent_ahead() -> None:
    small = replace(GPU, row_elements=64)
    even, odd = (softmax(8, cols, small) for cols in (1 << 16, (1 << 16) - 1))
    turns = 2 * ((1 << 16) // even.axis("col").block)
    early, late = replace(even, stages=4), replace(even, stages=2)
    assert (features(early, {}).turns, features(late, {}).turns) == (0, turns)
    assert features(replace(odd, stages=4), {}).turns == turns
    slow, fast = (predicted(replace(features(early, {}), turns=t), H200).seconds for t in (1000.0, 0.0))
    assert slow > fast + 1e-3


def test_a_tile_that_is_turned_costs_a_turn_a_step() -> None:
    x = b.placeholder("x", F32, (2048, 4096))
    scaled = b.apply("mul", x, b.spread_over(b.reduce("sum", x, (1,)), x, (1,)))
    across = made(b.apply("copy", b.permute(scaled, (1, 0))), x)
    along = made(scaled, x, target=replace(GPU, row_elements=0))
    assert features(replace(along, stages=3), {}).turns == 0
    turns = 4096 // across.axis("col").block
    assert features(replace(across, stages=3), {}).turns == TURNED * turns, "the loop that reads alone turns nothing"


def test_what_the_kernel_before_has_had_comes_from_the_cache() -> None:
    for rows, fits in ((1 << 11, True), (1 << 15, False)):
        kernel = doubled(rows, 1024)
        far, near = features(kernel, {}), features(kernel, {}, frozenset(("x",)))
        assert (far.near, near.near) == (0, near.read)
        cold, warm = (dict(predicted(f, H200).parts)["memory"] for f in (far, near))
        assert (warm < 0.9 * cold) == fits


@pytest.mark.parametrize(("pixels", "vector"), [(3136, 4), (3138, 2), (3137, 1)])
def test_rows_that_memory_has_in_pieces_are_asked_for_in_vectors_where_every_piece_is_whole(
    pixels: int, vector: int
) -> None:
    x = b.placeholder("x", F32, (4, 16, pixels))
    f = features(made(b.reduce("sum", x, (0, 2)), x, schedule=None, target=replace(GPU, row_elements=64)), {})
    reads = 4 * 4 * 16 * pixels / (32 * 4 * vector)
    assert f.requests == pytest.approx(reads, rel=0.05)


def test_reading_across_rows_asks_for_whole_sectors() -> None:
    x = b.placeholder("x", F32, (4096, 2048))
    turned = b.apply("copy", b.permute(x, (1, 0)))
    across = made(turned, x, schedule=Schedule((("row", 1), ("col", 2048))))
    assert features(across, {}).through == pytest.approx(4 * 4096 * 2048 * (8 + 1))
    assert features(made(turned, x), {}).through == pytest.approx(4 * 4096 * 2048 * 2)
    assert kernel_estimate(across, H200).seconds > 1.5 * kernel_estimate(doubled(4096, 2048), H200).seconds


def test_what_is_read_again_comes_from_memory_where_the_cache_has_lost_it() -> None:
    near = replace(features(softmax(4096, 4096, replace(GPU, row_elements=64)), {}), span=1e3)
    far = replace(near, span=1e6)
    parts = [dict(predicted(f, H200).parts)["memory"] for f in (replace(near, again=0), near, far)]
    assert parts[0] == parts[1] < parts[2]


def test_sizes_that_change_are_those_of_the_example() -> None:
    rows = sym("s0", 1, 1 << 20)
    x = b.placeholder("x", F32, (rows, 4096))
    kernel = made(b.apply("add", x, x), x)
    assert features(kernel, {"s0": 64}) == features(doubled(64, 4096), {})
    assert kernel_estimate(kernel, H200, {"s0": 1 << 16}).seconds > 10 * kernel_estimate(kernel, H200).seconds


@pytest.mark.parametrize("name", sorted(n for n, p in TABLE.items() if p.kind != "cpu"))
def test_predictions_are_sound(name: str) -> None:
    device = TABLE[name]
    one = kernel_estimate(softmax(8192, 4096), device)
    assert one.seconds >= 0.9 * one.floor > 0 and one.error == 0.6 and one.flops > 0
    assert {n for n, _ in one.parts} == {"launch", "memory", "cache", "arithmetic", "waiting"}
    assert all(seconds > 0 for _, seconds in one.parts)
    assert kernel_estimate(softmax(8192, 4096), replace(device, measured=True)).error == 0.4
    assert one.seconds < kernel_estimate(softmax(65536, 4096), device).seconds / 3
    # A kernel of one program leaves all other units idle.
    alone, many = softmax(1, 1 << 20, replace(GPU, row_elements=64)), softmax(256, 4096)
    assert kernel_estimate(alone, device).seconds > 3 * kernel_estimate(many, device).seconds


def test_a_pack_is_one_launch() -> None:
    kernels = [doubled(8, 128)] * 10
    together = pack_estimate(kernels, H200)
    assert dict(together.parts)["launch"] == H200.replay
    assert together.seconds < 10 * kernel_estimate(kernels[0], H200).seconds
    first = features(kernels[0], {})
    both = first + first
    assert (both.programs, both.moved, both.warps) == (2 * first.programs, 2 * first.moved, first.warps)


def test_a_pack_waits_for_its_table() -> None:
    one = kernel_estimate(doubled(8, 128), H200)
    assert pack_estimate([doubled(8, 128)], H200).seconds == pytest.approx(
        one.seconds + FITTED.table + ROW_LAUNCH * H200.gap
    )


def test_a_kernel_that_may_begin_while_the_one_before_it_ends_is_done_earlier() -> None:
    first = softmax(256, 4096)
    second = replace(first, follows=True)
    assert (features(first, {}).follows, features(second, {}).follows) == (0, 1)
    saved = {n: kernel_estimate(first, find(n)).seconds - kernel_estimate(second, find(n)).seconds for n in TABLE}
    able = {n for n, seconds in saved.items() if seconds == pytest.approx(FITTED.early)}
    assert able == {"H100", "H200", "B200"} and all(saved[n] == 0 for n in set(TABLE) - able)


def test_what_launches_nothing_saves_nothing_in_turn() -> None:
    one = Estimate(5e-6, parts=(("launch", 3e-6), ("memory", 2e-6)))
    nothing = Estimate(0.0, parts=(("launch", 0.0), ("memory", 0.0)))
    assert in_turn([one, nothing, nothing], 3e-6, 1e-6).seconds == pytest.approx(one.seconds)
    assert in_turn([one, nothing, one], 3e-6, 1e-6).seconds == pytest.approx(2 * one.seconds - 2e-6)


def test_in_turn_starts_each_after_a_gap() -> None:
    one = Estimate(5e-6, 0.2, (("launch", 3e-6), ("memory", 2e-6)), 4e-6, 10.0)
    assert in_turn([one]) is one
    two = in_turn([one, replace(one, error=0.4)], 3e-6, 1e-6)
    assert two.seconds == pytest.approx(8e-6) and two.floor == pytest.approx(6e-6) and two.flops == 20
    assert dict(two.parts) == pytest.approx({"launch": 4e-6, "memory": 4e-6}) and two.error == pytest.approx(0.3)
    assert in_turn([]).seconds == 0


def test_library_calls() -> None:
    bytes_, device = 1e9, H200
    one = estimate(bytes_, 0, 1, device)
    assert one.seconds == pytest.approx(one.floor) == pytest.approx(device.replay + device.seconds("copy", bytes_))
    slack = estimate(bytes_, 0, 1, device, slack=1.5)
    assert slack.seconds > 1.4 * one.seconds and slack.floor == pytest.approx(one.floor, rel=0.02)
    product = estimate(1e6, 1e12, 1, device, dtype="bf16", reached=0.5)
    assert product.seconds == pytest.approx(device.replay + 2e12 / device.flops_of("bf16"))
    assert product.floor == pytest.approx(device.replay + 1e12 / device.flops_of("bf16"))


def test_a_cpu_by_its_curve_or_its_caches() -> None:
    cpu = TABLE["CPU avx512"]
    kernel = made(b.apply("neg", x := b.placeholder("x", F32, (1 << 16,))), x, target=CPU)
    plain = kernel_estimate(kernel, cpu)
    assert {n for n, _ in plain.parts} == {"launch", "memory", "arithmetic"}
    known = replace(cpu, curves=(("copy", ((1e4, 1e9), (1e9, 1e9))),), measured=True)
    assert kernel_estimate(kernel, known).seconds == pytest.approx(cpu.launch + (8 << 16) / 1e9)


def test_features_are_numbers() -> None:
    assert all(isinstance(v, (int, float)) for v in vars(features(softmax(4, 64), {})).values())
    assert isinstance(features(softmax(4, 64), {}), Features)


def test_sectors_that_programs_far_apart_share_cross_memory_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def heads_last(rows: int) -> Features:
        x = b.placeholder("x", F32, (4, 16, rows, 576))
        whole = b.apply("sub", x, b.spread_over(b.reduce("sum", x, (3,)), x, (3,)))
        return features(made(b.apply("copy", b.permute(whole, (0, 2, 3, 1))), x), {})

    together = heads_last(576)
    monkeypatch.setattr(turned, "neighbouring_rows", lambda *_: None)
    apart, near = heads_last(576), heads_last(8)
    n = 4 * 16 * 576 * 576
    # Every element of the result lies in a sector of its own program's: eight programs, 576 apart, write each.
    assert (together.torn, apart.torn) == (0, 7 * 4 * n) and apart.reach == 7 * 576 * (4 + 32) * 576
    assert predicted(apart, H200).seconds > 2 * predicted(together, H200).seconds
    assert dict(predicted(near, H200).parts)["memory"] == dict(predicted(replace(near, torn=0), H200).parts)["memory"]
