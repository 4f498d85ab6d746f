"""Loading: the saver process reads and verifies, and pieces are copied to tensors as they arrive."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any, Optional

import torch

from cairn import errors, values
from cairn.checkpoint import PIECE, cut
from cairn.torch import _memory
from cairn.torch._job import job
from cairn.torch._state import Leaf, flatten, parts


def load(state: Mapping, path: "str | os.PathLike[str]", *, strict: bool = True, format: Optional[str] = None,
         format_options: Optional[dict] = None, allow_pickle: bool = False) -> list[str]:
    """Fills a state from a checkpoint of any format. All ranks call it.

    Tensors are filled in place, each with the part that this rank holds; elements are
    converted to its dtype. Values are replaced. Without strict, names that the checkpoint
    does not have are left as they are, and returned. Objects that were pickled are made
    again only with allow_pickle, because a pickle can run any code.
    """
    j = job()
    error, missing = None, []
    try:
        missing = _load(j, state, os.fspath(path), strict, format, format_options, allow_pickle)
    except BaseException as e:  # the other ranks must know
        error = e
    j.agree(error)
    return missing


def _load(j: Any, state: Mapping, path: str, strict: bool, format: Optional[str], options: Optional[dict], allow_pickle: bool) -> list[str]:
    # Modules and optimizers give copies of their dicts, so what was replaced in those goes back to them.
    owners = {k: v for k, v in state.items() if not isinstance(v, (torch.Tensor, Mapping)) and callable(getattr(v, "state_dict", None))
              and callable(getattr(v, "load_state_dict", None))}
    opened = {k: v.state_dict() if k in owners else v for k, v in state.items()}
    leaves = flatten(opened)
    wants: list[dict] = []
    targets: list[Any] = []
    late: list[tuple[torch.Tensor, torch.Tensor]] = []
    for leaf in leaves:
        held = parts(leaf.value)
        if held is None:
            wants.append({"name": leaf.name})
            targets.append(leaf)
            continue
        for p in held:
            t = p.local.detach()
            flat = t
            if not t.is_contiguous():
                flat = torch.empty(t.shape, dtype=t.dtype, device=t.device)
                late.append((t, flat))
            if t.numel() == 0 and p.offsets is not None:
                continue
            entry = {"name": leaf.name, "dtype": _memory.dtype_name(t.dtype)}
            for want, at in cut(entry, p.shape, p.offsets or [0] * len(p.shape), p.sizes):
                wants.append(want)
                targets.append((_memory.as_bytes(flat), at))
    saver = j.own()
    memory = j.memory
    streams: dict[torch.device, Any] = {}
    replaced: list[tuple[Leaf, Any]] = []

    def piece(i: int, data: Optional[memoryview], value: Any) -> None:
        target = targets[i]
        if data is None:
            replaced.append((target, _made(target.name, values.decode(*value), allow_pickle)))
            return
        flat, at = target
        if not len(data):
            return
        source = torch.frombuffer(data, dtype=torch.uint8)
        dst = flat[at:at + len(data)]
        if not flat.is_cuda:
            dst.copy_(source)
            return
        stream = memory.stream(flat.device)
        if flat.device not in streams:
            stream.wait_stream(torch.cuda.current_stream(flat.device))
            streams[flat.device] = stream
        with torch.cuda.stream(stream):
            dst.copy_(source, non_blocking=True)
        stream.synchronize()  # the memory is used again after this

    missing = saver.load(path, wants, piece, format=format, format_options=options, allow_missing=not strict)
    for t, flat in late:
        t.copy_(flat)
    for leaf, v in replaced:
        leaf.replace(v)
    for k, v in opened.items():
        if k in owners:
            owners[k].load_state_dict(v)
        else:
            state[k] = v
    return missing


def _made(name: str, v: Any, allow_pickle: bool) -> Any:
    """Makes an object of a class again."""
    if not isinstance(v, values.Object):
        return v
    if (v.module, v.name) == ("cairn.torch", "Pickled"):
        data = io.BytesIO(v.fields["args"][0])
        try:
            return torch.load(data, weights_only=not allow_pickle)
        except Exception as e:
            if allow_pickle:
                raise
            raise errors.RepresentError(f"{name!r} was pickled; load it with allow_pickle=True if you trust the checkpoint: {e}",
                                        ("storage.represent",)) from None
    return v
