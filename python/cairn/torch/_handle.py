"""The outcomes of a background save, as futures."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cairn import errors
from cairn._address import join_address, split_address
from cairn._messages import Body
from cairn._reply import Reply
from cairn.reports import CopyReport, SaveReport, UploadReport

_T = TypeVar("_T")
_LAST_WAIT = 2.0  # seconds that the end of a process waits for saves, to report their errors
_log = logging.getLogger("cairn")


class Outcome(concurrent.futures.Future[_T], Generic[_T]):
    """A future of a save. It cannot be cancelled: the other ranks save too.

    Functions of add_done_callback run in a thread of their own, in the order in which they were added. They may wait
    for other outcomes. If one raises an error, the error is logged (logger "cairn"), and the next function runs. The
    end of the process waits for functions that have begun.
    """

    def __init__(self, what: str, seen: list[BaseException]) -> None:
        super().__init__()
        self._what, self._seen = what, seen
        self._pid = os.getpid()
        self._calls: list[Callable[[Any], object]] = []
        self._calls_lock = threading.Lock()
        self._caller: threading.Thread | None = None  # waits for the outcome, and runs _calls
        self.set_running_or_notify_cancel()  # so that cancel returns False

    def result(self, timeout: float | None = None) -> _T:
        """Waits for the outcome and returns it, or raises the error. TimeoutError: not within timeout seconds."""
        error = self.exception(timeout)
        try:
            if error is not None:
                raise error
            return super().result()
        finally:
            del error  # its traceback has this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the outcome and returns the error, or None. TimeoutError: not within timeout seconds."""
        if self._pid != os.getpid() and not self.done():
            raise errors.SaverError(f"{self._what} belongs to the process that forked this one", ())
        try:
            error = super().exception(timeout)
        except concurrent.futures.TimeoutError:  # not TimeoutError before Python 3.11
            raise TimeoutError(f"{self._what} is not over after {timeout} seconds") from None
        if error is not None:
            unseen.drop(self._seen, error)
        return error

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Calls fn with this future when it is done, in another thread, or at once if it is done already."""
        with self._calls_lock:
            if self._caller is None and not self.done():
                # Not the thread that settles the outcome, which reads the messages of the saver process: a function
                # that waits for cairn would wait for ever there. If no thread can be started, this raises.
                caller = threading.Thread(target=self._call_all, name="cairn-callback", daemon=True)
                caller.start()
                self._caller = caller
                unseen.callers[caller] = self
            if self._caller is not None:
                self._calls.append(fn)
                return
        self._call(fn)

    def _call_all(self) -> None:
        super().exception()  # waits; the error counts as unseen
        while True:
            with self._calls_lock:
                if not self._calls:
                    if self._caller is not None:
                        unseen.callers.pop(self._caller, None)
                    self._caller = None
                    return
                fn = self._calls.pop(0)
            self._call(fn)

    def _call(self, fn: Callable[[Any], object]) -> None:
        try:
            fn(self)
        except BaseException:  # also SystemExit: the next function runs
            _log.exception("a function of add_done_callback has failed, for %r", self)


def settle(outcome: Outcome[_T], value: _T | None = None, error: BaseException | None = None) -> None:
    """Sets an outcome to a value or an error, if it is not set."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]  # without an error, it has the type of the outcome


def failure(outcome: Outcome[Any]) -> BaseException | None:
    """Waits for an outcome and returns its error, or None. The error does not count as seen by a caller."""
    return concurrent.futures.Future.exception(outcome)


class Handle(Outcome[SaveReport]):
    """A save that is under way: a ``concurrent.futures.Future`` of its report.

    >>> handle = cairn.torch.async_save({"w": torch.ones(3)}, "run/step-1", step=1)
    >>> handle.staged.result()                   # the state has been copied aside
    >>> handle.result(timeout=600).step          # the checkpoint is complete
    1
    >>> handle.exception() is None, handle.uploaded.result()
    (True, None)
    >>> handle.path.endswith("run/step-1")
    True

    ``staged`` is a future that is done when the state has been copied aside: then the caller may change it.
    ``uploaded`` is a future of the :class:`cairn.UploadReport`, or of None for a save without remote. An upload that
    fails does not harm the checkpoint at path. ``copied`` is a future of the :class:`cairn.CopyReport` of a save to
    memory, when other hosts have copies of it, or of None. ``warnings`` lists problems that do not make the save fail.

    All four raise the error of a save that fails. If no call asks for the error, by ``result`` or ``exception``, it is
    reported by the next save, by :func:`cairn.torch.close` and at the end of the process: as a
    :class:`cairn.SaveWarning`.

    A save cannot be cancelled: ``cancel`` returns False.
    """

    def __init__(self, path: str, reply: Reply[SaveReport], upload: Reply[UploadReport] | None,
                 copies: Reply[CopyReport] | None = None) -> None:
        seen: list[BaseException] = []  # errors that a caller has asked for
        super().__init__(f"the save to {path}", seen)
        self._path, self._reply = path, reply
        self._upload = upload  # None: there is no remote store
        self._copies = copies  # None: the save is not to memory
        self._planned = self._moved = 0
        self._stage: Callable[[str, Body], None] | None = None  # hears about the state until the save is over
        self.staged: Outcome[None] = Outcome(f"the copy for the save to {path}", seen)
        self.uploaded: Outcome[UploadReport | None] = Outcome(f"the upload of {path}", seen)
        self.copied: Outcome[CopyReport | None] = Outcome(f"the copies of {path}", seen)
        self.warnings: list[str] = []

    @property
    def path(self) -> str:
        """The path or the URL of the checkpoint.

        The path may change until the save is complete: if the folder of its step in a run has a checkpoint of another
        line, a save goes to a folder such as step-000000600~2.
        """
        if self._reply.error is not None or self._reply.body is None or not self._reply.body.folder:
            return self._path
        return join_address(split_address(self._path)[0], self._reply.body.folder)

    def progress(self) -> tuple[int, int]:
        """Returns the bytes that this rank has written, and the bytes that it writes in all (0 until planned)."""
        return self._moved, self._planned

    def __repr__(self) -> str:
        if error := self._reply.error or self.staged._exception:
            return f"<save to {self._path}: failed: {error}>"
        how = "complete" if self.done() else "staged" if self.staged.done() else "not staged yet"
        return f"<save to {self._path}: {how}, {self._moved} of {self._planned} bytes>"

    def _hear(self, kind: str, body: Body) -> None:
        if kind == "progress":
            self._planned = body.get("planned", 0) or self._planned
            self._moved += body.get("moved", 0)
        elif kind == "warning":
            self.warnings.append(body["text"])
        elif self._stage is not None:
            self._stage(kind, body)

    def _end(self) -> None:
        self._stage = None
        settle(self, self._reply.body, self._reply.error)


