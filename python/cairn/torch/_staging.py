"""Staging: a state is copied into the shared memory, unit by unit, and the saver process is told where it is."""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
import time
import traceback
from collections.abc import Iterator

import torch

from cairn import errors
from cairn._arena import Arena
from cairn._messages import Body
from cairn._reply import Reply
from cairn._saver import Saver
from cairn.reports import SaveReport, UploadReport
from cairn.torch import _memory
from cairn.torch._description import State
from cairn.torch._handle import Outcome, settle
from cairn.torch._job import Job
from cairn.torch._units import STAMP, Unit, row_major

GROUP = 512 << 20  # bytes of new memory that are taken while the ones before are copied to


class Staging:
    """Copies a state into the shared memory, unit by unit. It settles staged when the state is copied aside."""

    def __init__(self, j: Job, saver: Saver, state: State, reply: Reply[SaveReport],
                 upload: Reply[UploadReport] | None, staged: Outcome[None]):
        self.job, self.saver, self.state = j, saver, state
        self.generation, self.reply, self.upload, self.staged = reply.number, reply, upload, staged
        self.held: list[tuple[int, Unit]] = []  # units in memory, with their offsets
        self.released: set[int] = set()  # items that the save does not need any more
        self.begun: dict[torch.device, torch.cuda.Event] = {}
        self.lock = threading.Lock()
        self.fetching = threading.Lock()  # held while a fetch reads a tensor
        self.complete = False  # the caller may change the state
        self.running = False  # the shared memory is being written
        self.saved = False  # the save needs the tensors no more; its copies may need the shared memory
        self.ended = False  # the save is over
        self.error: BaseException | None = None  # of run

    def hear(self, kind: str, body: Body) -> None:
        """Does what a message of the saver process about the state asks for."""
        if kind == "released":
            self.release(body["items"])
        elif kind == "fetch":
            self.fetch(body)

    def reserve(self) -> bool:
        """Takes shared memory for all units, or for none, and reports whether all of them will be staged.

        Without it the saver process must be able to fetch: a later save may stage first, and
        has its memory until this one is over.
        """
        self.job.memory.reclaim()
        for unit in self.state.units:
            if unit.at is not None:
                continue
            if (at := self.job.arena.reserve(unit.size)) is None:
                self.free(self.held)
                self.held = []
                return False
            self.held.append((at, unit))
        return True

    def run(self) -> None:
        try:
            if self._copy_all():
                settle(self.staged)
        except BaseException as e:  # Ctrl-C too: the saver process must not wait for the rest of the state
            self.begun.clear()
            traceback.clear_frames(e.__traceback__)  # they keep the tensors
            # If the save is over, for example because its process has ended, this is only a consequence.
            error = (self.ended and isinstance(e, Exception) and self.reply.error) or e
            # The shared memory is in use until the saver process has answered, by this error or by the end of the
            # process.
            self.error = self.reply.error = error
            if self.upload is not None:
                self.upload.error = error
            self.abandon(error)
            settle(self.staged, error=error)
        finally:
            self.stop()

    def _copy_all(self) -> bool:
        """Copies the state aside and tells the saver process. False: the save was over before."""
        start = time.monotonic_ns()
        with self.lock:
            if self.ended:
                return False
            self.running = True
            reserved = {unit: at for at, unit in self.held}
        for some in self._backed([(u, at) for u in self.state.units if (at := reserved.get(u, u.at)) is not None]):
            self.copy(some)
        pending: list[tuple[Unit, int]] = []
        for unit in self.state.units:
            if unit in reserved or unit.at is not None:
                continue
            at = self.job.memory.alloc(unit.size)
            while at is None and not self.released.issuperset(unit.items()):
                self.copy(pending)
                pending = []
                if self.ended:
                    raise self.reply.error or errors.CairnError("the save ended before the state was staged")
                with self.job.arena.room:
                    self.job.arena.room.wait(0.1)
                at = self.job.memory.alloc(unit.size)
            if at is None:
                continue  # the saver process has fetched it, or does not need it
            with self.lock:
                self.held.append((at, unit))
            pending.append((unit, at))
        self.copy(pending)
        with self.fetching:  # from here on, fetches read staged units
            self.complete = True
        self.stop()
        self.begun.clear()  # a worker that is forked later could not destroy an event, and would abort
        self.saver.send("staged", generation=self.generation, all=True, stage_ns=time.monotonic_ns() - start,
                        stage_bytes=sum(u.nbytes() for u in self.state.units))
        return True

    def _backed(self, units: list[tuple[Unit, int]]) -> Iterator[list[tuple[Unit, int]]]:
        """Yields units whose places have memory. While the caller uses some, others get theirs."""
        arena = self.job.arena
        groups: list[list[tuple[Unit, int]]] = [[]]
        size = 0
        for unit, at in units:
            if size >= GROUP:
                groups.append([])
                size = 0
            groups[-1].append((unit, at))
            size += 0 if unit.at is not None or arena.is_backed(at, at + unit.size) else unit.size
        ahead = _Ahead(arena, groups[0])
        try:
            for group, following in itertools.zip_longest(groups, groups[1:]):
                ahead.wait()
                if following:
                    ahead = _Ahead(arena, following)
                yield group
        finally:
            ahead.join()

    def abandon(self, error: BaseException) -> None:
        """Has the saver process give up the save."""
        with contextlib.suppress(errors.CairnError):  # it has ended
            self.saver.send("abandon", generation=self.generation, error={"text": str(error) or repr(error)})

    def stop(self) -> None:
        """Notes that the shared memory is not being written any more."""
        with self.lock:
            self.running = False
            saved, ended = self.saved, self.ended
        if saved:
            self.let_go()
        if ended:
            self.end()

    def copy(self, pending: list[tuple[Unit, int]]) -> None:
        """Copies units and tells the saver where they are."""
        if not pending:
            return
        for _, at in pending:
            self.job.arena.view[at:at + 8] = bytes(8)
        units = copy_units(self.job.memory, pending, self.begun)
        for _, at in pending:
            self.job.arena.view[at:at + 8] = struct.pack("<Q", self.generation)
        self.saver.send("staged", {"units": units}, generation=self.generation)
        for unit, _ in pending:
            unit.staged = True
        self.release([])

    def release(self, items: list[int]) -> None:
        """Frees units whose items the save does not need any more, for units that have no room yet."""
        with self.lock:
            self.released.update(items)
            over = [(at, u) for at, u in self.held if u.staged and self.released.issuperset(u.items())]
            self.held = [(at, u) for at, u in self.held if (at, u) not in over] if over else self.held
        self.free(over)

    def free(self, units: list[tuple[int, Unit]]) -> None:
        for at, unit in units:
            if unit.staged and not self.job.closing:  # otherwise the process may be saving it still
                self.job.arena.view[at:at + 8] = bytes(8)
            self.job.arena.free(at, unit.size)

    def fetch(self, body: Body) -> None:
        """Copies a part of an item that is not staged, or was not when the saver asked for it, into the window."""
        try:
            item, n = body["item"], body["length"]
            unit, blob, place, t = next((u, b, p, t) for u in self.state.units for b, p,
                                        t in zip(u.blobs, u.places, u.memory) if item in b.items)
            self.job.arena.back(body["at"], body["at"] + n)
            memory = self.job.memory
            with self.fetching:
                with self.lock:
                    staged = next((at for at, u in self.held if u is unit and u.staged), None)
                if staged is not None:
                    source = memory.part(staged + place, blob.nbytes)
                elif self.complete and unit.at is None:
                    raise errors.CairnError("the save does not need this any more")
                else:
                    source = _memory.as_bytes(t)
                stream = memory.stream(source.device) if source.is_cuda else None
                with torch.cuda.stream(stream):
                    if stream is not None:
                        stream.wait_event(self.begun[source.device])
                    part = row_major(source, blob.starts[blob.items.index(item)], self.state.items[item],
                                      body["offset"], n)
                with memory.gather([(memory.part(body["at"], n), [part])], self.begun):
                    pass
            self.saver.send("fetched", fetch=body["fetch"])
        except Exception as e:
            self.saver.send("fetched", fetch=body["fetch"], error={"text": str(e) or repr(e)})

    def let_go(self) -> None:
        """Gives up the tensors of the state, which may be large: the save is over, but not its copies."""
        with self.lock:
            self.saved = True
            if not self.running:
                for unit in self.state.units:
                    unit.memory = []

    def end(self) -> None:
        """The save is over: its memory is free, or will be when nothing writes to it any more."""
        with self.lock:
            self.ended = True
            if self.running:
                return
            held, self.held = self.held, []
            units, self.state.units = self.state.units, []  # its tensors may be large
        for unit in units:
            if unit.at is not None and not self.job.closing:
                self.job.arena.view[unit.at:unit.at + 8] = bytes(8)
        self.free(held)
        # A save of a small state may be complete before run has noted that the state is staged.
        settle(self.staged, error=self.reply.error)


