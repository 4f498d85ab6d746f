"""The versions of a run that this process publishes."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass, field

from cairn import errors
from cairn.runs import Run
from cairn.torch._handle import Handle, failure

_UNDER_WAY = 2  # versions of a run that are under way at the same time


@dataclass
class Versions:
    """The versions of a run, as far as this process knows them."""

    complete: int | None = None  # the newest complete one, or -1. None: the process has not looked
    under_way: list[tuple[int, Handle]] = field(default_factory=list)

    def wait(self) -> None:
        """Waits until another version may be under way. An error of an older one stays in its handle."""
        self._settle()
        while len(self.under_way) >= _UNDER_WAY:
            concurrent.futures.wait([self.under_way[0][1]])
            self._settle()

    def _settle(self) -> None:
        """Notes which versions are complete by now. One that has failed does not count."""
        over = [(version, handle) for version, handle in self.under_way if handle.done()]
        self.under_way = [row for row in self.under_way if row not in over]
        for version, handle in over:
            error = failure(handle)
            if error is None:
                self.complete = max(version, -1 if self.complete is None else self.complete)
            elif isinstance(error, errors.ExistsError):
                self.complete = None  # another process publishes too

    def check(self, run: Run, version: int) -> None:
        """Raises ExistsError if the run has the version or a newer one. It looks at the run only if it must."""
        if self.complete is None:
            # Also versions on a line that was left are never replaced.
            self.complete = max((c.step for c in run.checkpoints() if c.complete and c.step is not None), default=-1)
        last, state = self.complete, ""
        if self.under_way and self.under_way[-1][0] > last:
            last, state = self.under_way[-1][0], ", which is under way"
        if version <= last:
            raise errors.ExistsError(f"{run.path} has version {last}{state}: publish version {last + 1} or a later one "
                                     f"instead of {version}", ("storage.exists",))
