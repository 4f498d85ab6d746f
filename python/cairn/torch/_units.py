"""What is copied into the shared memory as a whole: parts of storages, and units of several of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from cairn._messages import Item, encode
from cairn.torch import _memory

SMALL = 1 << 20  # smaller memory is staged together, in units of up to UNIT bytes
UNIT = 16 << 20
STAMP = 64  # bytes before the blobs of a unit
# Small tensors of these dtypes are joined as they are. Those of others are joined as bytes.
JOINED = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16,
                    torch.int8, torch.uint8, torch.bool})


@dataclass(slots=True)
class Blob:
    """What is copied as a whole: a tensor, or the part of a storage that several tensors share."""

    nbytes: int
    items: list[int]
    starts: list[int]  # of each item in the blob


@dataclass(eq=False, slots=True)
class Unit:
    """Blobs of one device that are staged and freed together, behind one stamp. Several blobs have one dtype."""

    blobs: list[Blob] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of each blob after the unit's beginning
    size: int = STAMP
    memory: list[torch.Tensor] = field(default_factory=list)  # of each blob; contiguous
    said: dict[int, str] = field(default_factory=dict)  # the last message, by at; later saves have the same unit
    staged: bool = False  # the saver process knows where it is
    at: int | None = None  # where it is in the shared memory, if a Stager has staged it already

    @property
    def device(self) -> torch.device:
        return self.memory[0].device

    def items(self) -> Iterator[int]:
        return (i for b in self.blobs for i in b.items)

    def nbytes(self) -> int:
        """Returns the bytes of all blobs."""
        return self.size - STAMP if self.at is None else sum(b.nbytes for b in self.blobs)

    def add(self, blob: Blob, memory: torch.Tensor) -> None:
        """Adds a blob behind the last one. The first begins at a multiple of 64, so all are aligned for their dtype."""
        self.places.append(self.size)
        self.blobs.append(blob)
        self.memory.append(memory)
        self.size += blob.nbytes

    def message(self, at: int) -> str:
        """Returns the items and their places in JSON, if the unit is at an offset of the shared memory."""
        if (text := self.said.get(at)) is None:
            places = [at + place + start for blob, place in zip(self.blobs, self.places) for start in blob.starts]
            text = encode({"stamp": at, "items": list(self.items()), "at": places})
            self.said.clear()  # another save may be staged at the same time
            self.said[at] = text
        return text


def span(t: torch.Tensor) -> int:
    """Returns the bytes from the first element of a tensor, which has some, to the end of its last."""
    return (sum((d - 1) * s for d, s in zip(t.shape, t.stride())) + 1) * t.element_size()


def row_major(source: torch.Tensor, start: int, item: Item, offset: int, n: int) -> torch.Tensor:
    """Returns n bytes, after offset, of the row-major form of an item that begins at start in the bytes of its blob."""
    if "strides" not in item:
        return source[start + offset:start + offset + n]
    shape, size = item.get("sizes") or item["shape"], _memory.dtype_of(item["dtype"]).itemsize
    view = source.as_strided([*shape, size], [*(s * size for s in item["strides"]), 1],
                             int(source.storage_offset()) + start)
    row = view[0].numel()
    first = offset // row
    rows = view[first:-(-(offset + n) // row)].contiguous()
    return rows.reshape(-1)[offset - first * row:][:n]
