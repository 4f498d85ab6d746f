"""The saver process of this rank, which is connected to the savers of the other ranks."""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import torch.distributed as dist

from cairn import errors
from cairn._address import memory_run
from cairn._arena import Arena, default_ceiling
from cairn._messages import ErrorMessage
from cairn._saver import Saver
from cairn.torch._memory import Memory
from cairn.torch._versions import Versions

_T = TypeVar("_T")
_LACKS, _FAILS = 1 << 20, 1 << 40  # added to the count of ranks that have arrived


def distributed() -> bool:
    """Reports whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class Job:
    """What this process needs to save and load: shared memory and a saver process."""

    def __init__(self, rank: int, size: int) -> None:
        self.pid = os.getpid()
        self.rank, self.size = rank, size
        if sys.platform != "linux":
            raise errors.SaverError("cairn.torch needs Linux. Here cairn.open(path, framework='torch') reads "
                                    "checkpoints, and the command cairn converts them", ())
        self.arena = Arena(default_ceiling())
        self.memory = Memory(self.arena)
        self.remembered: collections.deque[Any] = collections.deque(maxlen=4)  # descriptions of states that were saved
        self.published: dict[str, Versions] = {}  # by the address of the run
        self.memories: dict[str, Saver] = {}  # the saver that has joined each run in memory
        self.saver: Saver | None = None
        self.asked: Saver | None = None  # the saver that was asked to meet the others, which it can once
        self.met: Saver | None = None  # the saver that has met the others
        self.preparing: threading.Thread | None = None  # takes memory
        self.closing = False  # nothing uses the shared memory again
        self.sharing = threading.Lock()  # held by the load that all ranks make together
        self.lock = threading.RLock()

    def meet(self) -> None:
        """Starts a saver process that connects to the savers of all ranks. All ranks call it."""
        with Caught() as caught:
            self._meet()
        if self.size > 1:
            agree("meet", caught.error)
        elif caught.error is not None:
            raise caught.error
        self.met = self.saver

    def own(self) -> Saver:
        """Returns a saver process, which may not have met the others: for loads."""
        with self.lock:
            if self.saver is not None and not self.saver.alive():
                self.saver.close()  # it must not use the memory any more
                self.saver = None
            if self.saver is None:
                self.saver = Saver(arena=self.arena, log=os.environ.get("CAIRN_LOG"), title=f"rank {self.rank}")
            return self.saver

    def _meet(self) -> None:
        if self.saver is not None and self.saver is self.asked:
            self.saver.close(5)
            self.saver = None
        self.saver = self.asked = self.own()
        if self.size == 1:
            self.saver.ask("join", rank=0, size=1, address="", secret=None, job="").result(150)
            return
        store, number = _store(), _count("meeting")
        key = f"cairn/meeting/{number}"
        if self.rank == 0:
            _delete(store, f"cairn/meeting/{number - 1}")
            secret = base64.b64encode(secrets.token_bytes(32)).decode()
            job = secrets.token_hex(8)
            place: dict[str, str] = {}
            try:
                listening = self.saver.ask("listen", address=_listen_address(), size=self.size, secret=secret, job=job)
                joined = self.saver.expect()
                place = {"address": listening.result(150)["address"], "secret": secret, "job": job}
            finally:
                store.set(key, json.dumps(place))  # an empty one: the others do not wait
            joined.result(150)
            return
        _wait(store, key, self.size)
        place = json.loads(store.get(key))
        if not place:
            raise errors.SaverError("the saver process of rank 0 did not start", ("saver.ended",))
        self.saver.ask("join", rank=self.rank, size=self.size, **place).result(150)

    def join_memory(self, run: str) -> None:
        """Brings the hosts of a run in memory together, once for each saver. All ranks call it, after ready."""
        assert self.saver is not None
        if self.memories.get(run) is self.saver:  # on all ranks: new savers have met in ready
            return
        with Caught() as caught:
            self.saver.memory(run)
        agree("memory", caught.error)
        self.memories[run] = self.saver

    def close(self, forget: bool = False) -> None:
        if self.pid != os.getpid():
            return
        self.closing = True
        if self.preparing is not None:
            self.preparing.join()
        if self.saver is not None:
            self.saver.settle()
            for run, saver in self.memories.items():
                if saver is self.saver and saver.alive():
                    with contextlib.suppress(errors.CairnError, TimeoutError):
                        saver.memory(run, leave=True, forget=forget)
            self.saver.close()
        self.memory.close()
        self.arena.close()


class Caught:
    """A context manager that keeps the error of its block, also of Ctrl-C, until the other ranks know of it."""

    error: BaseException | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = error
        return True


def ready(j: Job | None, error: BaseException | None, alone: bool, what: str) -> Saver:
    """Returns a saver process that is connected to the other ranks. All ranks call it, unless alone is set.

    error is an earlier error of this rank, or None. If any rank has one, all ranks raise it. what describes the call,
    and must be the same on all ranks.
    """
    if error is not None:
        if not alone:
            agree("ready", error)
        raise error
    assert j is not None
    with j.lock:
        lacks = j.saver is None or j.saver is not j.met or not j.saver.alive()
        if not alone:
            lacks = agree("ready", lacks=lacks, same=what, differs=lambda theirs: other_call_error(theirs, what))
        if lacks:
            j.meet()
        assert j.saver is not None
        return j.saver


def other_call_error(theirs: str, mine: str) -> errors.OptionsError:
    """Returns the error of ranks that make different calls, which are described."""
    return errors.OptionsError(f"another rank is about to {theirs}, and this one to {mine}: all ranks make the same "
                               "calls, with the same folder and step, or only one with alone=True",
                               ("storage.options",))


def join_memory(address: str, alone: bool) -> None:
    """Brings the hosts together if an address is in their memory. All ranks call it, unless alone is set."""
    if alone or (run := memory_run(address)) is None:
        return
    j = None
    with Caught() as caught:
        j = job()
    ready(j, caught.error, False, f"use the memory of {address}")
    assert j is not None
    j.join_memory(run)


class Sharing:
    """A load that all ranks make together, in steps: see :class:`cairn._saver.Sharing`. All ranks make one.

    error is an earlier error of this rank, or None, and what describes the call: see ready.
    """

    def __init__(self, j: Job | None, error: BaseException | None, what: str) -> None:
        self._lock = None
        if error is None and j is not None:
            if j.sharing.acquire(blocking=False):
                self._lock = j.sharing
            else:
                error = errors.OptionsError("another shared load is under way: read its iterator to the end, or close "
                                            "it", ("storage.options",))
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.saver = ready(j, error, False, what)
            undo.pop_all()
        self._kind = f"share/{_count('share')}"
        self._open = True

    def step(self, more: bool) -> bool:
        self._open = False  # if it fails, there is no next step
        self._open = agree(self._kind, lacks=more)
        return self._open

    def fail(self, error: BaseException) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(BaseException):  # which it raises again
                agree(self._kind, error)

    def close(self) -> None:
        """Lets other loads share."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


