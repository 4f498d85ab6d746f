"""The description of a state for the saver process: its items, and the memory that is copied for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cairn import errors
from cairn._messages import Item, encode
from cairn.torch import _memory
from cairn.torch._pickled import value_item
from cairn.torch._state import Leaf, Part, check_memory
from cairn.torch._units import JOINED, SMALL, UNIT, Blob, Unit, span

_FULL = Unit(size=UNIT + 1)


class State:
    """The description of a state for the saver process: leaves, with the parts on this rank, or None for a value."""

    def __init__(self, leaves: Iterable[tuple[Leaf, list[Part] | None]], memory: _memory.Memory):
        self.memory = memory
        self.items: list[Item] = []
        self.texts: list[str] = []  # the items in JSON, in the first parts of the list if not in all
        self.absent: list[str] = []
        storages: dict[Any, list[tuple[int, torch.Tensor]]] = {}
        for leaf, held in leaves:
            place = place_of(leaf)
            if held is None:
                self.items.append(value_item(place, leaf.value))
                continue
            held = [p for p in held if p.local.numel() or not p.shape or 0 in p.shape]
            if not held:
                self.absent.append(leaf.name)
                continue
            for p in held:
                t = p.local
                try:
                    item: Item = {**place, "dtype": _memory.dtype_name(t.dtype), "shape": p.shape}
                except errors.RepresentError as e:
                    raise errors.RepresentError(f"{leaf.name!r}: {e}", e.codes) from None
                if p.offsets is not None:
                    item["sharded"], item["offsets"], item["sizes"] = True, p.offsets, list(t.shape)
                if leaf.value.requires_grad:
                    item["requires_grad"] = True
                if leaf.may_differ:
                    item["may_differ"] = True
                t = t.detach()
                check_memory(leaf.name, t)
                if t.is_conj() or t.is_neg():
                    t = t.resolve_conj().resolve_neg()
                index = len(self.items)
                self.items.append(item)
                key = (t.device, t.untyped_storage().data_ptr()) if t.numel() else ("empty", index)
                storages.setdefault(key, []).append((index, t))
        self.aliases = 0
        self.units: list[Unit] = []
        self._shared_units: dict[tuple[torch.device, torch.dtype], Unit] = {}
        self._staged_units: dict[int, Unit] = {}
        for tensors in storages.values():
            self._add(*(self._blob(*tensors[0]) if len(tensors) == 1 else self._shared(tensors)))

    def message(self) -> str:
        """Returns the items in JSON."""
        self.texts += [encode(item) for item in self.items[len(self.texts):]]
        return f"[{','.join(self.texts)}]"

    def _blob(self, index: int, t: torch.Tensor) -> tuple[Blob, torch.Tensor]:
        """Returns a tensor that shares its storage with no other."""
        if t.is_contiguous() or span(t) > 2 * t.nbytes:
            return Blob(t.nbytes, [index], [0]), t.contiguous()
        return self._shared([(index, t)])

    def _shared(self, tensors: list[tuple[int, torch.Tensor]]) -> tuple[Blob, torch.Tensor]:
        """Returns the part of a storage that some tensors use."""
        same: dict[Any, list[int]] = {}
        for index, t in tensors:
            # A shard is the same as another only if both are the same box of their tensors.
            item = self.items[index]
            box = (tuple(item["shape"]), tuple(item["offsets"])) if "offsets" in item else None
            same.setdefault((t.data_ptr(), t.dtype, t.shape, t.stride(), box), []).append(index)
        for group in same.values():
            if len(group) > 1:
                self.aliases += 1
                for index in group:
                    self.items[index]["alias"] = self.aliases
        starts = [int(t.storage_offset()) * t.element_size() for _, t in tensors]
        lo = min(starts)
        hi = max(start + span(t) for start, (_, t) in zip(starts, tensors))
        # Storages of memory that is not torch's, such as numpy's, may begin at the same place and end elsewhere.
        largest = max((t.untyped_storage() for _, t in tensors), key=torch.UntypedStorage.nbytes)
        raw = torch.empty(0, dtype=torch.uint8, device=tensors[0][1].device).set_(largest, lo, (hi - lo,), (1,))
        for index, t in tensors:
            if not t.is_contiguous():
                self.items[index]["strides"] = list(t.stride())
        if len(same) == 1 and tensors[0][1].is_contiguous():
            raw = tensors[0][1]  # all of them are the same
        return Blob(hi - lo, [index for index, _ in tensors], [start - lo for start in starts]), raw

    def _add(self, blob: Blob, t: torch.Tensor) -> None:
        """Adds a blob to a unit."""
        if (at := self.memory.place(t)) is not None:
            if at not in self._staged_units:
                self.units.append(self._staged_units.setdefault(at, Unit(at=at)))
            unit = self._staged_units[at]
            unit.blobs.append(blob)
            unit.memory.append(t)
            unit.places.append(t.data_ptr() - self.memory.bytes.data_ptr() - at)
            return
        small = blob.nbytes < SMALL
        if small and t.dtype not in JOINED:
            t = _memory.as_bytes(t)
        key = (t.device, t.dtype)
        unit = self._shared_units.get(key, _FULL) if small else _FULL
        if unit.size + blob.nbytes > UNIT:
            unit = Unit()
            self.units.append(unit)
            if small:
                self._shared_units[key] = unit
        unit.add(blob, t)


def place_of(leaf: Leaf) -> Item:
    """Returns the name of a leaf and, if it is known, its path."""
    return {"name": leaf.name} if leaf.path is None else {"name": leaf.name, "path": leaf.path}
