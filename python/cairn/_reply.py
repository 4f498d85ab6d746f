"""A future answer of the saver process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any


class Reply:
    """A future answer: a report or the body of a message. ``on`` is called for messages before it."""

    def __init__(self, on: Callable[[str, dict[str, Any]], None] | None = None):
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._settled = False
        self._calls: list[Callable[[], None]] = []
        self.on = on
        self.number = 0
        self.body: Any = None
        self.error: BaseException | None = None
        self.explain: Callable[[BaseException], BaseException] | None = None  # returns another error

    def settle(self, body: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            if self._settled:
                return
            if error is not None and self.explain is not None:
                error = self.explain(error)
            # An error of a function of the caller came before the answer, and counts.
            self.body, self.error, self._settled = body, self.error or error, True
            calls, self._calls = self._calls, []
        failed = None
        for call in calls:
            try:
                call()
            except BaseException as e:  # the others are called too
                failed = failed or e
        self._done.set()
        if failed is not None:
            raise failed

    def done(self) -> bool:
        return self._done.is_set()

    def then(self, call: Callable[[], None]) -> None:
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

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the answer and returns it, or raises its error."""
        if not self.wait(timeout):
            raise TimeoutError("the saver process has not answered yet")
        if self.error is not None:
            raise self.error
        return self.body
