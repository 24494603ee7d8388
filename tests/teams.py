"""Kernels whose programs work in teams, under Triton's interpreter. In: a region and a target. Out: the work for teams,
and launches whose programs take turns.

The interpreter runs one program after the other, and would wait for ever in the first meeting. `taking_turns` gives
every program of a launch a thread; one of them runs at a time, until it reads what others may write (a volatile load).
"""

from __future__ import annotations

import contextlib
import inspect
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.target import GPU, Target
from interfuse.lower.team import team
from interfuse.lower.work import Work

SMALL: Target = replace(GPU, row_elements=128, share=256, programs=1)
"""A GPU whose programs hold little, so that short rows are shared."""

ROUNDS = 200
"""Turns of each program after which a meeting counts as one that nobody ends."""


def work(inputs: list[Node], outputs: list[Node], target: Target = SMALL) -> Work | None:
    """The region's work for teams; None where it has none."""
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return team(Work(tuple(outputs), frozenset(inputs), layouts), target)


class _Program:
    """One program in a thread of its own."""

    def __init__(self, index: tuple[int, ...], run: Any) -> None:
        self.index, self.error, self.done = index, None, False
        self.turn, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self.thread.start()

    def _run(self, run: Any) -> None:
        self.turn.acquire()
        try:
            run()
        except BaseException as error:  # told by the thread that waits
            self.error = error
        self.done = True
        self.over.release()

    def go_on(self) -> None:
        """Run until the program hands over or ends."""
        self.turn.release()
        self.over.acquire()
        if self.error is not None:
            raise self.error


class _Programs:
    """Stands for the kernel's function: notes each program, and runs all of them when the last one is there."""

    def __init__(self, function: Any, builder: Any, seed: int) -> None:
        self._function, self._builder, self._random = function, builder, random.Random(seed)
        self.__signature__, self.__globals__ = inspect.signature(function), function.__globals__
        self.__name__, self._noted = function.__name__, []
        self.running: _Program | None = None

    def __call__(self, **arguments: Any) -> None:
        self._noted.append((self._builder.grid_idx, arguments))
        if self._builder.grid_idx == tuple(n - 1 for n in self._builder.grid_dim):
            self._run()

    def _run(self) -> None:
        plain = self._builder.create_masked_load

        def load(*arguments: Any) -> Any:
            if arguments[-1]:  # volatile: somebody else may have written there by the next turn
                me = self.running
                me.over.release()
                me.turn.acquire()
            return plain(*arguments)

        self._builder.create_masked_load = load
        left = [_Program(index, lambda a=a: self._function(**a)) for index, a in self._noted]
        try:
            for _ in range(ROUNDS):
                self._random.shuffle(left)
                for program in left:
                    self.running = program
                    self._builder.grid_idx = program.index
                    program.go_on()
                left = [p for p in left if not p.done]
                if not left:
                    return
            raise AssertionError(f"{len(left)} programs wait for a meeting that nobody ends")
        finally:
            del self._builder.create_masked_load
            self._noted = []


@contextlib.contextmanager
def taking_turns(seed: int = 0) -> Iterator[None]:
    """Within it, the programs of interpreted launches take turns, in an order that `seed` tells."""
    from triton.runtime import interpreter

    plain = interpreter.GridExecutor

    class Executor(plain):  # type: ignore[misc, valid-type]
        def __init__(self, function: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(function, *arguments, **options)
            self.fn = _Programs(function, interpreter.interpreter_builder, seed)

    interpreter.GridExecutor = Executor
    try:
        yield
    finally:
        interpreter.GridExecutor = plain