def events(units: list[Unit]) -> dict[torch.device, torch.cuda.Event]:
    """Returns an event for each device of some units. Copies wait for it, and not for later work of the device."""
    out: dict[torch.device, torch.cuda.Event] = {}
    for device in {u.device for u in units if u.device.type == "cuda"}:
        with torch.cuda.device(device):
            out[device] = torch.cuda.current_stream(device).record_event()
    return out


def copy_units(memory: _memory.Memory, pending: list[tuple[Unit, int]],
               begun: dict[torch.device, torch.cuda.Event]) -> str:
    """Copies units to their places in the shared memory, and returns them as a message has them, in JSON."""
    gathers = []
    for unit, at in pending:
        if unit.at is None:
            gathers.append((memory.part(at + STAMP, unit.size - STAMP), unit.memory))
    with memory.gather(gathers, begun):
        return f"[{','.join(unit.message(at) for unit, at in pending)}]"


class _Ahead:
    """Takes memory for units, in a thread of its own if that takes long."""

    def __init__(self, arena: Arena, units: list[tuple[Unit, int]]):
        self.error: Exception | None = None
        self.arena = arena
        self.units = [(at, at + u.size) for u, at in units if u.at is None and not arena.is_backed(at, at + u.size)]
        self.thread = threading.Thread(target=self._run, name="cairn-back", daemon=True) if self.units else None
        try:
            if self.thread is not None:
                self.thread.start()
        except RuntimeError:  # the interpreter is ending, and starts nothing more
            self.thread = None
            self._run()

    def _run(self) -> None:
        try:
            lo, hi = self.units[0]
            for a, b in self.units[1:]:  # parts that follow one another are taken together
                if a != hi:
                    self.arena.back(lo, hi)
                    lo = a
                hi = b
            self.arena.back(lo, hi)
        except Exception as e:
            self.error = e

    def join(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def wait(self) -> None:
        """Waits until the units have memory, or raises why they have not."""
        self.join()
        if self.error is not None:
            raise self.error
