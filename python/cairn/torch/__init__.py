"""Saves and loads the state of PyTorch jobs.

    import cairn.torch
    cairn.torch.save({"model": model, "optim": optimizer, "step": step}, "run/step-100", step=100)
    handle = cairn.torch.async_save(state, "run/step-200")   # training goes on
    cairn.torch.load(state, cairn.latest("run"))

All ranks of the job make the same calls. The ranks of the job that loads may be other than
those that saved. In a process without ``torch.distributed`` the job has one rank.
"""

from __future__ import annotations

from cairn.torch._job import close
from cairn.torch._load import load
from cairn.torch._save import Handle, async_save, save

__all__ = ["Handle", "async_save", "close", "load", "save"]
