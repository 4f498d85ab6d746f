"""Torch tensors over the shared memory, and copies between it and other tensors."""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from cairn import errors
from cairn._arena import Arena
from cairn._boxes import element_size

_SLICE = 8 << 20  # bytes that one thread copies at a time


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name that cairn has for a dtype."""
    name = str(dtype).removeprefix("torch.")
    element_size(name)  # raises if cairn does not have it
    return name


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype of a name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise errors.CastError(f"this version of torch has no {name}", ("tensor.cast",))
    return dtype


class Memory:
    """The shared memory as a tensor of bytes. CUDA copies straight from and to it, if there is CUDA."""

    def __init__(self, arena: Arena):
        self.arena = arena
        with torch.inference_mode(False):  # it changes in other modes too
            # the view keeps the memory while a tensor uses it
            self.bytes = torch.frombuffer(memoryview(arena.mem), dtype=torch.uint8)
        self._registered: list[tuple[int, int]] = []  # parts that CUDA knows
        self._edges: list[int] = []  # where they begin and end, ascending
        self._refused = False  # CUDA takes no more
        self._gathers = 0  # copies of gather that are under way
        self._closed = False
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._lock = threading.Lock()
        self._leases: list[tuple[int, int]] = []  # places and sizes, ascending
        self._returned: collections.deque[tuple[int, int]] = collections.deque()
        self._pool = ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2))), "cairn-copy")

    def alloc(self, n: int) -> int | None:
        """Returns the offset of n bytes, or None if there is no room now."""
        self.reclaim()
        return self.arena.alloc(n)

    def reclaim(self) -> None:
        """Frees what no tensor of lease uses any more."""
        with self._lock:
            while self._returned:
                at, n = self._returned.popleft()
                self._leases.remove((at, n))
                self.arena.free(at, n)

    def leased(self) -> int:
        """Returns the bytes that tensors of lease use."""
        self.reclaim()
        with self._lock:
            return sum(n for _, n in self._leases)

    def lease(self, at: int, n: int) -> Lease:
        """Lends n bytes that alloc gave to tensors. They are free when no tensor uses them any more."""
        with self._lock:
            bisect.insort(self._leases, (at, n))
        lease = Lease(self.arena.mem, at, n)
        # The garbage collector may call this at any time, so it takes no lock.
        weakref.finalize(lease, self._returned.append, (at, n)).atexit = False
        return lease

    def place(self, t: torch.Tensor) -> int | None:
        """Returns where the lease begins whose bytes a tensor uses, or None for other tensors."""
        if not self._leases or t.device.type != "cpu" or not t.numel():
            return None
        at = t.untyped_storage().data_ptr() - self.bytes.data_ptr()
        with self._lock:
            i = bisect.bisect_right(self._leases, (at, self.arena.size)) - 1
            return self._leases[i][0] if i >= 0 and at < sum(self._leases[i]) else None

    def part(self, at: int, n: int) -> torch.Tensor:
        """Returns n bytes of the memory."""
        self._check()
        return self.bytes[at:at + n]

    def _check(self) -> None:
        if self._closed:
            raise errors.SaverError("the saver was closed")

    def register(self, device: torch.device) -> None:
        """Registers memory that is in use with CUDA, so that copies to and from the device need no other memory."""
        with self._lock, torch.cuda.device(device):  # a thread of its own would take memory of the first device
            for lo, hi in [] if self._refused or self._closed else self.arena.backed:
                known = sorted(part for part in self._registered if lo <= part[0] < hi)  # parts with memory only grow
                for a, b in zip([lo, *(end for _, end in known)], [*(start for start, _ in known), hi]):
                    if a == b:
                        continue
                    if int(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr() + a, b - a, 0)) != 0:
                        self._refused = True  # copies are slower, and right
                        # Otherwise the next kernel of this thread, which may be the caller's, raises the error.
                        with contextlib.suppress(RuntimeError):
                            torch.empty(1, device=device).fill_(0)
                        return
                    self._registered.append((a, b))
                    self._edges = sorted({edge for part in self._registered for edge in part})

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copies bytes between a part of the memory and a device. Copies of CUDA may be under way when it returns."""
        host, other = (to, source) if to.device.type == "cpu" else (source, to)
        if not other.is_cuda:
            move(to, source)
            return
        # CUDA refuses a copy of memory that it was told about in two calls.
        n, at = host.numel(), host.data_ptr() - self.bytes.data_ptr()
        first, last = bisect.bisect_right(self._edges, at), bisect.bisect_left(self._edges, at + n)
        for a, b in itertools.pairwise([0, *(e - at for e in self._edges[first:last]), n]):
            if any(lo <= at + a < hi for lo, hi in self._registered):
                to[a:b].copy_(source[a:b], non_blocking=True)
            else:
                # CUDA may know this address from memory that was here before, and would copy from and to that.
                for lo, hi in itertools.pairwise([*range(a, b, _SLICE), b]):
                    move(to[lo:hi], source[lo:hi].to("cpu", copy=True))

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """Returns the stream for copies from and to a device."""
        index = device.index if device.index is not None else torch.cuda.current_device()
        with self._lock:
            if index not in self._streams:
                self._streams[index] = torch.cuda.Stream(index)
            return self._streams[index]

    @contextlib.contextmanager
    def gather(self, gathers: list[tuple[torch.Tensor, list[torch.Tensor]]],
               begun: dict[torch.device, torch.cuda.Event]) -> Iterator[None]:
        """Copies contiguous tensors into parts of the memory: (to, sources), one source after another, of one dtype.

        Copies from a CUDA device begin when its event of begun has happened, and go on while the body of the with
        statement runs. All copies are complete at its end.
        """
        with self._lock:
            self._check()
            self._gathers += 1
        host: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        devices: dict[torch.device, list[tuple[torch.Tensor, list[torch.Tensor]]]] = {}
        try:
            for to, sources in gathers:
                device = sources[0].device
                if device.type == "cpu":
                    host.append((to, sources))
                elif device.type == "cuda":
                    devices.setdefault(device, []).append((to, sources))
                else:
                    self._gather(to, sources)
            for device, some in devices.items():
                self.register(device)
                stream = self.stream(device)
                stream.wait_event(begun[device])
                with torch.cuda.stream(stream):
                    for to, sources in some:
                        self._gather(to, sources)
            self.copy_host(host)
            yield
        finally:
            try:
                for device in devices:
                    self.stream(device).synchronize()
            finally:
                with self._lock:
                    self._gathers -= 1
                    self._release()

    def _gather(self, to: torch.Tensor, sources: list[torch.Tensor]) -> None:
        """Copies sources, which follow one another. From a CUDA device, the copy may be under way when it returns."""
        if len(sources) == 1:
            self.copy(to, as_bytes(sources[0]))
            return
        with torch.no_grad():
            if sources[0].device.type == "cpu":
                if to.numel() < len(sources) << 15:  # PyTorch copies larger ones with several threads, see move
                    torch.cat([s.reshape(-1) for s in sources], out=to.view(sources[0].dtype))
                    return
            else:
                try:
                    # Many small copies to the host take longer than one copy on the device and one large one.
                    self.copy(to, as_bytes(torch._utils._flatten_dense_tensors(sources)))
                    return
                except torch.OutOfMemoryError:  # the device has no room for another copy
                    pass
            at = 0
            for source in sources:
                self.copy(to[at:at + source.nbytes], as_bytes(source))
                at += source.nbytes

    def copy_host(self, gathers: list[tuple[torch.Tensor, list[torch.Tensor]]]) -> None:
        """Copies in parallel, like gather, between the memory and tensors of the host."""
        work: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        for to, sources in gathers:
            if len(sources) > 1:
                work.append((to, sources))
            else:
                source = as_bytes(sources[0])
                work += [(to[at:at + _SLICE], [source[at:at + _SLICE]]) for at in range(0, to.numel(), _SLICE)]
        if len(work) == 1 or sum(to.numel() for to, _ in work) < 1 << 20:
            for to, sources in work:
                self._gather(to, sources)
            return
        copies = []
        try:
            for w in work:
                try:
                    copies.append(self._pool.submit(self._gather, *w))
                except RuntimeError:  # the job or the interpreter is ending, and starts nothing more
                    self._gather(*w)
            for copy in copies:
                copy.result()
        finally:
            wait(copies)  # after Ctrl-C too: the memory may be used again

    def close(self) -> None:
        """Gives the memory up.

        A save may still be copying, if its saver process has ended or took too long. Then the end of the copy does it.
        """
        self._pool.shutdown()
        with self._lock:
            self._closed = True
            self._release()

    def _release(self) -> None:
        """Has CUDA forget the memory after the last copy: what is at this address later is other memory."""
        if self._closed and not self._gathers:
            with contextlib.suppress(RuntimeError):  # a device that does not work any more
                for stream in self._streams.values():  # copies of a load that failed
                    stream.synchronize()
            for lo, _ in self._registered:
                torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr() + lo)
            self._registered, self._edges = [], []
            self.bytes = None  # type: ignore[assignment]