def is_shared(address: str, share: bool | None, alone: bool) -> bool:
    """Reports whether ranks read for each other. Unless share says so, they do if a checkpoint is in object storage.

    A file of a local disk is read once by the system, whose cache is faster than messages between processes.
    """
    if share and alone:
        raise errors.OptionsError("share and alone contradict each other: one rank has nobody to share with",
                                  ("storage.options",))
    remote = "://" in address and not address.startswith(("file:", "memory:"))
    return distributed() and not alone and (remote if share is None else share)


def agree(kind: str, error: BaseException | None = None, *, lacks: bool = False, same: str = "",
          differs: Callable[[str], errors.CairnError] = errors.CairnError) -> bool:
    """Ends a step that all ranks take, and reports whether any of them lacks something.

    If the step failed on any rank, it raises an error on all. Steps of one kind have the same order on all
    ranks. It uses the job's store and not a collective: PyTorch saves in threads of their own, whose
    collectives would mix with collectives of the training, and a collective on a GPU waits for the work of
    the GPU.

    same is a text that all ranks must have, unless it is empty. differs returns the error for
    the text of another rank.
    """
    if not distributed():
        if error is not None:
            raise error
        return lacks
    rank, number = dist.get_rank(), _count(kind)
    if error is None and same:
        try:
            first = _store().compare_set(f"cairn/{kind}/{number}/same", "", same).decode()
        except RuntimeError as e:
            raise _gone(f"the store of the job does not answer: {e}") from e
        if first != same:
            error = differs(first)
    said: ErrorMessage = {}
    if isinstance(error, errors.CairnError):
        said = {"text": f"rank {rank}: {error}", "codes": error.codes}
    elif error is not None:
        said = {"text": f"rank {rank}: {error!r}"}
    patient = error is None or isinstance(error, Exception)  # after Ctrl-C this rank does not wait for the others
    try:
        outcome = _exchange(_store(), f"cairn/{kind}", number, rank, dist.get_world_size(), said, lacks, patient)
    finally:
        if error is not None:
            raise error
    if outcome["error"]:
        raise errors.from_message(outcome["error"])
    return outcome["lacks"]


