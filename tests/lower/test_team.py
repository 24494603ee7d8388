"""Rows shared by teams. In: regions of long rows. Out: kernels that read each element once and meet once, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interfuse.ir.dtypes import F16, F32
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.canonical import canonical
from interfuse.lower.domain import Domain
from interfuse.lower.families import lower
from interfuse.lower.kernel import MATE, Kernel, Load, Meet, Reduce, Role, walk
from interfuse.lower.printer import show
from interfuse.lower.schedule import Schedule, schedule_of
from interfuse.lower.target import CPU, GPU
from interfuse.lower.team import mates_of, team
from interfuse.lower.work import Work
from tests import online, parts, teams


def _kernel(region: online.Region, target=GPU) -> Kernel:  # type: ignore[no-untyped-def]
    work = teams.work(*region, target)
    assert work is not None
    return lower("k", work, target)[0]


@pytest.mark.parametrize("region", (online.softmax, online.moments))
def test_a_row_is_read_once_and_the_team_meets_once(region) -> None:  # type: ignore[no-untyped-def]
    kernel = _kernel(region(F16, (16, 262144), 1))
    axes = {a.name: a for a in kernel.axes}
    assert kernel.family == "row, in teams" and kernel.team == axes[MATE].extent
    assert axes["row"].extent == 16 and axes[MATE].role is Role.TEAM
    assert kernel.team * axes["col"].extent == 262144 and axes["col"].role is Role.TILE
    body = walk(kernel.body)
    assert sum(isinstance(s, Load) for s in body) == 1
    meets = [k for k, s in enumerate(body) if isinstance(s, Meet)]
    assert len(meets) == 2 and meets[1] == meets[0] + 1, "what two reductions give goes together"
    assert all(s.arg.axes and MATE not in s.out.axes for s in body if isinstance(s, Meet))


def test_what_is_the_same_in_a_share_is_one_number() -> None:
    """A group of channels: a channel's weight is one for each program."""
    kernel = _kernel(online.softmax(F32, (4, 65536), 1))
    assert "of every program of the team" in show(kernel) and canonical(kernel) == canonical(replace(kernel, name="o"))


@pytest.mark.parametrize(
    ("cols", "count"), ((GPU.row_elements, 0), (65536, 8), (131072, 16), (262144, 32), (262147, 0), (1 << 20, 0))
)
def test_how_many_programs_share_a_row(cols: int, count: int) -> None:
    assert mates_of(Domain(4096, cols, True), 2, GPU) == count


def test_a_program_holds_less_where_it_reads_more_and_more_where_rows_are_few() -> None:
    long = Domain(4096, 131072, True)
    assert (mates_of(long, 2, GPU), mates_of(long, 4, GPU), mates_of(replace(long, rows=16), 2, GPU)) == (16, 32, 8)


def test_teams_that_take_many_rows_in_turn_have_few_warps_and_the_next_row_on_its_way() -> None:
    for rows, cols, warps, stages in ((4096, 131072, 4, 2), (128, 131072, 4, 1), (8, 262144, 8, 1)):
        kernel = _kernel(online.softmax(F16, (rows, cols), 1))
        assert (kernel.warps, kernel.stages) == (warps, stages)


def test_what_is_not_shared() -> None:
    assert teams.work(*online.logsumexp(F32, (5, 512), 1)) is None, "nothing is written but what rows reduce to"
    assert teams.work(*parts.norms(F32, (5, 512), 1)) is None, "a row is reduced again by what it was reduced to"
    assert teams.work(*parts.every(F32, (5, 512), 1)) is None
    assert teams.work(*online.softmax(F32, (512, 5), 0)) is None, "columns"
    inputs, outputs = online.softmax(F32, (5, 512), 1)
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    assert team(Work(tuple(outputs), frozenset(inputs), layouts), CPU) is None


def test_a_schedule_keeps_the_team() -> None:
    region = online.softmax(F32, (5, 512), 1)
    work = teams.work(*region)
    assert work is not None
    kernel, _ = lower("k", work, teams.SMALL)
    again, _ = lower("k", work, teams.SMALL, schedule=replace(schedule_of(kernel, "triton"), warps=8))
    assert again.warps == 8 and again.axes == kernel.axes and again.body == kernel.body
    assert again.reduction_order != kernel.reduction_order
    assert Schedule.from_json(schedule_of(kernel, "triton").to_json()) == schedule_of(kernel, "triton")


def test_bits_repeat_under_a_key_that_knows_the_team() -> None:
    keys = {_kernel(online.softmax(F32, (4, n), 1)).reduction_order for n in (65536, 131072)}
    assert len(keys) == 2


def test_values_in_several_rounds_name_their_nodes() -> None:
    node: Node = online.softmax(F32, (5, 512), 1)[1][0]
    work = teams.work([*online.softmax(F32, (5, 512), 1)[0]], [node])
    assert work is not None and all(isinstance(n, Node) for n, _ in work.met)
    assert sum(isinstance(s, Reduce) for s in walk(lower("k", work, teams.SMALL)[0].body)) == 4
