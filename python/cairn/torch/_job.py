"""The saver process of this rank, which has met those of the other ranks."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
import threading
import time
from typing import Any, Optional

import torch.distributed as dist

from cairn import errors
from cairn.saver import Arena, Saver, default_ceiling
from cairn.torch._memory import Memory

_PATIENCE = 30 * 60  # seconds that a rank waits for the others


def distributed() -> bool:
    """Reports whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class Job:
    """What this process needs to save and load: shared memory and a saver process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.rank = dist.get_rank() if distributed() else 0
        self.size = dist.get_world_size() if distributed() else 1
        self.arena = Arena(default_ceiling())
        self.memory = Memory(self.arena)
        self.saver: Optional[Saver] = None
        self.asked: Optional[Saver] = None  # the saver that was asked to meet the others, which it can once
        self.met: Optional[Saver] = None  # the saver that has met the others
        self.lock = threading.RLock()

    # What all ranks know together.

    def agree(self, kind: str, error: Optional[BaseException] = None) -> None:
        """Ends a step that all ranks take. If it failed on any of them, it raises an error on all.

        Steps of one kind have the same order on all ranks.
        """
        if not distributed():
            if error is not None:
                raise error
            return
        said = ""
        if error is not None:
            codes = error.codes if isinstance(error, errors.CairnError) else ()
            text = str(error) if isinstance(error, errors.CairnError) else repr(error)
            said = json.dumps({"text": f"rank {self.rank}: {text}", "codes": codes})
        failed = self.gather(kind, said)
        if error is not None:
            raise error
        if failed:
            raise errors.from_message(json.loads(failed))

    def gather(self, kind: str, said: str) -> str:
        """Returns what a rank says, or nothing if all say nothing. All ranks call it.

        It uses the job's store and not a collective: PyTorch saves in threads of their own,
        whose collectives would mix with those of the training, and a collective on a GPU
        waits for the work of the GPU.
        """
        store = _store()
        key = f"cairn/{kind}/{_count(kind)}"
        old = f"cairn/{kind}/{_calls[kind] - 1}"
        if said:
            store.set(f"{key}/said", said)
            store.add(f"{key}/saying", 1)
        store.add(f"{key}/arrived", 1)
        end, pause = time.monotonic() + _PATIENCE, 0.0005
        while store.add(f"{key}/arrived", 0) < self.size:
            if time.monotonic() > end:
                raise errors.GoneError(f"not all ranks have made the same call within {_PATIENCE} seconds", ("group.ErrGone",))
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):  # not every store can; all ranks have read these
                for name in ("said", "saying", "arrived"):
                    store.delete_key(f"{old}/{name}")
        return store.get(f"{key}/said").decode() if store.add(f"{key}/saying", 0) else ""

    def ready(self) -> Saver:
        """Returns a saver process that has met those of all ranks. All ranks call it."""
        with self.lock:
            alive = self.saver is not None and self.saver is self.met and self.saver.alive()
            if distributed():
                alive = not self.gather("alive", "" if alive else "gone")
            if not alive:
                error = None
                try:
                    self._meet()
                except BaseException as e:  # the other ranks must know
                    error = e
                self.agree("meet", error)
                self.met = self.saver
            assert self.saver is not None
            return self.saver

    def own(self) -> Saver:
        """Returns a saver process, which may not have met the others: for loads."""
        with self.lock:
            if self.saver is not None and not self.saver.alive():
                self.saver.close()  # it must not use the memory any more
                self.saver = None
            if self.saver is None:
                self.saver = Saver(arena=self.arena, log=os.environ.get("CAIRN_LOG"))
            return self.saver

    def _meet(self) -> None:
        if self.saver is not None and self.saver is self.asked:
            self.saver.close(5)
            self.saver = None
        self.saver = self.asked = self.own()
        if self.size == 1:
            self.saver.ask("join", rank=0, size=1, address="", secret=None, job="").result(150)
            return
        key = f"cairn/meeting/{_count('meeting')}"
        if self.rank == 0:
            secret = base64.b64encode(secrets.token_bytes(32)).decode()
            job = secrets.token_hex(8)
            try:
                listening = self.saver.ask("listen", address=_listen_address(), size=self.size, secret=secret, job=job)
                joined = self.saver.expect()
                place = {"address": listening.result(150)["address"], "secret": secret, "job": job}
            except BaseException:
                _store().set(key, "{}")  # so that the others do not wait
                raise
            _store().set(key, json.dumps(place))
            joined.result(150)
            return
        place = json.loads(_store().get(key))
        if not place:
            raise errors.SaverError("the saver process of rank 0 did not start")
        self.saver.ask("join", rank=self.rank, size=self.size, **place).result(150)

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        if self.saver is not None:
            self.saver.close()
        self.memory.close()
        self.arena.close()


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _count(kind: str) -> int:
    """Returns how many calls of a kind this process has made: the same on all ranks, for the names of what is in the store."""
    _calls[kind] = _calls.get(kind, 0) + 1
    return _calls[kind]


def _listen_address() -> str:
    """Returns where the saver of rank 0 listens: loopback if all ranks are on this host."""
    if (named := os.environ.get("CAIRN_LISTEN")) is not None:
        return named
    if int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size())) == dist.get_world_size():
        return ""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    return socket.getaddrinfo(master, None, socket.AF_INET)[0][4][0] + ":0"


_calls: dict[str, int] = {}  # of the process and not of a job: the store outlives jobs
_current: Optional[Job] = None
_lock = threading.Lock()


def job() -> Job:
    """Returns the job of this process."""
    global _current
    with _lock:
        size = dist.get_world_size() if distributed() else 1
        if _current is not None and (_current.pid != os.getpid() or _current.size != size):
            if _current.pid == os.getpid():
                _current.close()
            _current = None
        if _current is None:
            _current = Job()
        return _current


def close() -> None:
    """Ends the saver process of this rank, when its saves are complete, and frees the shared memory."""
    global _current
    with _lock:
        if _current is not None:
            _current.close()
            _current = None