def broadcast(kind: str, ask: Callable[[], _T], what: str = "") -> _T:
    """Returns on all ranks what ask, which rank 0 calls, returns, or raises its error. The answer becomes JSON.

    Like agree it uses the job's store. what describes the call, and must be the same on all ranks, unless it is empty.
    """
    answer: Any = None  # on other ranks than 0, what JSON makes of it
    if not distributed():
        return ask()
    rank, number = dist.get_rank(), _count(f"{kind}/answer")
    key = f"cairn/{kind}/answer/{number}"
    with Caught() as caught:
        if rank == 0:
            answer = ask()
            _store().set(key, json.dumps(answer))
    agree(kind, caught.error, same=what, differs=lambda theirs: other_call_error(theirs, what))
    if rank != 0:
        answer = json.loads(_store().get(key))
    elif number > 1:  # all ranks have read the previous answer
        _delete(_store(), f"cairn/{kind}/answer/{number - 1}")
    return answer


class _Verdict(TypedDict):
    """What the ranks say together."""

    error: ErrorMessage
    lacks: bool


def _exchange(store: Any, kind: str, number: int, rank: int, size: int, said: ErrorMessage, lacks: bool,
              patient: bool) -> _Verdict:
    """Returns what all ranks say together: an error of any of them, and whether one lacks something.

    The last one to arrive sets what the others wait for, so that the store has little to do.
    """
    key = f"{kind}/{number}"
    try:
        if said:
            store.set(f"{key}/said", json.dumps(said))
        arrived = store.add(f"{key}/arrived", 1 + _LACKS * bool(lacks) + _FAILS * bool(said))
        if arrived % _LACKS == size:
            failed = json.loads(store.get(f"{key}/said")) if arrived >= _FAILS else {}
            store.set(f"{key}/outcome", json.dumps({"error": failed, "lacks": arrived % _FAILS >= _LACKS}))
        elif not patient:
            return {"error": {}, "lacks": False}
        else:
            _wait(store, f"{key}/outcome", size, _Late(store, key, rank, size))
        outcome: _Verdict = json.loads(store.get(f"{key}/outcome"))
    except RuntimeError as e:  # the store is a part of rank 0, or of what started the job
        raise _gone(f"the store of the job does not answer: {e}") from e
    if rank == 0:  # all ranks have read the previous outcome
        _delete(store, *(f"{kind}/{number - 1}/{name}" for name in ("said", "arrived", "outcome", "same", "late")))
    return outcome


class _Late:
    """Finds the ranks that have not made the call that this rank waits in. Ranks that wait note it in the store."""

    def __init__(self, store: Any, key: str, rank: int, size: int):
        self.store, self.key, self.rank, self.size = store, f"{key}/late", rank, size
        self.said = self.warned = False

    def look(self, seconds: float) -> None:
        """Is called from time to time by a rank that has waited for so long. It warns, once."""
        if seconds > _SAY_AFTER and not self.said:
            self.said = True
            with contextlib.suppress(RuntimeError, AttributeError):  # not every store can
                self.store.append(self.key, f"{self.rank} ")
        if seconds > _SAY_AFTER + _WARN_AFTER and not self.warned:
            self.warned = True
            if names := self.absent():
                warnings.warn(f"rank {self.rank} has waited for {seconds:.0f} seconds in a call of cairn "
                              f"that {names} not made: all ranks of the job must call save, async_save and load",
                              stacklevel=errors.outside())

    def absent(self) -> str:
        """Returns the names of the ranks that have not said that they wait, such as "ranks 1 and 2 have", or an empty
        string."""
        try:
            there = {int(r) for r in self.store.get(self.key).split()} if self.store.check([self.key]) else set()
        except RuntimeError:
            return ""
        if not there:
            return ""
        lacks = [r for r in range(self.size) if r not in there]
        shown = ", ".join(map(str, lacks[:8])) + (f" and {len(lacks) - 8} more" if len(lacks) > 8 else "")
        return "" if not lacks else f"rank {shown} has" if len(lacks) == 1 else f"ranks {shown} have"


