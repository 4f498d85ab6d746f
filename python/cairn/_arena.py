"""The memory that this process shares with its saver process. docs/saver.md specifies it."""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import sys
import tempfile
import threading
import weakref

from cairn.errors import OptionsError, SaverError

PAGE = 4096
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2
_MADV_POPULATE_WRITE = 23
_POPULATED = 64 << 20  # bytes that a thread populates at a time
_ZEROS = 1 << 20  # bytes that are written at a time to a file in place of memory
_libc = ctypes.CDLL(None, use_errno=True)


def default_ceiling() -> int:
    """Returns the most bytes to share: CAIRN_ARENA_BYTES, or half of the memory divided by the ranks of this host.

    If the container (cgroup) has a limit below the memory of the host, the limit counts.
    """
    if (text := os.environ.get("CAIRN_ARENA_BYTES")) is not None:
        if not text.isdecimal():
            raise OptionsError(f"CAIRN_ARENA_BYTES is {text!r}; want a number of bytes", ("storage.options",))
        return int(text)
    memory = min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return memory // 2 // (int(ranks) if ranks.isdecimal() and int(ranks) else 1)


def _limits(root: str = "/") -> list[int]:
    """Returns the limits of memory of the cgroups, of version 1 or 2, that this process is in."""
    out: list[int] = []
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as f:
            lines = f.read().splitlines()
    except OSError:
        return out
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # The limits of the groups above apply too. In a container the path may be one of the host, which is not
        # visible.
        parts = [p for p in path.split("/") if p not in ("", "..")]
        for n in range(len(parts) + 1):
            try:
                with open(os.path.join(root, base, *parts[:n], name)) as f:
                    out.append(int(f.read()))
            except (OSError, ValueError):  # there is no such group, or no limit
                pass
    return out


def _round(n: int) -> int:
    return max(64, (n + 63) // 64 * 64)  # no bytes have a place too


def memory_file() -> int | None:
    """Returns a file in memory that can be sealed, or None on systems that have no such files.

    A Python that was built for an old C library lacks os.memfd_create, even if the system has it. Conda and uv have
    distributed such Pythons.
    """
    if sys.platform != "linux":
        return None
    name, flags = b"cairn", 1 | 2  # MFD_CLOEXEC, MFD_ALLOW_SEALING
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name.decode(), flags)
    if hasattr(_libc, "memfd_create"):
        fd = _libc.memfd_create(name, flags)
    elif call := {"x86_64": 319, "aarch64": 279}.get(platform.machine()):
        fd = _libc.syscall(call, name, flags)
    else:
        raise SaverError(f"this Python and the C library of this system ({platform.machine()}) lack memfd_create")
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(fd)


