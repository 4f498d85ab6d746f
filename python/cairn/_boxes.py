"""Boxes of tensors: the boxes of indices, and how large boxes are read in pieces."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from cairn import errors
from cairn._messages import Entry, Want

# The bytes of an element, the format of memoryviews in all supported Pythons, and the name that numpy has for it.
DTYPES: dict[str, tuple[int, str | None, str | None]] = {
    "float64": (8, "d", "float64"), "float32": (4, "f", "float32"), "float16": (2, None, "float16"),
    "bfloat16": (2, None, None), **{f"float8_{kind}": (1, None, None) for kind in
                                    ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
    "int64": (8, "q", "int64"), "int32": (4, "i", "int32"), "int16": (2, "h", "int16"), "int8": (1, "b", "int8"),
    "uint64": (8, "Q", "uint64"), "uint32": (4, "I", "uint32"), "uint16": (2, "H", "uint16"),
    "uint8": (1, "B", "uint8"), "bool": (1, "?", "bool"),
    "complex64": (8, None, "complex64"), "complex128": (16, None, "complex128"),
}

PIECE = 64 << 20
"""Large tensors are read in pieces of about this many bytes."""


def element_size(dtype: str) -> int:
    """Returns the bytes of an element."""
    if dtype not in DTYPES:
        raise errors.RepresentError(f"elements of the type {dtype!r} can be neither saved nor loaded",
                                    ("storage.represent",))
    return DTYPES[dtype][0]


def box(shape: Sequence[int], index: Any) -> tuple[list[int], list[int], list[Any]]:
    """Returns the smallest box that has the elements of an index, and the rest of the selection.

    The rest has one entry for each dimension: None, 0 for a single index, or a slice with a step.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ellipsis")
    for i in dots:
        parts[i:i + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise IndexError(f"{len(parts)} indices for {len(shape)} dimensions")
    parts += [slice(None)] * (len(shape) - len(parts))
    offsets: list[int] = []
    sizes: list[int] = []
    after: list[Any] = []
    for n, p in zip(shape, parts):
        if isinstance(p, slice):
            r = range(n)[p]
            lo, hi = (min(r[0], r[-1]), max(r[0], r[-1]) + 1) if r else (0, 0)
            after.append(None if r.step == 1 or not r else slice(None, None, r.step))
        else:
            if isinstance(p, bool):
                raise TypeError("an index is an integer, a slice or an ellipsis, not a bool")
            i = operator.index(p)
            if not -n <= i < n:
                raise IndexError(f"index {i} of a dimension of {n}")
            lo, hi = i % n, i % n + 1
            after.append(0)
        offsets.append(lo)
        sizes.append(hi - lo)
    return offsets, sizes, after


def cut(entry: Entry | Want, shape: list[int], offsets: list[int], sizes: list[int],
        most: int = PIECE) -> Iterator[tuple[Want, int]]:
    """Yields the wants for a box, each of at most ``most`` bytes, and the offset of each in the bytes of the box."""
    want: Want = {"name": entry["name"], "dtype": entry["dtype"], "shape": shape}
    row = element_size(entry["dtype"])
    if math.prod(sizes) * row <= most:
        yield {**want, "offsets": offsets, "sizes": sizes, "nbytes": math.prod(sizes) * row}, 0
        return
    # A piece is some rows of the last dimension that is too large to be part of a row.
    dim = len(sizes) - 1
    while dim > 0 and row * sizes[dim] <= most:
        row *= sizes[dim]
        dim -= 1
    rows, at = max(1, most // row), 0
    for index in itertools.product(*(range(n) for n in sizes[:dim])):
        for first in range(0, sizes[dim], rows):
            n = min(rows, sizes[dim] - first)
            start = [*index, first, *[0] * (len(sizes) - dim - 1)]
            yield {**want, "offsets": [o + i for o, i in zip(offsets, start)],
                   "sizes": [*[1] * dim, n, *sizes[dim + 1:]], "nbytes": n * row}, at
            at += n * row
