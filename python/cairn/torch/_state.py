"""A state dict as a list of tensors and values with names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from cairn import errors

_MAX_DEPTH = 256


@dataclass
class Leaf:
    """A tensor or a value, its name, its place in the state, and how to replace it there."""

    name: str
    path: Optional[list[Any]]
    value: Any
    replace: Callable[[Any], None] = lambda new: None


def flatten(state: Mapping) -> list[Leaf]:
    """Returns the leaves of a state. Dicts are opened, and lists with a tensor or a dict in them."""
    out: list[Leaf] = []
    _visit_map([], state, out)
    names: set[str] = set()
    for leaf in out:
        if leaf.name in names:
            raise errors.StateError(f"two entries of the state have the name {leaf.name!r}", ("plan.state",))
        names.add(leaf.name)
    return out


def _opens(v: Any, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        raise errors.StateError("the state is nested too deeply", ("plan.state",))
    if isinstance(v, (Mapping, torch.Tensor)) or _is_sharded(v):
        return True
    return isinstance(v, list) and any(_opens(x, depth + 1) for x in v)


def _visit_map(at: list[Any], m: Mapping, out: list[Leaf]) -> None:
    for k, v in m.items():
        if isinstance(k, bool) or not isinstance(k, (str, int)):
            raise errors.StateError(f"the key {k!r} is neither a string nor an integer", ("plan.state",))
        step = k if isinstance(k, str) else {"int": str(k)}
        _visit([*at, step], v, lambda new, m=m, k=k: m.__setitem__(k, new), out)


def _visit(at: list[Any], v: Any, replace: Callable[[Any], None], out: list[Leaf]) -> None:
    if len(at) > _MAX_DEPTH:
        raise errors.StateError("the state is nested too deeply", ("plan.state",))
    if len(at) == 1 and not isinstance(v, (torch.Tensor, Mapping)) and callable(getattr(v, "state_dict", None)) \
            and callable(getattr(v, "load_state_dict", None)):
        # A module or an optimizer: its tensors are filled in place; what else it has goes back to it at the end.
        inner = v.state_dict()
        _visit_map(at, inner, out)
        return
    if isinstance(v, Mapping):
        _visit_map(at, v, out)
        return
    if isinstance(v, list) and _opens(v):
        for i, x in enumerate(v):
            _visit([*at, {"pos": i}], x, lambda new, v=v, i=i: v.__setitem__(i, new), out)
        return
    name = ".".join(s if isinstance(s, str) else str(s.get("int", s.get("pos"))) for s in at)
    out.append(Leaf(name, at, v, replace))


def _is_sharded(v: Any) -> bool:
    return type(v).__name__ == "ShardedTensor" and hasattr(v, "local_shards")


@dataclass
class Part:
    """What this rank holds of a tensor: a box, or all of it."""

    shape: list[int]
    local: torch.Tensor
    offsets: Optional[list[int]] = None  # None: all of it

    @property
    def sizes(self) -> list[int]:
        return list(self.local.shape)


def parts(v: Any) -> Optional[list[Part]]:
    """Returns what this rank holds of a tensor, or None if v is not a tensor."""
    if _is_sharded(v):
        shape = list(v.metadata().size)
        return [Part(shape, s.tensor, list(s.metadata.shard_offsets)) for s in v.local_shards()]
    if not isinstance(v, torch.Tensor):
        return None
    if hasattr(v, "device_mesh") and hasattr(v, "placements"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if any(p.is_partial() for p in v.placements):
            raise errors.StateError("a DTensor whose sum is outstanding (Partial) cannot be saved: redistribute it first", ("plan.state",))
        local = v.to_local()
        if v.device_mesh.get_coordinate() is None:
            return []
        sizes, offsets = compute_local_shape_and_global_offset(v.shape, v.device_mesh, v.placements)
        if list(sizes) != list(local.shape):
            raise errors.StateError(f"a DTensor with a local shape of {list(local.shape)}, not {list(sizes)}", ("plan.state",))
        return [Part(list(v.shape), local, list(offsets))]
    return [Part(list(v.shape), v)]