_SAY_AFTER, _WARN_AFTER = 10.0, 5.0  # seconds


def _wait(store: Any, key: str, size: int, late: _Late | None = None) -> None:
    """Waits until a key is there, as long as the job's process group lets its ranks wait."""
    patience = store.timeout
    start = time.monotonic()
    end = start + patience.total_seconds()

    def gone() -> errors.GoneError:
        names = (late.absent() if late else "") or "a rank has"
        return _gone(f"{names} not made the same call within {patience.total_seconds():.0f} seconds, the timeout of "
                     "the process group: "
                     "all ranks of the job must make it, or only one with alone=True")

    def look() -> None:
        if late is not None:
            late.look(time.monotonic() - start)

    if not hasattr(store, "clone"):  # before PyTorch 2.7
        pause = 0.0005
        while not store.check([key]):
            if time.monotonic() > end:
                raise gone()
            time.sleep(pause)
            pause = min(pause * 1.5, max(0.05, size * 0.0005))
            look()
        return
    # A wait holds up everything else on its connection, so it has one of its own, and a
    # thread, so that Ctrl-C ends it.
    waiter = _waiter(store)
    done = threading.Event()
    failed: list[Exception] = []

    def wait() -> None:
        try:
            waiter.wait([key], patience)
            _waiters.append(waiter)
        except Exception as e:
            failed.append(e)
        finally:
            done.set()

    threading.Thread(target=wait, name="cairn-wait", daemon=True).start()
    while not done.wait(1):
        look()
    if failed:
        raise gone() if time.monotonic() >= end else _gone(f"the store of the job does not answer: {failed[0]}")


def _waiter(store: Any) -> Any:
    """Returns another connection to a store, on which no thread waits."""
    global _waiters_of
    if _waiters_of is None or _waiters_of() is not store:
        _waiters.clear()
        _waiters_of = weakref.ref(store)
    try:
        return _waiters.pop()
    except IndexError:
        return store.clone()


def _delete(store: Any, *keys: str) -> None:
    with contextlib.suppress(RuntimeError):  # not every store can
        for key in keys:
            store.delete_key(key)


def _gone(text: str) -> errors.GoneError:
    return errors.GoneError(text, ("group.ErrGone",))


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _count(kind: str) -> int:
    """Returns the number of calls of a kind in this process, the same on all ranks, for the keys of the store."""
    _calls[kind] = _calls.get(kind, 0) + 1
    return _calls[kind]


def _listen_address() -> str:
    """Returns where the saver of rank 0 listens: loopback if all ranks are on this host."""
    if (named := os.environ.get("CAIRN_LISTEN")) is not None:
        return named
    local, master = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("MASTER_ADDR")
    if local == str(dist.get_world_size()) or (local is None and master is None):
        return ""
    # The saver process resolves a name: on its own host that may be loopback, which the other hosts cannot reach.
    host = master or socket.gethostname()
    return f"[{host}]:0" if ":" in host else f"{host}:0"


_calls: dict[str, int] = {}  # of the process and not of a job: the store outlives jobs
_waiters: list[Any] = []
_waiters_of: weakref.ref[Any] | None = None
_jobs: dict[bool, Job] = {}
_lock = threading.Lock()


def job(alone: bool = False) -> Job:
    """Returns the job of this process, or one that has this rank alone."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if distributed() and not alone else (0, 1)
    with _lock:
        j = _jobs.get(alone)
        if j is not None and (j.pid, j.rank, j.size) != (os.getpid(), rank, size):
            del _jobs[alone]
            j.close()
            j = None
        if j is None:
            j = _jobs[alone] = Job(rank, size)
        return j


def close(forget: bool = False) -> None:
    """Ends the saver process of this rank, when its saves are complete, and frees the shared memory.

    forget also removes the runs in the memory of this host.
    """
    with _lock:
        while _jobs:
            _jobs.popitem()[1].close(forget)
