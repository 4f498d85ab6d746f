"""States that can be loaded without a state to fill: for frameworks that keep checkpoints in dicts of their own."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Container, Mapping
from typing import Any

import torch

from cairn import errors
from cairn._address import address_of
from cairn._messages import Entry
from cairn._request import SaveRequest
from cairn.runs import Member, loaded
from cairn.torch import _memory
from cairn.torch._handle import Handle
from cairn.torch._job import job
from cairn.torch._load import Loading
from cairn.torch._remembered import describe
from cairn.torch._save import begin
from cairn.torch._state import StateDict, Tree

PATIENCE = 40 * 60  # seconds; a saver process that has lost its trainer gives up after 30 minutes


def async_save_whole(state: StateDict, path: str | os.PathLike[str] | Member, step: int | None, alone: bool,
                     may_differ: bool = False, metrics: Mapping[str, float] | None = None,
                     overwrite: bool | None = None) -> Handle:
    """Saves a state in the background, as cairn.torch.async_save does.

    With alone, only this rank saves. The state has no sharded tensors then.
    """
    request = SaveRequest(path=path, step=step, metrics=metrics, overwrite=overwrite, tensors_may_differ=may_differ)
    return begin(request, lambda j: describe(j, state, alone, whole=True), alone=alone)


def key_of(e: Entry) -> str:
    """Returns the key of a state that an entry is below, as a string."""
    first = (e.get("path") or [e["name"]])[0]
    return str(first["int"]) if isinstance(first, dict) else str(first)


def load_whole(path: str | os.PathLike[str], *, keys: Container[str] | None = None, device: Any = None,
               allow_pickle: bool = False, patience: float = 0) -> StateDict:
    """Returns a state as it was saved, in dicts and lists, or some keys of it. Each rank calls it on its own.

    If a saver process is still writing the checkpoint, it waits for up to patience seconds.
    """
    j = job(alone=True)
    saver = j.own()
    end = time.monotonic() + patience
    while True:
        try:
            described = saver.describe(address_of(path))
            break
        except errors.UnderWayError:
            if time.monotonic() >= end:
                raise
        time.sleep(0.2)
    root, loading = Tree(), Loading(j.memory, allow_pickle)
    tied: dict[int, torch.Tensor] = {}

    for e in described.get("entries") or []:
        name, steps = e["name"], e.get("path") or [e["name"]]
        if keys is not None and key_of(e) not in keys:
            continue
        if "codec" in e:
            loading.value(name, functools.partial(root.place, steps))
            continue
        if (alias := e.get("alias", 0)) in tied:
            root.place(steps, tied[alias])
            continue
        shape = list(e.get("shape") or [])
        t = torch.empty(shape, dtype=_memory.dtype_of(e["dtype"]), device=device)
        if alias:
            tied[alias] = t
        root.place(steps, t)
        loading.tensor(name, shape, [0] * len(shape), t)
    loading.run(saver, address_of(path), {}, save_id=described.get("save_id", ""))
    loaded(address_of(path), described.get("save_id", ""))
    return root.result()
