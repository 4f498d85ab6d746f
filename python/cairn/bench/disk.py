"""What the disk does without any format: plain writes and reads of a file, in the best of a few simple ways."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

BLOCK = 16 << 20
WAYS = [("buffered", 0, 1), ("buffered, 4 threads", 0, 4), ("O_DIRECT", os.O_DIRECT, 1),
        ("O_DIRECT, 4 threads", os.O_DIRECT, 4)]


class Raw:
    """A file of random bytes. Its methods return seconds for each byte."""

    def __init__(self, path: str, size: int):
        self.path = path
        self.blocks = max(4, size // BLOCK)
        self.size = self.blocks * BLOCK

    def write(self, flags: int, threads: int) -> float:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with self._open(os.O_WRONLY | os.O_CREAT | flags) as fd, mmap.mmap(-1, 4 * BLOCK) as data:
            data[:] = os.urandom(4 * BLOCK)
            view = memoryview(data)
            begin = time.perf_counter()
            self._each(threads, lambda i: _whole(os.pwrite(fd, view[i % 4 * BLOCK:(i % 4 + 1) * BLOCK], i * BLOCK)))
            os.fsync(fd)
            seconds = time.perf_counter() - begin
            view.release()
        return seconds / self.size

    def read(self, flags: int, threads: int, cold: bool) -> float:
        if cold:
            evict(self.path)
        buffers = [mmap.mmap(-1, BLOCK) for _ in range(threads)]
        for b in buffers:
            b[:] = bytes(BLOCK)
        with self._open(os.O_RDONLY | flags) as fd:
            begin = time.perf_counter()
            free = list(buffers)

            def one(i: int) -> None:
                buffer = free.pop()
                _whole(os.preadv(fd, [buffer], i * BLOCK))
                free.append(buffer)

            self._each(threads, one)
            seconds = time.perf_counter() - begin
        for b in buffers:
            b.close()
        return seconds / self.size

    @contextlib.contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        fd = os.open(self.path, flags, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    def _each(self, threads: int, call: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(call, range(self.blocks)):
                pass


def _whole(n: int) -> None:
    if n != BLOCK:
        raise OSError(f"{n} bytes of {BLOCK} were moved")


class Folders:
    """A new folder for each save, as trainings have them. last is the newest."""

    def __init__(self, path: str):
        self.path, self.count, self.last = path, 0, path

    def next(self) -> str:
        """Returns a new name and removes the folder or file before it.

        It is called between measurements: a disk that frees blocks writes at half its speed.
        """
        if os.path.isdir(self.last):
            shutil.rmtree(self.last)
        elif os.path.exists(self.last):
            os.unlink(self.last)
        self.count += 1
        self.last = f"{self.path}-{self.count}"
        return self.last


def best(measure: Callable[[int, int], float], times: int, direct: bool = True) -> tuple[float, str]:
    """Measures all ways once, and the fastest of them again. Returns its median and its name."""
    found: list[tuple[float, str, int, int]] = []
    for name, flags, threads in WAYS:
        if flags and not direct:
            continue
        try:
            found.append((measure(flags, threads), name, flags, threads))
        except OSError:
            if not flags:  # not every file system has O_DIRECT
                raise
    first, name, flags, threads = min(found)
    return statistics.median([first, *(measure(flags, threads) for _ in range(times - 1))]), name


def files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def _each_file(path: str, call: Callable[[int], None]) -> None:
    for name in files(path):
        fd = os.open(name, os.O_RDONLY)
        try:
            call(fd)
        finally:
            os.close(fd)


def flush(path: str) -> None:
    """Makes files durable, as cairn's are when a save returns."""
    _each_file(path, os.fsync)


def evict(path: str) -> None:
    """Takes files out of the page cache."""
    def drop(fd: int) -> None:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    _each_file(path, drop)


def fetch(path: str) -> None:
    """Brings files into the page cache."""
    buffer = memoryview(bytearray(BLOCK))

    def read(fd: int) -> None:
        while os.readv(fd, [buffer]):
            pass

    _each_file(path, read)
