"""A future answer of the saver process."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from cairn._messages import Body

T = TypeVar("T")


class Reply(Generic[T]):
    """A future answer: a report or the body of a message. ``on`` is called for messages before it."""

    def __init__(self, on: Callable[[str, Body], None] | None = None):
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._settled = False
        self._calls: list[Callable[[], object]] = []
        self.on = on
        self.number = 0
        self.body: T | None = None
        self.error: BaseException | None = None
        self.explain: Callable[[BaseException], BaseException] | None = None  # returns another error

    def settle(self, body: T | None = None, error: BaseException | None = None) -> None:
        with self._lock:
            if self._settled:
                return
            if error is not None and self.explain is not None:
                error = self.explain(error)
            # An error of a function of the caller came before the answer, and counts.
            self.body, self.error, self._settled = body, self.error or error, True
            calls, self._calls = self._calls, []
        with contextlib.ExitStack() as stack:  # all are called, also if one raises an error
            stack.callback(self._done.set)
            for call in reversed(calls):
                stack.callback(call)

    def done(self) -> bool:
        return self._done.is_set()

    def then(self, call: Callable[[], object]) -> None:
        """Calls call when the answer arrives, before waiting threads continue."""
        with self._lock:
            if not self._settled:
                self._calls.append(call)
                return
        call()

    def wait(self, timeout: float | None) -> bool:
        """Waits for the answer, and reports whether it is there. None: without a limit."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        # Python does not notice a signal that comes just before it begins to wait for a lock, until that wait is over.
        # So Ctrl-C interrupts this after a second at most.
        while not self._done.wait(min(1, max(0, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True

    def result(self, timeout: float | None = None) -> T:
        """Waits for the answer and returns it, or raises its error."""
        if not self.wait(timeout):
            raise TimeoutError("the saver process has not answered yet")
        if self.error is not None:
            raise self.error
        return self.body  # type: ignore[return-value]  # without an error, the answer is there