class Arena:
    """Shared memory with a ceiling. It takes memory of the system on first use, and keeps it."""

    def __init__(self, ceiling: int):
        self.size = max(ceiling // PAGE * PAGE, 1 << 20)
        window = min(max(self.size // 8, PAGE), 64 << 20) // PAGE * PAGE
        self.window = self.size - window
        fd = memory_file()
        self._in_memory = fd is not None
        if fd is None:  # a file without a name, which no other process can open
            fd, path = tempfile.mkstemp(prefix="cairn-")
            os.unlink(path)
        self.fd = fd
        self._close = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, self.size)
        if self._in_memory:
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
        self.mem = mmap.mmap(self.fd, self.size)
        self.view = memoryview(self.mem)
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = [(0, self.window)]  # (start, end), ascending
        self._backed: list[tuple[int, int]] = []  # the parts that have memory
        self._writing = threading.Lock()  # held while zeros are written to the file
        self.room = threading.Condition(self._lock)

    def reserve(self, n: int) -> int | None:
        """Returns the offset of n bytes, a multiple of 64, or None if there is no room now. Call back before use."""
        n = _round(n)
        with self._lock:
            for i, (lo, hi) in enumerate(self._free):
                if hi - lo >= n:
                    if hi - lo == n:
                        del self._free[i]
                    else:
                        self._free[i] = (lo + n, hi)
                    return lo
        return None

    def alloc(self, n: int) -> int | None:
        """Returns the offset of n bytes that have memory, or None if there is no room now."""
        at = self.reserve(n)
        if at is not None:
            with contextlib.ExitStack() as undo:
                undo.callback(self.free, at, n)
                self.back(at, at + _round(n))
                undo.pop_all()
        return at

    def free(self, at: int, n: int) -> None:
        """Returns what reserve or alloc gave."""
        n = _round(n)
        with self._lock:
            i = bisect.bisect_left(self._free, (at, 0))
            lo, hi = at, at + n
            if i < len(self._free) and self._free[i][0] == hi:
                hi = self._free.pop(i)[1]
            if i > 0 and self._free[i - 1][1] == lo:
                i -= 1
                lo = self._free.pop(i)[0]
            self._free.insert(i, (lo, hi))
            self.room.notify_all()

    def back(self, lo: int, hi: int) -> None:
        """Makes sure that there is memory for a part, so that no access can fail."""
        lo, hi = lo // PAGE * PAGE, -(-hi // PAGE) * PAGE
        if self.is_backed(lo, hi):
            return
        if self._in_memory:
            self._populate(lo, hi)
            self._note(lo, hi)
            return
        with self._writing:  # another thread may have backed a part of it, and use it
            at = lo
            for a, b in [*self.backed, (hi, hi)]:
                while at < min(a, hi):  # a disk that is nearly full takes a part, and then nothing
                    at += os.pwrite(self.fd, bytes(min(_ZEROS, min(a, hi) - at)), at)
                at = max(at, b)
            self._note(lo, hi)

    def _note(self, lo: int, hi: int) -> None:
        """Notes that a part has memory."""
        with self._lock:
            merged: list[tuple[int, int]] = []
            for a, b in sorted([*self._backed, (lo, hi)]):
                if merged and a <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
                else:
                    merged.append((a, b))
            self._backed = merged

    def _populate(self, lo: int, hi: int) -> None:
        """Takes memory of the system, with several threads: to clear it takes most of the time."""
        anchor = ctypes.c_char.from_buffer(self.mem)
        start = ctypes.addressof(anchor)
        del anchor  # it would keep the memory from being closed
        parts = collections.deque((at, min(at + _POPULATED, hi)) for at in range(lo, hi, _POPULATED))
        failed: list[int] = []

        def work() -> None:
            while not failed:
                try:
                    a, b = parts.popleft()
                except IndexError:
                    return
                while _libc.madvise(ctypes.c_void_p(start + a), ctypes.c_size_t(b - a), _MADV_POPULATE_WRITE):
                    if (number := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
                        failed.append(number)
                        return

        threads = [threading.Thread(target=work, name="cairn-populate", daemon=True)
                   for _ in range(min(len(parts), os.cpu_count() or 1, 4) - 1)]
        try:
            for t in threads:
                t.start()
        except RuntimeError:  # the interpreter is ending, and starts nothing more
            threads = [t for t in threads if t.ident is not None]
        work()
        for t in threads:
            t.join()
        if failed == [errno.EINVAL] or errno.ENOSYS in failed:  # before Linux 5.14
            os.posix_fallocate(self.fd, lo, hi - lo)
        elif failed:
            raise OSError(failed[0], os.strerror(failed[0]))

    @property
    def backed(self) -> list[tuple[int, int]]:
        """The parts that have memory."""
        with self._lock:
            return list(self._backed)

    def is_backed(self, lo: int, hi: int) -> bool:
        """Reports whether a part has memory."""
        return any(a <= lo and hi <= b for a, b in self.backed)

    def largest(self) -> int:
        """Returns the bytes that alloc could give now."""
        with self._lock:
            return max((hi - lo for lo, hi in self._free), default=0)

    def close(self) -> None:
        """Gives the memory back to the system."""
        try:
            self.view.release()
            self.mem.close()
        except BufferError:
            pass  # a view of it is in use; the memory goes with that
        self._close()
