"""Signals that announce the end of a job: all ranks save at the same step."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from cairn import errors
from cairn.reports import SaveReport
from cairn.torch._handle import Handle, Outcome, unseen
from cairn.torch._job import distributed
from cairn.torch._save import async_save

_LAST_WORD = 2.0  # seconds before the deadline: after it, the process may be killed at any time
_log = logging.getLogger("cairn")


def on_signal(signals: int | Iterable[int] = signal.SIGTERM, *, grace: float | None = None, every: int = 1,
              group: Any = None) -> Preemption:
    """Notes signals that announce the end of the job, so that all ranks save at the same step.

    >>> preempt = cairn.torch.on_signal([signal.SIGTERM, signal.SIGUSR1], grace=90)
    >>> for step in range(1000):
    ...     if step == 7:
    ...         os.kill(os.getpid(), signal.SIGUSR1)         # as Slurm does
    ...     if preempt.requested():                          # the same answer on all ranks
    ...         report = preempt.save({"step": step}, f"run/step-{step}", step=step)
    ...         break
    >>> report.step
    7
    >>> preempt.close()

    signals is a signal or several. grace is the number of seconds from the first signal to the end of the job, as the
    scheduler has it; the log compares with it. Each rank calls it, in its main thread. :class:`Preemption` describes
    the rest.

    With every=10, ranks agree in each tenth call of ``requested``. group is a process group of all ranks whose
    collectives take tensors in host memory; by default the first call of ``requested`` makes one, with gloo.

    While it is not closed, the signals do not end the process. A Python function that handled a signal before is
    called for the first signal, after it was noted, and not for later ones. If it raises an error, such as
    SystemExit, the training ends before the save.
    """
    return Preemption([signals] if isinstance(signals, int) else list(signals), grace, every, group)


class Preemption:
    """Signals that announce the end of a job. :func:`on_signal` makes it.

    >>> with cairn.torch.on_signal(signal.SIGUSR1) as preempt:
    ...     before = preempt.requested()
    ...     os.kill(os.getpid(), signal.SIGUSR1)
    ...     before, preempt.requested(), preempt.left()
    (False, True, None)

    It is a context manager: its end, and ``close``, restore the handlers that were there before.
    """

    def __init__(self, signals: list[int], grace: float | None, every: int, group: Any) -> None:
        if not signals or every < 1 or (grace is not None and not 0 <= grace < math.inf):
            raise errors.OptionsError(f"signals are {signals}, every is {every}, grace is {grace}; want a signal, 1 or "
                                      "more calls, and 0 or more seconds or None", ("storage.options",))
        if threading.current_thread() is not threading.main_thread():
            raise errors.OptionsError("on_signal was called by another thread than the main thread of the process, "
                                      "which alone can handle signals", ("storage.options",))
        self._grace, self._every, self._group = grace, every, group
        self._own = False  # the group was made here
        self._noted: tuple[float, int] | None = None  # when, and which: the first signal of this rank
        self._agreed: tuple[float, int, int] | None = None  # the first of all ranks: when, which, and the rank
        self._calls = 0
        self._warned = False
        self._previous: dict[int, Any] = {}
        try:
            for number in signals:
                if number not in self._previous:
                    self._previous[number] = signal.signal(number, self._note)
        except (OSError, ValueError, TypeError) as e:
            self.close()
            raise errors.OptionsError(f"signal {number!r} cannot be handled: {e}", ("storage.options",)) from e
        _open.add(self)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal. It logs nothing: the main thread may be in the middle of a log record."""
        if self._noted is not None:
            return
        self._noted = time.time(), number
        previous = self._previous.get(number)
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    def requested(self) -> bool:
        """Reports whether any rank has received a signal, with the same answer on all ranks.

        All ranks call it, after each step: it is the point at which they save. It costs an all-reduce of one number
        between the hosts, and waits for the slowest rank. After it has returned True, it costs nothing.
        """
        if self._agreed is not None:
            return True
        self._calls += 1
        if self._calls % self._every:
            return False
        when, number = self._noted or (math.inf, 0)
        if distributed():
            rank = dist.get_rank()
            first = self._least(when, torch.float64)
            if first < math.inf:
                which = self._least(rank * 256 + number if when == first else 1 << 62, torch.int64)
                self._agreed = first, int(which) % 256, int(which) // 256
        elif when < math.inf:
            self._agreed = when, number, 0
        if self._agreed is None:
            return False
        first, number, rank = self._agreed
        left = "" if self._grace is None else f", {self.left():.1f} s before the deadline"
        self._say(logging.WARNING, f"{_name(number)} reached rank {rank} {time.time() - first:.1f} s ago: the job "
                                   f"is about to end. All ranks stop at this step{left}")
        return True

    def _least(self, value: float, dtype: torch.dtype) -> float:
        """Returns the least of the values of all ranks."""
        if self._group is None:
            if not dist.is_gloo_available():
                raise errors.OptionsError("this PyTorch has no gloo: on_signal needs group=, a process group whose "
                                          "collectives take tensors in host memory", ("storage.options",))
            try:
                self._group, self._own = dist.new_group(backend="gloo"), True
            except RuntimeError as e:
                raise errors.GoneError(f"on_signal cannot connect the ranks with gloo: {e}. GLOO_SOCKET_IFNAME names "
                                       "the network interface, and group= another process group",
                                       ("group.ErrGone",)) from e
        t = torch.tensor([value], dtype=dtype)
        try:
            dist.all_reduce(t, dist.ReduceOp.MIN, group=self._group)
        except RuntimeError as e:
            raise errors.GoneError(f"the ranks cannot agree whether a signal came: {e}", ("group.ErrGone",)) from e
        return t.item()

    def left(self) -> float | None:
        """Returns the seconds until the deadline, negative after it. None: no signal was agreed on, or no grace set."""
        if self._agreed is None or self._grace is None:
            return None
        return self._agreed[0] + self._grace - time.time()

    def save(self, state: Mapping[Any, Any], path: Any, **options: Any) -> SaveReport:
        """Saves a state and waits until the checkpoint is complete, at remote too if that is set. All ranks call it.

        path and the options are the arguments of :func:`async_save`. When the state is staged, the saver processes
        complete the save even if this process is killed at the end of the grace period. Further signals change
        nothing. Rank 0 logs (logger "cairn") when the state is staged, and whether the checkpoint was complete before
        the deadline, or that it is not when the deadline is near.
        """
        self._report_unseen()
        try:
            handle = async_save(state, path, **options)
            self._wait(handle, handle.staged, "staged")
            self._say(logging.WARNING, f"the state for {handle.path} was staged {self._after()}: when all ranks have "
                                       "staged it, the saver processes complete the save even if the ranks are killed")
            report: SaveReport = self._wait(handle, handle, "complete")
            self._wait(handle, handle.uploaded, "uploaded")
        except BaseException as e:  # Ctrl-C too: the log says why there is no checkpoint
            self._say(logging.ERROR, f"the save to {path} has failed, {self._after()}: {e!r}")
            raise
        left = self.left()
        how = "" if left is None else f", {left:.1f} s before the deadline" if left >= 0 \
            else f", {-left:.1f} s after the deadline"
        self._say(logging.ERROR if left is not None and left < 0 else logging.WARNING,
                  f"the save to {handle.path} was complete {self._after()}{how}")
        return report

    @staticmethod
    def _report_unseen() -> None:
        """Warns of earlier saves that have failed. If a filter makes that an error, this save takes place anyway."""
        while True:
            try:
                return unseen.report()
            except errors.SaveWarning as w:
                _log.error("%s", w)

    def _wait(self, handle: Handle, future: Outcome[Any], what: str) -> Any:
        """Waits for an outcome of a save. Shortly before the deadline it logs that the save is not over."""
        left = self.left()
        if left is not None and self._grace is not None and not self._warned:
            try:
                return future.result(max(0, left - min(_LAST_WORD, self._grace / 10)))
            except TimeoutError:
                if future.done():  # it is the error of the save
                    raise
            self._warned = True
            moved, planned = handle.progress()
            self._say(logging.ERROR, f"the save to {handle.path} is not {what}, {self._after()}, {self.left():.1f} s "
                                     f"before the deadline: rank 0 has written {moved} of {planned} bytes")
        return future.result()

    def _after(self) -> str:
        if self._agreed is None:
            return "without a signal"
        when, number, _ = self._agreed
        return f"{time.time() - when:.1f} s after {_name(number)}"

    def _say(self, level: int, text: str) -> None:
        if not distributed() or dist.get_rank() == 0:
            _log.log(level, "%s", text)

    def close(self) -> None:
        """Restores the handlers that were there before, except where another one has been set meanwhile."""
        _open.discard(self)
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous = {}
        if self._own and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group, self._own = None, False

    def __enter__(self) -> Preemption:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        """Called in a child after a fork: signals are for the parent, which ends the child.

        A worker of a data loader must not die of a signal by which a scheduler announces the end. SIGTERM ends it as
        before: that is how its parent ends it.
        """
        self._own, announcing = False, (signal.SIGUSR1, signal.SIGUSR2)
        for number, previous in self._previous.items():
            if number in announcing and previous == signal.SIG_DFL:
                self._previous[number] = signal.SIG_IGN
        self.close()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_open: weakref.WeakSet[Preemption] = weakref.WeakSet()


def _after_fork() -> None:
    for p in list(_open):
        p._forget()


os.register_at_fork(after_in_child=_after_fork)
