"""The host memory of this process and its children."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from typing import TypedDict


def used() -> int:
    """Returns the bytes of host memory that this process and its children use.

    It is the sum of their proportional set sizes (Pss of /proc/PID/smaps_rollup) without pages of files:
    memory that several of them share is counted once, and the page cache not at all.
    """
    return sum(_used(pid) for pid in _family(os.getpid()))


def _used(pid: int) -> int:
    fields: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                name, _, rest = line.partition(":")
                if name in ("Pss", "Pss_File"):
                    fields[name] = int(rest.split()[0]) * 1024
    except OSError:  # it has ended, or is not ours
        return 0
    return fields.get("Pss", 0) - fields.get("Pss_File", 0)


def _family(root: int) -> list[int]:
    """Returns a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as f:
                children.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(name))
    out = [root]
    for pid in out:
        out += children.get(pid, [])
    return out


def settled() -> int:
    """Returns the memory in use after free memory has gone back to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
    return used()


class Peak(TypedDict, total=False):
    """A row with the memory of a system."""

    peak_host_gb: float


@contextlib.contextmanager
def peak(row: Peak, before: int) -> Iterator[None]:
    """Notes the most memory that was in use meanwhile, less the memory that was in use before.

    A thread looks at it again and again. What is measured in the meantime is slower, so nothing is timed
    there.
    """
    most, over = 0, threading.Event()

    def sample() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, used())
            over.wait(0.02)

    thread = threading.Thread(target=sample, name="cairn-bench-memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    most = max(most, used())
    if before:
        row["peak_host_gb"] = max(row.get("peak_host_gb", 0), (most - before) / 1e9)
