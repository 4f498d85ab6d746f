"""Saves and loads the state of PyTorch jobs.

    >>> import cairn, cairn.torch, torch
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> state = {"model": model, "optim": optimizer, "step": 0}
    >>> if path := cairn.latest("run", wait=True):
    ...     report = cairn.torch.load(state, path)
    >>> report = cairn.torch.save(state, "run/step-100", step=100)
    >>> handle = cairn.torch.async_save(state, "run/step-200", step=200)   # training goes on
    >>> handle.result().step
    200

All ranks of the job make the same calls. A job with any number of ranks can load a checkpoint. In a process without
``torch.distributed`` the job has one rank.

``Writer`` and ``Reader`` are a storage for ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cairn.torch._follow import Follower, Prepared, follow
from cairn.torch._handle import Handle
from cairn.torch._lazy import LazyWeights
from cairn.torch._load import load
from cairn.torch._perrank import PerRank, RandomState
from cairn.torch._preempt import Preemption, on_signal
from cairn.torch._publish import publish
from cairn.torch._save import async_save, close, prepare, save
from cairn.torch._state import Shards
from cairn.torch._weights import weights

if TYPE_CHECKING:
    from cairn.torch.dcp import Reader, Stager, Writer

__all__ = ["Follower", "Handle", "LazyWeights", "PerRank", "Preemption", "Prepared", "RandomState", "Reader", "Shards",
           "Stager", "Writer", "async_save", "close", "follow", "load", "on_signal", "prepare", "publish", "save",
           "weights"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # torch.distributed.checkpoint takes long to import, and not every job needs it.
    if name in ("Reader", "Stager", "Writer"):
        from cairn.torch import dcp

        return getattr(dcp, name)
    raise AttributeError(f"module 'cairn.torch' has no attribute {name!r}")
