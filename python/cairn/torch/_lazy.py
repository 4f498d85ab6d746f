"""Tensors of a checkpoint that are read when they are copied or computed with, and only the part that is used.

The weight loaders of serving engines receive whole tensors, and take their part of each with narrow, slices and other
views before they copy it. A LazyTensor records the views, so that the copy reads exactly this part of the checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from cairn import _recipe, names as _names
from cairn._address import address_of
from cairn._boxes import PIECE, cut, element_size
from cairn._messages import Entry, FormatOptions, Reading
from cairn.reports import LoadReport
from cairn.torch import _memory
from cairn.torch._job import Job, distributed, job
from cairn.torch._load import Loading

SMALL = 64 << 10
"""Tensors of at most this many bytes are read together with those that follow, whole."""
AHEAD = 4 << 20
"""Bytes of small tensors that are read together."""

_aten: Any = torch.ops.aten


class LazyWeights:
    """The tensors of a checkpoint, which are read as they are used.

    >>> report = cairn.torch.save({"w": torch.arange(6).reshape(3, 2)}, "run/step-7")
    >>> with cairn.torch.LazyWeights("run/step-7") as weights:
    ...     for name, w in weights:
    ...         print(name, w.shape, w.narrow(0, 1, 1).tolist())
    w torch.Size([3, 2]) [[2, 3]]
    >>> weights.bytes
    48

    Iterating yields names and tensors, in the order of the names. A tensor behaves like an ordinary tensor on the CPU.
    Views of it read nothing. If it is copied into another tensor, the elements are read straight into that, on
    a CPU or a GPU. Any other operation reads the elements of the view first, and keeps them. What is read is verified
    as far as the format has checksums. Tensors can still be read after close, which only ends the faster way.

    names chooses tensors as in :func:`weights`. For the other arguments see :func:`cairn.open`. Each process reads for
    itself. With keep, a number of bytes, the checkpoint is a version of a run, and the saver process keeps up to so
    many bytes of its files in memory for the next version.

    ``bytes`` are the bytes of the elements that were read so far, ``bytes_read`` the bytes that were read for this
    from files or object storage, in ``requests`` reads.
    """

    def __init__(self, path: str | os.PathLike[str], *, names: _names.Names = None,
                 format: str | None = None, format_options: FormatOptions | None = None,
                 recipe: str | os.PathLike[str] | None = None, config: _recipe.Config = None, reverse: bool = False,
                 variables: Mapping[str, Any] | None = None, keep: int = 0):
        self.path = address_of(path)
        self._job: Job = job(alone=True)
        changed = _recipe.message(recipe, config, reverse, variables)
        self._reading: Reading = {"format": format, "format_options": format_options, "recipe": changed, "keep": keep}
        saver = self._job.own()
        if changed and (not distributed() or torch.distributed.get_rank() == 0):  # one rank checks what it assumes
            saver.describe(self.path, format, format_options, _recipe.checked(changed))
        described, self._release = saver.hold(self.path, **self._reading)
        self.save_id: str = described.get("save_id", "")
        self.step: int | None = described.get("step")
        self._entries = [e for e in described.get("entries") or [] if "dtype" in e]
        with contextlib.ExitStack() as undo:
            undo.callback(self._release)
            chosen = set(_names.chosen([e["name"] for e in self._entries], names, "LazyWeights"))
            undo.pop_all()
        self._entries = [e for e in self._entries if e["name"] in chosen]
        self._lock = threading.Lock()
        self._report = LoadReport()

    def __enter__(self) -> LazyWeights:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the saver process close the checkpoint."""
        self._release()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for group in self._groups():
            for e in group.entries:
                yield e["name"], LazyTensor(Stored(self, e, group), _geometry(e))

    def names(self) -> list[str]:
        """Returns the names of the tensors."""
        return [e["name"] for e in self._entries]

    @property
    def bytes(self) -> int:
        return self._report.bytes

    @property
    def bytes_read(self) -> int:
        return self._report.bytes_read

    @property
    def requests(self) -> int:
        return self._report.requests

    def _groups(self) -> Iterator[Group]:
        """Yields the tensors in groups that are read together: each large one alone, and small ones that follow one
        another."""
        group: list[Entry] = []
        size = 0
        for e in self._entries:
            n = _bytes(e)
            if group and (n > SMALL or size + n > AHEAD):
                yield Group(group)
                group, size = [], 0
            if n > SMALL:
                yield Group([e])
            else:
                group.append(e)
                size += n
        if group:
            yield Group(group)

    def verify(self, rank: int = 0, ranks: int = 1) -> None:
        """Reads tensors and drops them. CorruptError: the elements of one are not what was saved.

        With ranks, each verifies its share, and together they verify all tensors.
        """
        saver = self._job.own()
        most = min(PIECE, self._job.arena.window // 2)
        wants = [want for e in self._entries[rank::ranks] for shape in [list(e.get("shape") or [])]
                 for want, _ in cut(e, shape, [0] * len(shape), shape, most)]
        if wants:
            self._count(saver.load(self.path, wants, lambda *_: None, save_id=self.save_id, cast="none",
                                   **self._reading))

    def _count(self, report: LoadReport) -> None:
        with self._lock:
            self._report = LoadReport.total([self._report, report], self._report.seconds + report.seconds)

    def read(self, boxes: Iterable[tuple[Entry, Sequence[int], torch.Tensor]]) -> None:
        """Fills tensors with the boxes of the same shapes that begin at these offsets."""
        loading = Loading(self._job.memory)
        for e, offsets, t in boxes:
            loading.tensor(e["name"], list(e.get("shape") or []), list(offsets), t)
        self._count(loading.run(self._job.own(), self.path, self._reading, save_id=self.save_id, cast="none"))


class Group:
    """Entries of small tensors that are read together, or of one large tensor."""

    def __init__(self, entries: list[Entry]):
        self.entries = entries
        self.lock = threading.Lock()
        self.whole: dict[str, torch.Tensor] = {}  # what was read, of small tensors


class Stored:
    """A tensor in a checkpoint."""

    def __init__(self, weights: LazyWeights, entry: Entry, group: Group):
        self.weights, self.entry, self.group = weights, entry, group
        self.shape = tuple(entry.get("shape") or ())
        self.dtype = _memory.dtype_of(entry["dtype"])
        self.small = _bytes(entry) <= SMALL

    def whole(self) -> torch.Tensor:
        """Returns a small tensor, and reads the others of its group with it."""
        group = self.group
        with group.lock:
            if not group.whole:
                read = {e["name"]: torch.empty(e.get("shape") or [], dtype=_memory.dtype_of(e["dtype"]), device="cpu")
                        for e in group.entries}
                self.weights.read((e, [0] * len(e.get("shape") or []), read[e["name"]]) for e in group.entries)
                group.whole = read
            return group.whole[self.entry["name"]]


class LazyTensor(torch.Tensor):
    """A view of a tensor in a checkpoint, which reads its elements when they are used.

    ``_geometry`` is the same view of a tensor without memory: its strides and offset say which elements it has.
    The elements are converted to the dtype of this tensor, on its device.
    """

    _stored: Stored
    _geometry: torch.Tensor
    _real: torch.Tensor | None  # the elements, if they were read

    @staticmethod
    def __new__(cls, stored: Stored, geometry: torch.Tensor, dtype: torch.dtype | None = None,
                device: torch.device | str = "cpu") -> LazyTensor:
        self: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls, geometry.shape, strides=geometry.stride(), storage_offset=geometry.storage_offset(),
            dtype=dtype or stored.dtype, device=torch.device(device))
        self._stored, self._geometry, self._real = stored, geometry, None
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),  # type: ignore[override]
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.copy_.default and isinstance(args[1], LazyTensor) and not isinstance(args[0], LazyTensor):
            args[1].copy_into(args[0])
            return args[0]
        # In inference mode, functions that consist of others arrive here too.
        if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
            return out
        self = args[0] if args else None
        if isinstance(self, LazyTensor) and self._real is None:
            if (out := self._view(func, args[1:], kwargs)) is not None:
                return out
            if (out := self._copy(func, args[1:], kwargs)) is not None:
                return out
            name = func._schema.name.partition("::")[2]
            if name.endswith("_like") or name.startswith("new_"):  # only the form counts
                return func(torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device),
                            *args[1:], **kwargs)
        return func(*tree_map_only(LazyTensor, LazyTensor.elements, args),
                    **tree_map_only(LazyTensor, LazyTensor.elements, kwargs))

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the views that a function makes of this tensor, or None if it is not such a function."""
        returns = func._schema.returns
        if not returns or any(r.alias_info is None or r.alias_info.is_write for r in returns):
            return None
        views = func(self._geometry, *args, **kwargs)
        several = isinstance(views, (list, tuple))
        same = self._geometry.untyped_storage()._cdata
        if any(v.dtype != self._geometry.dtype or v.is_conj() or v.is_neg() or v.untyped_storage()._cdata != same
               for v in (views if several else [views])):
            return None
        made = [LazyTensor(self._stored, v, self.dtype, self.device) for v in (views if several else [views])]
        return made if several else made[0]

    def _copy(self, func: Any, args: Any, kwargs: Any) -> LazyTensor | None:
        """Returns a copy, perhaps with another dtype or on another device, or None if a copy differs in more."""
        if func not in (_aten._to_copy.default, _aten.clone.default) or args or kwargs.get("pin_memory") or \
                kwargs.get("layout") not in (None, torch.strided):
            return None
        dtype = kwargs.get("dtype") or self.dtype
        if self.dtype not in (self._stored.dtype, dtype):
            return None  # it would be rounded twice
        form = torch.empty_like(self._geometry, memory_format=kwargs.get("memory_format") or torch.preserve_format)
        if form.stride() != self._geometry.stride():
            return None
        return LazyTensor(self._stored, self._geometry, dtype, kwargs.get("device") or self.device)

    def elements(self) -> torch.Tensor:
        """Returns an ordinary tensor with the elements. The first call reads them."""
        if self._real is None:
            self._real = self._read(self.device).to(self.dtype)
        return self._real

    def _read(self, device: torch.device) -> torch.Tensor:
        """Reads the elements, in the dtype of the checkpoint."""
        g, stored = self._geometry, self._stored
        with torch.inference_mode(False):  # it may be changed in any mode
            if not g.numel():
                return torch.empty_strided(g.shape, g.stride(), dtype=stored.dtype, device=device)
            if stored.small:
                # A copy: the caller may change it.
                return stored.whole().as_strided(g.shape, g.stride(), g.storage_offset()).to(device, copy=True)
            box = Box.of(stored.shape, g)
            t = torch.empty(box.sizes, dtype=stored.dtype, device=device)
            stored.weights.read([(stored.entry, box.offsets, t)])
            return t.as_strided(g.shape, box.strides, box.start)

    def copy_into(self, to: torch.Tensor) -> None:
        """Copies the elements into a tensor, whose memory they are read into if the dtype and the layout allow it."""
        g, stored = self._geometry, self._stored
        if to.is_meta:
            to.copy_(g)  # which checks the shapes
        elif self._real is not None:
            to.copy_(self._real)
        elif stored.small or not g.numel() or to.shape != self.shape or \
                not to.dtype == self.dtype == stored.dtype or type(to) not in (torch.Tensor, torch.nn.Parameter):
            to.copy_(self._read(to.device if self.dtype == stored.dtype else self.device).to(self.dtype))
        else:
            box = Box.of(stored.shape, g)
            if box.is_whole_in_order(g.shape) and (to.is_contiguous() or list(to.shape) == box.sizes):
                t = to.detach()
                stored.weights.read([(stored.entry, box.offsets, t.view(box.sizes) if t.is_contiguous() else t)])
            else:
                to.copy_(self._read(to.device))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<{self._stored.entry['name']}: {list(self.shape)} of {list(self._stored.shape)}, {self.dtype}>"

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.elements().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.elements().__reduce_ex__(protocol)


def _forward(name: str) -> Callable[..., Any]:
    """Returns a method that needs the memory of a tensor."""
    def method(self: LazyTensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.elements(), name)(*args, **kwargs)

    return method


for _name in ("numpy", "tolist", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__",
              "share_memory_", "pin_memory"):
    setattr(LazyTensor, _name, _forward(_name))


class Box:
    """The smallest box of a stored tensor that has all elements of a view, and the view's place in it.

    ``strides`` and ``start`` are those of the view in a contiguous tensor of the box's shape.
    """

    def __init__(self, offsets: list[int], sizes: list[int], strides: list[int], start: int = 0):
        self.offsets, self.sizes, self.strides, self.start = offsets, sizes, strides, start

    @classmethod
    def of(cls, shape: Sequence[int], view: torch.Tensor) -> Box:
        """Returns the box of a view, which has elements, of a contiguous tensor."""
        offset = int(view.storage_offset())
        return cls._exact(shape, view.shape, view.stride(), offset) or \
            cls._rows(shape, view.shape, view.stride(), offset)

    @classmethod
    def _exact(cls, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int) -> Box | None:
        base = _contiguous(shape)
        first = [offset // s % n for s, n in zip(base, shape)]
        sizes = [1] * len(shape)
        dims = [d for d, n in enumerate(shape) if n > 1]
        places: list[tuple[int, int]] = []  # of each dimension of the view: a dimension of the box and a step in it
        for n, s in zip(size, stride):
            if n == 1 or s == 0:
                places.append((0, 0))
                continue
            inside = [i for i, d in enumerate(dims) if base[d] <= s]
            if not inside:
                return None
            i = inside[0]
            d = dims[i]
            if s % base[d]:
                return None
            step = s // base[d]
            places.append((d, step))
            while first[d] + sizes[d] - 1 + (n - 1) * step >= shape[d]:
                # The dimension goes on in the next outer one, if it has all elements of this one.
                if step != 1 or first[d] or sizes[d] > 1 or n % shape[d] or i == 0:
                    return None
                sizes[d] = shape[d]
                n //= shape[d]
                i -= 1
                d = dims[i]
            sizes[d] += (n - 1) * step
        if any(f + n > m for f, n, m in zip(first, sizes, shape)):
            return None
        inner = _contiguous(sizes)
        # The stride of a dimension of one element may be anything, and stays as it is.
        return cls(first, sizes, [step * inner[d] if step else s for s, (d, step) in zip(stride, places)])

    @classmethod
    def _rows(cls, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int) -> Box:
        """Returns all rows of the first dimension that have elements of the view."""
        row = math.prod(shape[1:])
        last = offset + sum((n - 1) * s for n, s in zip(size, stride))
        lo, hi = offset // row, last // row + 1
        return cls([lo, *[0] * (len(shape) - 1)], [hi - lo, *shape[1:]], list(stride), offset - lo * row)

    def is_whole_in_order(self, shape: Sequence[int]) -> bool:
        """Reports whether a view of this shape is all of the box, in the order of its elements."""
        return self.start == 0 and math.prod(self.sizes) == math.prod(shape) and \
            all(n == 1 or s == want for n, s, want in zip(shape, self.strides, _contiguous(shape)))


def _contiguous(shape: Sequence[int]) -> list[int]:
    """Returns the strides of a contiguous tensor."""
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return strides[::-1]


def _bytes(e: Entry) -> int:
    return math.prod(e.get("shape") or ()) * element_size(e["dtype"])


def _geometry(e: Entry) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.empty(e.get("shape") or [], dtype=_memory.dtype_of(e["dtype"]), device="meta")