class Copies:
    """Copies of pieces from the shared memory to tensors, on a stream of their own if those are on a GPU.

    Copies wait for what the current streams of the devices have to do now.
    """

    def __init__(self, memory: Memory, devices: set[torch.device]):
        self.memory = memory
        # Pieces arrive in another thread, which has other streams than the caller.
        self.begun = {d: torch.cuda.current_stream(d).record_event() for d in devices if d.type == "cuda"}
        self._busy: set[torch.device] = set()
        self._lock = threading.Lock()

    def copy(self, flat: torch.Tensor, at: int, source: torch.Tensor) -> torch.cuda.Event | None:
        """Copies bytes to a tensor of bytes, from at on. The event, if any, is the end of the copy."""
        with torch.inference_mode(flat.is_inference()):  # only there may such tensors change
            to = flat[at:at + len(source)]
            if flat.device.type == "cpu":
                self.memory.copy_host([(to, [source])])
                to[:0].copy_(source[:0])  # so that autograd knows of the change
                return None
            if not flat.is_cuda:
                to.copy_(source)
                return None
            stream = self.memory.stream(flat.device)
            self.memory.register(flat.device)
            with torch.cuda.stream(stream):
                stream.wait_event(self.begun[flat.device])
                self.memory.copy(to, source)
                with self._lock:
                    self._busy.add(flat.device)
                return stream.record_event()

    def settle(self, _: BaseException | None = None) -> None:
        """Waits for the copies that are under way: their memory is used again after this."""
        with self._lock:
            busy, self._busy = self._busy, set()
        for device in busy:
            self.memory.stream(device).synchronize()

    def close(self) -> None:
        """Forgets the events: a worker that is forked later could not destroy one, and would abort."""
        self.begun.clear()


