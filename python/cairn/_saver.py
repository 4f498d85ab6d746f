"""A client of the saver process, which sends it messages over a socket. docs/saver.md specifies them.

The client does not depend on torch or numpy: callers copy into and out of the shared memory themselves.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from cairn._address import address_of
from cairn._arena import Arena, default_ceiling
from cairn._messages import (
    Body,
    Described,
    ErrorMessage,
    FormatOptions,
    Found,
    Known,
    Look,
    Message,
    RecipeMessage,
    Search,
    Source,
    Want,
    encode,
)
from cairn._reply import Reply
from cairn.errors import (
    CairnError,
    ChangedError,
    NotFoundError,
    OptionsError,
    SaverError,
    from_message,
)
from cairn.reports import CopyReport, LoadReport, SaveReport, UploadReport

VERSION = 1
CASTS = ("in-range", "any", "widen", "none")  # which conversions of dtypes a load may make
_MAX_FRAME = 1 << 30
_log = logging.getLogger("cairn")
_LOAD_MEMORY = 1 << 29  # bytes that a load uses at once, if no more have been used before


def binary() -> str:
    """Returns the path of the program cairn."""
    if named := os.environ.get("CAIRN_BINARY"):
        if os.access(named, os.X_OK) and not os.path.isdir(named):
            return os.path.abspath(named)
        raise SaverError(f"CAIRN_BINARY is {named!r}, which is not a program")
    inside = os.path.join(os.path.dirname(__file__), "bin", "cairn")
    if os.access(inside, os.X_OK):
        return inside
    if (found := shutil.which("cairn")) and not _is_script(found):
        return found
    raise SaverError("the program cairn is not part of this installation, and not in PATH: "
                     "install the package from a wheel, or build the program with 'go build ./cmd/cairn' and set "
                     "CAIRN_BINARY to its path")


def _is_script(path: str) -> bool:
    """Reports whether a file is a script, such as the command of this package, which runs what binary returns."""
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


# The outcomes that have a report. All others are the body of their message.
_REPORTS: dict[str, Callable[[Mapping[str, Any]], SaveReport | UploadReport | CopyReport | LoadReport]] = {
    "saved": SaveReport.from_message, "uploaded": UploadReport.from_message, "copied": CopyReport.from_message,
    "loaded": LoadReport.from_message,
}


Subject: TypeAlias = tuple[str, int]
"""What a message is about: ("load", n), ("generation", n), or ("upload", n) or ("copy", n) of a generation."""

_MEET = 150.0  # seconds for a meeting of all savers
_AFTER = {"uploaded": "upload", "copied": "copy"}  # outcomes that come after a save
Piece: TypeAlias = Callable[[int, memoryview | None, tuple[str, bytes] | None], None]
"""Takes a want that has arrived: its number, and its elements or the codec and the data of a value."""
_Wanted: TypeAlias = tuple[int, Want, int | None]  # the number of a want, and its place in the arena
_T = TypeVar("_T")


class Sharing(Protocol):
    """The steps of a load that all ranks make together. Before each message, all of them take one."""

    def step(self, more: bool) -> bool:
        """Takes a step, and reports whether any rank has more to load. It raises the error of a rank that failed."""

    def fail(self, error: BaseException) -> None:
        """Lets the next step fail on all ranks, unless there is none."""


class Saver:
    """A saver process and the conversation with it. Its methods are safe for several threads.

    ps shows the title as an argument of the process.
    """

    def __init__(self, ceiling: int | None = None, log: str | None = None, arena: Arena | None = None,
                 title: str = "for reads"):
        self.arena = arena or Arena(default_ceiling() if ceiling is None else ceiling)
        self._owns_arena = arena is None
        self._send_lock = threading.Lock()
        self._lock = threading.Lock()
        self._numbers = 0
        self._waiting: dict[Subject, Reply[Any]] = {}
        # Replies of saves that may be over, for warnings about their runs, which come later.
        self._saves: weakref.WeakValueDictionary[int, Reply[Any]] = weakref.WeakValueDictionary()
        self._order: list[Reply[Body]] = []  # answers without a number: ready, listening, joined
        self._ended: CairnError | None = None
        self._pid = os.getpid()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        _all.add(self)  # before there is a process, so that no child of a fork keeps the socket
        with theirs, contextlib.ExitStack() as undo:
            if self._owns_arena:
                undo.callback(self.arena.close)
            undo.callback(self._sock.close)
            undo.callback(self._fail, SaverError("the saver process did not start"))
            program = binary()
            fds = (theirs.fileno(), self.arena.fd)
            env = {**os.environ, "CAIRN_SAVER": f"{fds[0]},{fds[1]}"}
            with open(log, "ab") if log else open(os.devnull, "wb") as stderr:
                # A session of its own: Ctrl-C in a terminal does not reach it.
                self.process = subprocess.Popen([program, "saver", title], stdin=subprocess.DEVNULL,
                                                stdout=subprocess.DEVNULL,
                                                stderr=stderr, pass_fds=fds, env=env, start_new_session=True)
            undo.pop_all()
        # If nothing refers to this any more, the process ends too. When the interpreter ends, the system closes the
        # socket: callers must not hear of it before, and free memory that the process is still saving.
        weakref.finalize(self, _hang_up, self._sock).atexit = False
        self._reader = threading.Thread(target=_read_all, args=(weakref.ref(self), self._sock), name="cairn-saver",
                                        daemon=True)
        self._reader.start()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close, 10)
            try:
                self.ask("hello", version=VERSION).result(120)
            except SaverError as e:
                raise SaverError("the saver process has ended before it answered: "
                                 f"{program} may not be the program cairn") from e
            undo.pop_all()

    # Messages.

    def send(self, kind: str, encoded: Mapping[str, str] | None = None, **body: Any) -> None:
        """Sends a message. encoded has fields of its body that are JSON already."""
        fields = [encode(body)[1:-1],
                  *(f'"{name}":{value}' for name, value in (encoded or {}).items())]
        inside = ",".join(f for f in fields if f)
        text = f'{{"type":"{kind}","body":{{{inside}}}}}'.encode()
        if len(text) > _MAX_FRAME:
            raise CairnError(f"a message of {len(text)} bytes is too large for the saver process")
        try:
            with self._send_lock:
                self._sock.sendall(struct.pack("<I", len(text)) + text)
        except OSError as e:
            if threading.current_thread() is not self._reader:
                self._reader.join(10)  # the process may have said why, before it ended
            self._fail(SaverError(f"the saver process has ended: {e}"))
            self._check()
        except BaseException:  # Ctrl-C: the saver may have received a part of the message
            self._interrupt()
            raise

    def _interrupt(self) -> None:
        """Gives the conversation up, after a message of which the saver may have received a part."""
        self._fail(SaverError("a message to the saver process was interrupted"))
        _hang_up(self._sock)

    def ask(self, kind: str, **body: Any) -> Reply[Body]:
        """Sends a message whose answer has no number."""
        reply = self.expect()
        self.send(kind, **body)
        return reply

    def number(self) -> int:
        """Returns a number that no load and no save has had."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def begin(self, subject: Subject, reply: Reply[_T], kind: str, encoded: Mapping[str, str] | None = None,
              **body: Any) -> Reply[_T]:
        """Sends a message whose answer has a number: ("load", n) or ("generation", n). send describes encoded."""
        reply.number = subject[1]
        with self._lock:
            self._check()
            self._waiting[subject] = reply
            if subject[0] == "generation":
                self._saves[subject[1]] = reply
        try:
            self.send(kind, encoded, **{subject[0]: subject[1]}, **body)
        except Exception:  # it was not sent
            with self._lock:
                self._waiting.pop(subject, None)
            raise
        except BaseException:  # Ctrl-C: the process may be using the memory that the message names
            self._interrupt()
            raise
        return reply

    def expect_upload(self, number: int) -> Reply[UploadReport]:
        """Returns the future outcome of the upload of a save that is about to begin."""
        return self._expect_later("upload", number)

    def expect_copies(self, number: int) -> Reply[CopyReport]:
        """Returns the future outcome of the copies of a save to memory that is about to begin."""
        return self._expect_later("copy", number)

    def _expect_later(self, what: str, number: int) -> Reply[Any]:
        reply: Reply[Any] = Reply()
        with self._lock:
            self._check()
            self._waiting[what, number] = reply
        return reply

    def memory(self, run: str, *, leave: bool = False, forget: bool = False) -> None:
        """Brings the hosts of a run in memory together, or leaves it: the message "memory". All ranks call it."""
        reply: Reply[Body] = self.begin(("load", self.number()), Reply(), "memory", run=run, leave=leave,
                                        forget=forget)
        try:
            reply.result(_MEET)
        finally:
            self._cancel(reply)

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    def alive(self) -> bool:
        """Reports whether the process can be asked for something."""
        return self._ended is None and self._pid == os.getpid()

    def _receive(self, kind: str, body: Body) -> None:
        if kind in ("ready", "listening", "joined"):
            self._answer(body)
            return
        if kind == "refused":
            self._fail(from_message(body["error"]))
            return
        if body.get("generation"):
            subject: Subject = (_AFTER.get(kind, "generation"), body["generation"])
        elif body.get("load"):
            subject = ("load", body["load"])
        else:
            if kind == "failed":
                self._answer(None, from_message(body["error"]))
            return
        over = kind in ("saved", "uploaded", "copied", "loaded", "described", "found", "hosted", "failed")
        # An error here fails all waiting replies, so this one must still be among them.
        error = from_message(body["error"]) if body.get("error") else None
        outcome = _REPORTS[kind](body.get("report") or {}) if kind in _REPORTS and error is None else body
        with self._lock:
            reply = self._waiting.pop(subject, None) if over else self._waiting.get(subject)
            later: list[Reply[Any]] = []  # of a save that failed
            if kind == "failed" and subject[0] == "generation":
                later = [r for what in _AFTER.values() if (r := self._waiting.pop((what, subject[1]), None))]
        if kind == "fetch" and (reply is None or reply.on is None):  # every fetch has an answer
            self.send("fetched", fetch=body["fetch"], error={"text": "the save is over"})
            return
        if reply is None and kind == "warning" and subject[0] == "generation":
            _log.warning("%s", body.get("text"))
            reply = self._saves.get(subject[1])
        if reply is None:
            return
        if error is not None:
            reply.settle(error=error)
            for r in later:
                r.settle(error=reply.error)
        elif over:
            reply.settle(outcome)
        elif (on := reply.on) is not None:
            try:
                on(kind, body)
            except BaseException as e:  # of the caller's function, of any class: the request fails with it
                reply.on, reply.error = None, e
                if subject[0] == "load":
                    self._cancel(reply)

    def _answer(self, body: Body | None, error: CairnError | None = None) -> None:
        with self._lock:
            # rank 0 receives "listening" and "joined" for one message
            reply = self._order.pop(0) if self._order else None
        if reply is not None:
            reply.settle(body, error)

    def expect(self) -> Reply[Body]:
        """Returns the next answer without a number. Some messages have two."""
        reply: Reply[Body] = Reply()
        with self._lock:
            self._check()
            self._order.append(reply)
        return reply

    def _fail(self, error: CairnError) -> None:
        with self._lock:
            self._ended = self._ended or error
            # The copies of a save end after the save, also with an error.
            ordered = sorted(self._waiting, key=lambda subject: subject[0] in _AFTER.values())
            waiting = [*(self._waiting[subject] for subject in ordered), *self._order]
            self._waiting, self._order = {}, []
        for reply in waiting:
            reply.settle(error=self._ended)

    # Reading.

    def describe(self, store: str, format: str | None = None, format_options: FormatOptions | None = None,
                 recipe: RecipeMessage | None = None, keep: int = 0) -> Described:
        """Returns what a checkpoint holds: the body of the message "described"."""
        return self._describe(_source(store, format, format_options, recipe, keep))[0]

    def hold(self, store: str, format: str | None = None, format_options: FormatOptions | None = None,
             recipe: RecipeMessage | None = None, keep: int = 0) -> tuple[Described, Callable[[], None]]:
        """Returns what describe does, and a function that closes the checkpoint. Until then it stays open."""
        described, number = self._describe({**_source(store, format, format_options, recipe, keep), "hold": True})

        def release() -> None:
            with contextlib.suppress(CairnError):
                self.send("cancel", load=number)

        return described, release

    def _describe(self, source: Source) -> tuple[Described, int]:
        reply: Reply[Described] = self.begin(("load", self.number()), Reply(), "describe", **source)
        try:
            return reply.result(), reply.number
        except NotFoundError as e:
            raise _hinted(e, source["store"]) from None
        finally:
            self._cancel(reply)  # if it was Ctrl-C

    def newest(self, run: str, *, format: str | None = None, format_options: FormatOptions | None = None,
               known: Known | None = None, search: Search | None = None, outcome: ErrorMessage | None = None) -> Found:
        """Returns a version of a run: the body of the message "found". The fields are of the message "newest"."""
        look: Look = {"known": known or {}}
        if search is not None:
            look["search"] = search
        if outcome is not None:
            look["outcome"] = outcome
        source = _source(run, format, format_options, None)
        reply: Reply[Found] = self.begin(("load", self.number()), Reply(), "newest", **source, **look)
        try:
            return reply.result()
        finally:
            self._cancel(reply)  # if it was Ctrl-C

    def load(self, store: str, wants: Iterable[Want | None], piece: Piece, *,
             format: str | None = None, format_options: FormatOptions | None = None, allow_missing: bool = False,
             save_id: str = "", cast: str = "in-range", recipe: RecipeMessage | None = None, keep: int = 0,
             settle: Callable[[BaseException | None], None] = lambda error: None,
             share: Sharing | None = None) -> LoadReport:
        """Reads parts of a checkpoint.

        Each want has a name and, if it is a box of a tensor, dtype, shape, offsets, sizes and
        its bytes, ``nbytes``. None among them says that the next one may take long: what was wanted
        so far is read meanwhile. piece is called once for each want, in any order and by another
        thread: with its elements, which it copies, or with the codec and the data of a value.
        settle is called at the end of each message's load, with its error or None: when it returns, copies that piece
        has begun are complete. With share, the savers of all ranks load together.
        The report has the names that the checkpoint lacks, if allow_missing is set. ChangedError:
        save_id is not empty, and the checkpoint has another one. cast is one of CASTS, recipe and keep are fields of
        messages.
        """
        if cast not in CASTS:
            raise OptionsError(f"cast is {cast!r}; want one of {', '.join(CASTS)}", ("storage.options",))
        begun = time.monotonic()
        source = _source(store, format, format_options, recipe, keep)
        source["cast"] = cast
        under_way: list[Reply[LoadReport]] = []
        batch: list[_Wanted] = []
        # Memory that is used again is faster than new memory, so a load takes little new memory.
        limit = max(_LOAD_MEMORY, sum(hi - lo for lo, hi in self.arena.backed))
        size = used = 0  # bytes of the batch, and of all batches
        failed: list[BaseException] = []
        if share is not None:
            source["share"] = True
            limit = _LOAD_MEMORY  # the same on all ranks: they share what they load by the same message

        def start() -> None:
            if failed:
                raise failed[0]
            if share is not None:
                share.step(True)
            send()

        def send() -> None:
            nonlocal batch, size
            full, batch = batch, []
            reply = self._start(full, piece, allow_missing, source, settle)
            under_way.append(reply)
            reply.then(functools.partial(over, reply, size))
            size = 0

        def over(reply: Reply[LoadReport], n: int) -> None:
            nonlocal used
            if reply.error is not None:
                failed.append(reply.error)
            with self.arena.room:
                used -= n
                self.arena.room.notify_all()

        try:
            for index, want in enumerate(wants):
                if want is None:
                    if batch:
                        start()
                    continue
                at = None
                if "dtype" in want:
                    n = want["nbytes"]
                    if n > self.arena.window:
                        raise CairnError(f"{n} bytes of {want['name']!r} do not fit into the shared memory of "
                                         f"{self.arena.window} bytes: "
                                         "set CAIRN_ARENA_BYTES")
                    while (full := used > 0 and used + n > limit) or (at := self.arena.alloc(n)) is None:
                        # Memory comes back when a batch is over, here or in another thread.
                        if batch and (share is None or used == size):
                            start()
                        with self._lock:
                            self._check()
                        with self.arena.room:
                            if not full or used + n > limit:
                                self.arena.room.wait(0.1)
                    size += n
                    with self.arena.room:
                        used += n
                batch.append((index, want, at))
                if size >= limit // 4:
                    start()
            if batch:
                start()
            while share is not None and share.step(False):
                send()  # nothing: another rank has more to load
            received = [reply.result() for reply in under_way]
            if len(saves := {r.save_id for r in received} | ({save_id} if save_id else set())) > 1:
                raise ChangedError(f"{store} was replaced while it was being loaded: it had one of the saves "
                                   f"{sorted(saves)}, "
                                   "and then another", ("storage.changed",))
            return LoadReport.total(received, time.monotonic() - begun)
        except BaseException as e:  # Ctrl-C too: when this returns, nothing uses the tensors of the caller
            for _, want, at in batch:
                if at is not None:
                    self.arena.free(at, want["nbytes"])
            for reply in under_way:
                reply.on = None
                self._cancel(reply)
            if share is not None:
                share.fail(e)
            end = time.monotonic() + 5  # a saver that hangs does not hold up Ctrl-C
            for reply in under_way:
                reply.wait(max(0, end - time.monotonic()))
            raise

    def _start(self, batch: Sequence[_Wanted], piece: Piece, allow_missing: bool, source: Source,
               settle: Callable[[BaseException | None], None]) -> Reply[LoadReport]:
        """Sends a load. The memory of its wants is free when the load is over, and settle has returned."""
        items = []
        for _, want, at in batch:
            item = {k: v for k, v in want.items() if k != "nbytes"}
            if at is not None:
                item["at"] = at
            items.append(item)

        def arrived(kind: str, body: Body) -> None:
            if kind != "piece":
                return
            index, want, at = batch[body["item"]]
            if at is None:
                piece(index, None, (body.get("codec", "raw"), base64.b64decode(body.get("data") or "")))
            else:
                piece(index, self.arena.view[at:at + want["nbytes"]], None)

        def over() -> None:
            try:
                settle(reply.error)
            except Exception as e:  # it fails the load
                reply.error = reply.error or e
            finally:
                for _, want, at in batch:
                    if at is not None:
                        self.arena.free(at, want["nbytes"])

        reply: Reply[LoadReport] = Reply(arrived)
        reply.then(over)
        with contextlib.ExitStack() as undo:
            undo.callback(reply.settle, None, SaverError("the load was not sent"))
            self.begin(("load", self.number()), reply, "load", items=items, allow_missing=allow_missing, **source)
            undo.pop_all()
        return reply

    def _cancel(self, reply: Reply[Any]) -> None:
        """Cancels a load, a description or a search, unless it is over."""
        with contextlib.suppress(CairnError):
            if not reply.done():
                self.send("cancel", load=reply.number)

    def close(self, timeout: float = 60) -> None:
        """Waits for pending saves and uploads, up to timeout seconds, and ends the conversation.

        The process completes saves that are staged, and ends.
        """
        if self._pid != os.getpid():
            return
        self.settle(timeout)
        _hang_up(self._sock)
        self._reader.join(timeout)
        self._sock.close()
        self._fail(SaverError("the saver was closed"))
        with contextlib.suppress(subprocess.TimeoutExpired):  # it completes staged saves
            self.process.wait(timeout)
        if self._owns_arena:
            self.arena.close()

    def settle(self, timeout: float = 60) -> None:
        """Waits for pending saves, copies and uploads, up to timeout seconds."""
        end = time.monotonic() + timeout
        with self._lock:
            saves = [reply for subject, reply in self._waiting.items() if subject[0] != "load"]
        for reply in saves:
            reply.wait(max(0, end - time.monotonic()))

    def _forget(self) -> None:
        """Called in a child after a fork: the conversation is the parent's."""
        self._ended = SaverError("the saver process belongs to the process that forked this one")
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _hinted(error: NotFoundError, store: str) -> NotFoundError:
    """Returns the error, with a hint if the path may be the folder of a run."""
    path = address_of(store)
    if "storage.notfound" not in error.codes:  # another file is missing
        return error
    if "://" in path or not os.path.isdir(path):
        return error
    with os.scandir(path) as entries:
        if not any(entry.is_dir() for entry in entries):
            return error
    hint = f"If it is the folder of a run, cairn.latest({store!r}) returns its newest checkpoint"
    return NotFoundError(f"{error}. {hint}", error.codes)


