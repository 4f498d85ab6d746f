"""PyTorch's own saves, as they come and with its fastest settings."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import warnings
from typing import Any, Callable, Iterator

THREADS = 4

Save = Callable[[dict, str], Any]


@contextlib.contextmanager
def group(folder: str) -> Iterator[None]:
    """Makes this process the only rank of a job: async_save of PyTorch wants a process group with a CPU backend."""
    import torch.distributed as dist

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", init_method=f"file://{os.path.join(folder, 'meet')}", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, "meet"))


def failures() -> tuple[type[BaseException], ...]:
    """Returns the classes of errors of PyTorch's saves, one of which is not an Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    return Exception, CheckpointException


def save_threads(state: dict, path: str) -> None:
    """Saves with several threads."""
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=THREADS))


def tuned(device: str, size: int) -> Iterator[tuple[str, Save, Callable[[], None]]]:
    """Yields ways to call async_save with pinned memory that it keeps, the fastest first: a name, a function, and what ends it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import staging

    cuda = device == "cuda"
    shared = shutil.disk_usage("/dev/shm").free > 1.2 * size if os.path.isdir("/dev/shm") else False
    if hasattr(staging, "DefaultStager") and "async_stager" in inspect.signature(dcp.async_save).parameters and shared:
        # Without room in /dev/shm the process would be killed by SIGBUS.
        stager = staging.DefaultStager(staging.StagingOptions(
            use_pinned_memory=cuda, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=cuda))
        yield (f"{'pinned ' if cuda else ''}shared memory, {THREADS} threads",
               lambda state, path: dcp.async_save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=THREADS), async_stager=stager),
               stager.close)
    if cuda:
        writers: dict[str, Any] = {}

        def save(state: dict, path: str) -> Any:
            if path not in writers:  # a writer keeps the memory of its last save
                writers.clear()
                writers[path] = dcp.FileSystemWriter(path, thread_count=THREADS, cache_staged_state_dict=True)
            return dcp.async_save(state, storage_writer=writers[path])

        yield f"pinned memory, {THREADS} threads", save, writers.clear


def usable(device: str, size: int, state: dict, path: str, say: Callable[[str], None]) -> "tuple[str, Save, Callable[[], None]] | None":
    """Returns the first way that can save twice; some versions of PyTorch cannot."""
    for name, save, close in tuned(device, size):
        try:
            for _ in range(2):
                save(state, path).result()
            return name, save, close
        except failures() as e:
            say(f"dcp.async_save with {name}: {e!r}")
            close()
    return None