def connect(handle: Handle, stage: Callable[[str, Body], None]) -> None:
    """Makes the replies of the saver process settle the futures, after everything that was registered before.

    stage is called for messages about the state.
    """
    handle._stage = stage
    unseen.watch(handle)
    reply = handle._reply
    reply.on = handle._hear
    later: tuple[tuple[Outcome[Any], Reply[Any] | None], ...] = (
        (handle.uploaded, handle._upload), (handle.copied, handle._copies))
    for outcome, after in later:
        source = after or reply
        source.then(functools.partial(_pass_on, outcome, source, after is not None))
    reply.then(handle._end)


def _pass_on(outcome: Outcome[Any], reply: Reply[Any], body: bool) -> None:
    """Sets an outcome to that of a reply: its error, or its body or None."""
    settle(outcome, reply.body if body else None, reply.error)


def fail(handle: Handle, error: BaseException) -> None:
    """Makes a save fail that has not begun."""
    settle(handle.staged, error=error)
    for reply in (handle._reply, handle._upload, handle._copies):
        if reply is not None:
            reply.settle(error=error)


def note_seen(handle: Handle, error: BaseException) -> None:
    """Notes that the caller has seen an error of a save."""
    unseen.drop(handle._seen, error)


class _Unseen:
    """Saves of this process that are under way, and errors of saves that no call has asked for."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all saves: the child of a fork has none."""
        self._lock = threading.Lock()
        self._under_way: set[Reply[Any]] = set()
        # Each with the list of errors of its save that callers have seen: saves may fail with one error.
        self._errors: list[tuple[list[BaseException], str, BaseException]] = []
        self.callers: dict[threading.Thread, Outcome[Any]] = {}  # threads of functions of add_done_callback

    def watch(self, handle: Handle) -> None:
        """Keeps the errors of a save until a caller has asked for them."""
        for text, reply in (("the save to", handle._reply), ("the upload of", handle._upload),
                            ("the copies of", handle._copies)):
            if reply is not None:
                with self._lock:
                    self._under_way.add(reply)
                reply.then(functools.partial(self._end, f"{text} {handle._path}", handle._seen, reply))

    def _end(self, what: str, seen: list[BaseException], reply: Reply[Any]) -> None:
        with self._lock:
            self._under_way.discard(reply)
            # The upload of a save that failed has the error of the save.
            known = [*seen, *(e for s, _, e in self._errors if s is seen)]
            if reply.error is not None and not any(e is reply.error for e in known):
                self._errors.append((seen, f"{what} has failed, and result() of its handle was not called: "
                                     f"{reply.error}", reply.error))

    def drop(self, seen: list[BaseException], error: BaseException) -> None:
        """Notes that a caller has seen an error. seen has the errors of one save that callers have seen."""
        with self._lock:
            if not any(e is error for e in seen):
                seen.append(error)
            self._errors = [row for row in self._errors if row[0] is not seen or row[2] is not error]

    def report(self) -> None:
        """Warns of each error, once."""
        while True:
            with self._lock:
                if not self._errors:
                    return
                _, text, _ = self._errors.pop(0)
            warnings.warn(text, errors.SaveWarning, stacklevel=errors.outside())  # or raise it, and keep the others

    def at_exit(self) -> None:
        """Reports errors at the end of the process. Saves that are under way get a moment to fail before it."""
        end = time.monotonic() + _LAST_WAIT
        with self._lock:
            last = list(self._under_way)
        for reply in last:
            reply.wait(max(0, end - time.monotonic()))
        for caller, outcome in list(self.callers.items()):
            if outcome.done():
                caller.join()
        while self._errors:
            try:
                self.report()
            except errors.SaveWarning as w:  # a filter makes it an error, and no call follows that could raise it
                _log.error("%s", w)


unseen = _Unseen()
# Python shows a text once for each line of code; a job may save to one path again and again. Filters of the user count.
warnings.simplefilter("always", errors.SaveWarning, append=True)
atexit.register(unseen.at_exit)
os.register_at_fork(after_in_child=unseen.clear)