def _source(store: str, format: str | None, options: FormatOptions | None, recipe: RecipeMessage | None,
            keep: int = 0) -> Source:
    out: Source = {"store": address_of(store)}
    if format:
        out["format"] = format
    if options and not format and "base" in options:  # of versions of slime and of adapters
        out["base"], options = options["base"], {name: v for name, v in options.items() if name != "base"}
    if options:
        out["format_options"] = options
    if recipe:
        out["recipe"] = recipe
    if keep:
        out["keep"] = keep
    return out


def _read_exactly(sock: socket.socket, n: int) -> bytearray:
    out = bytearray(n)
    view = memoryview(out)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return out


def _read_all(saver: weakref.ref[Saver], sock: socket.socket) -> None:
    """Reads the messages of a saver process until it ends, or until the Saver does not exist any more."""
    error: CairnError = SaverError("the saver process has ended")
    try:
        while True:
            (n,) = struct.unpack("<I", _read_exactly(sock, 4))
            if n > _MAX_FRAME:
                raise EOFError
            message: Message = json.loads(_read_exactly(sock, n))
            s = saver()
            if s is None:
                return
            s._receive(message["type"], message.get("body", {}))
            del s
    except (EOFError, OSError):
        pass
    except Exception as e:
        error = SaverError(f"the conversation with the saver process has failed: {e!r}")
        error.__cause__ = e
    finally:  # also after a bug, no caller waits
        sock.close()
        s = saver()
        if s is not None:
            s._fail(error)


# Every saver of this process, for forks.
_all: weakref.WeakSet[Saver] = weakref.WeakSet()
_shared: Saver | None = None
_shared_lock = threading.Lock()


def shared() -> Saver:
    """Returns the saver that reads for this process. The first call starts it."""
    global _shared
    with _shared_lock:
        if _shared is not None and not _shared.alive():
            _shared.close()
            _shared = None
        if _shared is None:
            _shared = Saver()
        return _shared


def _after_fork() -> None:
    global _shared, _shared_lock
    for s in list(_all):
        s._forget()
    _shared, _shared_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