class Lease:
    """A part of the shared memory that tensors use."""

    def __init__(self, mem: Any, at: int, n: int):
        self.mem, self.at, self.n = mem, at, n

    def storage(self, start: int, end: int) -> torch.UntypedStorage:
        """Returns a storage of the bytes [start, end). The lease lasts as long as it is in use."""
        view = memoryview(self.mem)[self.at + start:self.at + end]
        weakref.finalize(view, _hold, self).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8).untyped_storage()


def _hold(_: Lease) -> None:
    """Does nothing: a finalizer refers to its arguments until it is called."""


def move(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copies the bytes of a contiguous tensor to another of as many bytes, in this thread.

    The threads of PyTorch wait for each other by busy loops. With several ranks on a host, and their saver processes,
    there are more of them than processors, and each copy takes many times as long.
    """
    if to.device.type == source.device.type == "cpu" and to.nbytes == source.nbytes:
        ctypes.memmove(to.data_ptr(), source.data_ptr(), to.nbytes)
    else:
        to.copy_(source)  # which checks the size


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a contiguous tensor, without a copy."""
    if not t.numel():
        return torch.empty(0, dtype=torch.uint8, device=t.device)
    # The stride of a dimension of one element may be anything, which view does not accept.
    return t.detach().as_strided((t.numel(),), (1,)).view(torch.uint8)


def allocate(dtype: str, sizes: list[int], device: Any) -> tuple[Callable[[], torch.Tensor],
                                                                 Callable[[int, memoryview], None]]:
    """Returns a function for a new tensor and one that copies a part of its bytes."""
    t = torch.empty(sizes, dtype=dtype_of(dtype), device=device)
    flat = as_bytes(t)

    def copy(at: int, data: memoryview) -> None:
        if len(data):
            move(flat[at:at + len(data)], torch.frombuffer(data, dtype=torch.uint8))

    return lambda: t, copy
