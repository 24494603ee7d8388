"""Launching Triton kernels whose programs work in teams. In: the kernel's launcher. Out: a callable on its tensors.

All programs of a launch must be there at once, or those that are would wait for ever: the launch is a cooperative one,
of as many whole teams as the device holds by the kernel's own registers and shared memory. Teams meet through words in
device memory that belong to one launch at a time: a stream has some, and each launch that a CUDA graph holds has some
of its own, set aside before the capture, or made and set to 0 by the graph where none is left. They are 0 at first and
never reset.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from interfuse.base.errors import LaunchError
from interfuse.build.resources import Resources, teams_at_once
from interfuse.lower.vectors import VECTOR_BYTES
from interfuse.run.gpu import Launcher, profile_of

SPARE = 16
"""Launches that CUDA graphs may hold, before the kernel runs outside one again, without setting words to 0 themselves.
"""

INTERPRETED = 2
"""Teams of a launch under Triton's interpreter, which runs one program at a time."""

_CAPTURED: list[torch.Tensor] = []
"""The words of captured launches: a graph may outlive every program."""


class TeamLauncher:
    """One loaded kernel of teams. Calling it launches on the current stream of the tensors' device and does not wait.

    Any number of threads may call it.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher, self.source, self.kernel = launcher, launcher.source, launcher.kernel
        self._lock = threading.Lock()
        self._teams: dict[tuple[torch.device, tuple[bool, ...]], int] = {}
        self._spare: dict[torch.device, list[torch.Tensor]] = {}
        self._of_stream: dict[tuple[torch.device, int], torch.Tensor] = {}

    @property
    def resources(self) -> Resources | None:
        """What the kernel takes of a GPU, once it has run."""
        return self._launcher.resources

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Launch on the parameters' tensors in order. LaunchError where Triton cannot compile or launch the kernel,
        or where the device does not hold a team: no output has been touched then.
        """
        device, team, grid = tensors[0].device, self.source.team, self.source.grid
        assert isinstance(grid, int)  # rows that change are not shared
        words = self._words(device)
        teams = self._held(tensors, words, device) if device.type == "cuda" else INTERPRETED
        rounds = -(-grid // (teams * team))
        # As few teams as take the rows in so many rounds: the others would only be in their way.
        self._launcher.launch(-(-grid // (rounds * team)) * team, (*tensors, words, *sizes), {}, device)

    def _held(self, tensors: Sequence[torch.Tensor], words: torch.Tensor, device: torch.device) -> int:
        """How many teams the device holds at once. Triton compiles apart for tensors that begin with no vector."""
        key = device, tuple(t.data_ptr() % VECTOR_BYTES == 0 for t in tensors)
        found = self._teams.get(key)
        if found is None:
            resources = self._launcher.compiled((*tensors, words), device)
            found = teams_at_once(resources, profile_of(device.index or 0), self.source.team)
            if found < 1:
                name = self.source.entry
                raise LaunchError(
                    f"{name} needs {self.source.team} programs at once; the region runs the library path."
                )
            self._teams[key] = found
        return found

    def _words(self, device: torch.device) -> torch.Tensor:
        """The words of this launch."""
        if device.type != "cuda":
            return self._of_stream.setdefault((device, 0), self._zeros(1, device)[0])
        with torch.cuda.device(device):
            capturing, stream = torch.cuda.is_current_stream_capturing(), torch.cuda.current_stream().cuda_stream
            known = None if capturing else self._of_stream.get((device, stream))
            if known is not None:
                return known
            with self._lock:
                spare = self._spare.setdefault(device, [])
                if not capturing and 2 * len(spare) <= SPARE:
                    spare += self._zeros(SPARE - len(spare) + 1, device)
                    torch.cuda.current_stream().synchronize()  # whatever stream takes them finds them 0
                if not spare:
                    return self._zeros(1, device)[0]
                found = spare.pop()
                if capturing:
                    _CAPTURED.append(found)
                else:
                    self._of_stream[device, stream] = found
        return found

    def _zeros(self, count: int, device: torch.device) -> list[torch.Tensor]:
        """Words for so many launches, of every team that there can be."""
        grid, team, words = self.source.grid, self.source.team, self.source.words
        assert isinstance(grid, int)
        teams = grid // team
        if device.type == "cuda":
            profile = profile_of(device.index or 0)
            teams = min(teams, profile.units * profile.threads // (32 * self.source.warps) // team)
        even = -(-max(teams, 1) * words // 2) * 2  # all begin with a whole vector
        return list(torch.zeros(count, even, dtype=torch.int64, device=device).unbind())
