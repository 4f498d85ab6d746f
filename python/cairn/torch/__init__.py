"""Saves and loads the state of PyTorch jobs.

    import cairn, cairn.torch
    state = {"model": model, "optim": optimizer, "step": step}
    if path := cairn.latest("run", wait=True):
        cairn.torch.load(state, path)
    cairn.torch.save(state, "run/step-100", step=100)
    handle = cairn.torch.async_save(state, "run/step-200", step=200)   # training goes on
    handle.result()

All ranks of the job make the same calls. The ranks of the job that loads may be other than
those that saved. In a process without ``torch.distributed`` the job has one rank.

``Writer`` and ``Reader`` are the storage of ``torch.distributed.checkpoint``:

    dcp.save(state, storage_writer=cairn.torch.Writer("run/step-100"))
    dcp.load(state, storage_reader=cairn.torch.Reader("run/step-100"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cairn.torch._handle import Handle
from cairn.torch._load import load
from cairn.torch._save import async_save, close, prepare, save

if TYPE_CHECKING:
    from cairn.torch.dcp import Reader, Stager, Writer

__all__ = ["Handle", "Reader", "Stager", "Writer", "async_save", "close", "load", "prepare", "save"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # torch.distributed.checkpoint takes long to import, and not every job needs it.
    if name in ("Reader", "Stager", "Writer"):
        from cairn.torch import dcp

        return getattr(dcp, name)
    raise AttributeError(f"module 'cairn.torch' has no attribute {name!r}")
