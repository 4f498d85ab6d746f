"""PyTorch's own saves, as they come and with its fastest settings."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from cairn.bench import disk

if TYPE_CHECKING:
    import torch

THREADS = 4

State: TypeAlias = "dict[str, torch.Tensor]"
Save = Callable[[State, str], Any]


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


def save_threads(state: State, path: str) -> None:
    """Saves with several threads."""
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=THREADS))


def tuned(device: str, size: int) -> Iterator[tuple[str, Callable[[], tuple[Save, Callable[[], None]]]]]:
    """Yields ways to call async_save with memory that it keeps, the fastest first: names, and makers of functions."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import staging

    cuda = device == "cuda"

    def stager() -> tuple[Save, Callable[[], None]]:
        kept = staging.DefaultStager(staging.StagingOptions(
            use_pinned_memory=cuda, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=cuda))

        def save(state: State, path: str) -> Any:
            return dcp.async_save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=THREADS),
                                  async_stager=kept)

        return save, kept.close

    def writer() -> tuple[Save, Callable[[], None]]:
        kept: dict[tuple[Any, ...], Any] = {}

        def save(state: State, path: str) -> Any:
            names = tuple(state)
            if names not in kept:  # a writer keeps the memory of its last save
                kept.clear()
                kept[names] = dcp.FileSystemWriter(path, thread_count=THREADS, cache_staged_state_dict=True)
            return dcp.async_save(state, checkpoint_id=path, storage_writer=kept[names])

        return save, kept.clear

    stages = hasattr(staging, "DefaultStager") and "async_stager" in inspect.signature(dcp.async_save).parameters
    # Without room in /dev/shm the process would be killed by SIGBUS.
    if stages and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 1.2 * size:
        yield f"{'pinned ' if cuda else ''}shared memory, {THREADS} threads", stager
    if cuda:
        yield f"pinned memory, {THREADS} threads", writer


def usable(device: str, size: int, state: State, folders: disk.Folders,
           say: Callable[[str], None]) -> tuple[str, Save, Callable[[], None]] | None:
    """Returns the first way that can save twice; some versions of PyTorch cannot."""
    for name, make in tuned(device, size):
        close: Callable[[], None] = lambda: None  # noqa: E731
        try:
            save, close = make()
            for _ in range(2):
                save(state, folders.next()).result()
            return name, save, close
        except failures() as e:
            say(f"dcp.async_save with {name}: {e!r}")
            close()
    return None
