"""Torch tensors over the shared memory, and copies between it and other tensors."""

from __future__ import annotations

import collections
import math
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch

from cairn import errors
from cairn.saver import Arena

_SLICE = 32 << 20  # bytes that one thread copies at a time


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name that cairn has for a dtype."""
    return str(dtype).removeprefix("torch.")


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
        self.bytes = torch.frombuffer(arena.mem, dtype=torch.uint8)
        self._registered: list[tuple[int, int]] = []
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._lock = threading.Lock()
        self._leased = 0
        self._returned: "collections.deque[tuple[int, int]]" = collections.deque()
        self._pool = ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2))), "cairn-copy")

    def alloc(self, n: int) -> Optional[int]:
        """Returns the offset of n bytes, or None if there is no room now."""
        self.reclaim()
        return self.arena.alloc(n)

    def reclaim(self) -> None:
        """Frees what no tensor of lease uses any more."""
        while self._returned:
            at, n = self._returned.popleft()
            self._leased -= n
            self.arena.free(at, n)

    def leased(self) -> int:
        """Returns the bytes that tensors of lease use."""
        self.reclaim()
        return self._leased

    def lease(self, at: int, n: int) -> torch.Tensor:
        """Returns n bytes that alloc gave, with a storage of their own. They are free when no tensor has this storage any more."""
        self._leased += n
        view = memoryview(self.arena.mem)[at:at + n]
        # The garbage collector may call this at any time, so it takes no lock.
        weakref.finalize(view, self._returned.append, (at, n)).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8)

    def place(self, t: torch.Tensor) -> Optional[int]:
        """Returns where the storage of a tensor of lease begins, or None for other tensors."""
        if t.device.type != "cpu" or not t.numel():
            return None
        at = t.untyped_storage().data_ptr() - self.bytes.data_ptr()
        return at if 0 <= at < self.arena.window else None

    def part(self, at: int, n: int) -> torch.Tensor:
        """Returns n bytes of the memory."""
        return self.bytes[at:at + n]

    def register(self) -> None:
        """Tells CUDA about memory that is in use, so that copies need no other memory on their way."""
        if not torch.cuda.is_available():
            return
        with self._lock:
            for lo, hi in self.arena.backed:
                for a, b in self._registered:  # what is new lies after or between what is known
                    if a <= lo < b:
                        lo = b
                if lo >= hi:
                    continue
                pieces, at = [], lo
                for a, b in sorted(self._registered):
                    if at < a < hi:
                        pieces.append((at, a))
                        at = b
                if at < hi:
                    pieces.append((at, hi))
                for a, b in pieces:
                    code = int(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr() + a, b - a, 0))
                    if code != 0:
                        return  # copies are slower, and right
                    self._registered.append((a, b))

    def stream(self, device: torch.device) -> "torch.cuda.Stream":
        """Returns the stream for copies from and to a device."""
        index = device.index if device.index is not None else torch.cuda.current_device()
        with self._lock:
            if index not in self._streams:
                self._streams[index] = torch.cuda.Stream(index)
            return self._streams[index]

    def copy_host(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copies bytes between tensors in host memory, in parallel: (to, from)."""
        work = []
        for dst, src in pairs:
            for at in range(0, dst.numel(), _SLICE):
                work.append((dst[at:at + _SLICE], src[at:at + _SLICE]))
        if len(work) == 1 or sum(d.numel() for d, _ in work) < 1 << 20:
            for d, s in work:
                d.copy_(s)
            return
        # A thread takes neighbours, so that there are few tasks.
        size = max(1, math.ceil(len(work) / (4 * self._pool._max_workers)))

        def run(part: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
            for d, s in part:
                d.copy_(s)

        for f in [self._pool.submit(run, work[i:i + size]) for i in range(0, len(work), size)]:
            f.result()

    def close(self) -> None:
        self._pool.shutdown()
        for lo, _ in self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr() + lo)
        self._registered = []
        self.bytes = None  # type: ignore[assignment]


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a contiguous tensor, without a copy."""
    return t.detach().reshape(-1).view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8, device=t.device)


def allocate(dtype: str, sizes: list[int], device: Any) -> tuple[Callable[[], torch.Tensor], Callable[[int, memoryview], None]]:
    """Returns a function for a new tensor and one that copies a part of its bytes."""
    t = torch.empty(sizes, dtype=dtype_of(dtype), device=device)
    flat = as_bytes(t)

    def copy(at: int, data: memoryview) -> None:
        if len(data):
            flat[at:at + len(data)].copy_(torch.frombuffer(data, dtype=torch.uint8))

    return lambda: t, copy
