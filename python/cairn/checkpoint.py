"""Reading checkpoints without a training job."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

from cairn import errors, saver, values

# The bytes of an element, the format of memoryviews, and the name that numpy has for it.
_DTYPES: dict[str, tuple[int, Optional[str], Optional[str]]] = {
    "float64": (8, "d", "float64"), "float32": (4, "f", "float32"), "float16": (2, "e", "float16"), "bfloat16": (2, None, None),
    "int64": (8, "q", "int64"), "int32": (4, "i", "int32"), "int16": (2, "h", "int16"), "int8": (1, "b", "int8"),
    "uint64": (8, "Q", "uint64"), "uint32": (4, "I", "uint32"), "uint16": (2, "H", "uint16"), "uint8": (1, "B", "uint8"),
    "bool": (1, "?", "bool"), "complex64": (8, None, "complex64"), "complex128": (16, None, "complex128"),
}

PIECE = 64 << 20
"""Large tensors are read in pieces of about this many bytes."""


def element_size(dtype: str) -> int:
    """Returns the bytes of an element."""
    if dtype in _DTYPES:
        return _DTYPES[dtype][0]
    if dtype.startswith("float8"):
        return 1
    if dtype == "complex32":
        return 4
    raise errors.CairnError(f"elements of the type {dtype!r} cannot be read here")


def open(path: Union[str, "os.PathLike[str]"], *, framework: Optional[str] = None, format: Optional[str] = None,  # noqa: A001
         format_options: Optional[dict] = None) -> "Checkpoint":
    """Opens a checkpoint of any format that cairn reads: a folder or a file.

    framework is what slices are: "numpy", "torch" or "memory" (memoryviews). Without it
    they are numpy arrays if numpy is there, and memoryviews otherwise. Nothing is unpickled.
    """
    return Checkpoint(os.fspath(path), framework, format, format_options)


class Checkpoint(Mapping):
    """An open checkpoint: its names, with a :class:`Tensor` or a value for each."""

    def __init__(self, path: str, framework: Optional[str] = None, format: Optional[str] = None, format_options: Optional[dict] = None):
        if framework not in (None, "numpy", "torch", "memory"):
            raise errors.OptionsError(f"framework is {framework!r}; it may be 'numpy', 'torch' or 'memory'")
        self.path, self.framework = path, framework
        self._source = {"format": format, "format_options": format_options}
        d = saver.shared().describe(path, format, format_options)
        self.format: str = d.get("format", "")
        """The format of the checkpoint and its version."""
        self.step: Optional[int] = d.get("step")
        self.save_id: str = d.get("save_id", "")
        self.time: Optional[str] = d.get("time")
        self.tags: dict[str, str] = d.get("tags") or {}
        self.writer: str = d.get("writer", "")
        self.world_size: int = d.get("world_size", 0)
        self.notes: list[str] = d.get("notes") or []
        self.missing: list[str] = d.get("missing") or []
        """Names that cannot be read, because a file is missing or damaged."""
        self._entries: dict[str, dict] = {e["name"]: e for e in d.get("entries") or []}
        self._closed = False

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the checkpoint."""
        self._closed = True

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> dict:
        """Returns the description of a tensor or a value, as docs/saver.md has it."""
        try:
            return self._entries[name]
        except KeyError:
            raise errors.MissingError(f"{self.path} has no {name!r}", ("plan.missing",)) from None

    def __getitem__(self, name: str) -> Any:
        e = self.entry(name)
        if "dtype" in e:
            return Tensor(self, e)
        return self._values([name])[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all tensors."""
        return {n: tuple(e.get("shape") or ()) for n, e in self._entries.items() if "dtype" in e}

    def load(self, prefix: str = "", *, device: Any = None, framework: Optional[str] = None) -> dict[str, Any]:
        """Reads all tensors and values whose names begin with prefix.

        device, such as "cuda", makes the tensors those of torch.
        """
        if device is not None:
            framework = "torch"
        names = [n for n in self._entries if n.startswith(prefix)]
        out = self._values([n for n in names if "dtype" not in self._entries[n]])
        boxes = [(n, None) for n in names if "dtype" in self._entries[n]]
        tensors = self.read(boxes, framework=framework, device=device)
        out.update({n: t for (n, _), t in zip(boxes, tensors)})
        return {n: out[n] for n in names}

    def _values(self, names: Sequence[str]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        far = []
        for n in names:
            e = self.entry(n)
            data = saver.base64.b64decode(e.get("data") or "")
            if len(data) == e.get("bytes", 0):
                out[n] = values.decode(e["codec"], data)
            else:
                far.append(n)
        if far:
            self._load([{"name": n} for n in far], lambda i, _, value: out.__setitem__(far[i], values.decode(*value)))
        return out

    def _load(self, wants: Sequence[dict], piece: Callable[[int, Optional[memoryview], Any], None]) -> None:
        if self._closed:
            raise ValueError(f"the checkpoint {self.path} is closed")
        saver.shared().load(self.path, wants, piece, **self._source)

    def read(self, boxes: Sequence[tuple[str, Optional[tuple[Sequence[int], Sequence[int]]]]], *, framework: Optional[str] = None,
             device: Any = None) -> list[Any]:
        """Reads boxes of tensors: names with (offsets, sizes), or None for all of a tensor."""
        kind = framework or self.framework or _default_framework()
        wants, results, targets = [], [], []
        for name, box in boxes:
            e = self.entry(name)
            if "dtype" not in e:
                raise errors.MismatchError(f"{name!r} is a value, not a tensor", ("plan.mismatch",))
            shape = list(e.get("shape") or [])
            offsets, sizes = ([0] * len(shape), shape) if box is None else (list(box[0]), list(box[1]))
            result, memory = _allocate(kind, e["dtype"], sizes, device)
            results.append(result)
            for want, at in cut(e, shape, offsets, sizes):
                wants.append(want)
                targets.append((memory, at))

        def piece(i: int, data: Optional[memoryview], _: Any) -> None:
            memory, at = targets[i]
            assert data is not None
            memory(at, data)

        self._load(wants, piece)
        return [r() for r in results]


def cut(entry: dict, shape: list[int], offsets: list[int], sizes: list[int]) -> Iterator[tuple[dict, int]]:
    """Yields what to load for a box, in pieces, and where each piece begins in the box's bytes."""
    size = element_size(entry["dtype"])
    total = math.prod(sizes) * size
    row = total // sizes[0] if sizes and sizes[0] else total
    rows = max(1, PIECE // row) if row else 1
    if not sizes or total <= PIECE or sizes[0] <= 1:
        yield {"name": entry["name"], "dtype": entry["dtype"], "shape": shape, "offsets": offsets, "sizes": sizes, "nbytes": total}, 0
        return
    for first in range(0, sizes[0], rows):
        n = min(rows, sizes[0] - first)
        yield {"name": entry["name"], "dtype": entry["dtype"], "shape": shape, "offsets": [offsets[0] + first, *offsets[1:]],
               "sizes": [n, *sizes[1:]], "nbytes": n * row}, first * row


def _default_framework() -> str:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return "memory"
    return "numpy"


def _allocate(kind: str, dtype: str, sizes: list[int], device: Any) -> tuple[Callable[[], Any], Callable[[int, memoryview], None]]:
    """Returns a function for the result and one that copies a part of its bytes."""
    if kind == "torch":
        from cairn.torch import _memory

        return _memory.allocate(dtype, sizes, device)
    n = math.prod(sizes) * element_size(dtype)
    _, code, numpy_name = _DTYPES.get(dtype, (0, None, None))
    if kind == "numpy":
        if numpy_name is None:
            raise errors.CastError(f"numpy has no {dtype}: use framework='torch' or 'memory'", ("tensor.cast",))
        import numpy

        array = numpy.empty(sizes, numpy_name)
        flat = memoryview(array.reshape(-1).view(numpy.uint8)) if array.size else memoryview(bytearray())
        return lambda: array, lambda at, data: flat.__setitem__(slice(at, at + len(data)), data)
    buffer = memoryview(bytearray(n))

    def result() -> memoryview:
        if code is None or not sizes or not n:
            return buffer
        return buffer.cast(code, sizes)

    return result, lambda at, data: buffer.__setitem__(slice(at, at + len(data)), data)


class Tensor:
    """A tensor of a checkpoint. ``t[10:20, :]`` reads exactly these elements."""

    def __init__(self, checkpoint: Checkpoint, entry: dict):
        self._checkpoint, self._entry = checkpoint, entry
        self.name: str = entry["name"]
        self.dtype: str = entry["dtype"]
        self.shape: tuple[int, ...] = tuple(entry.get("shape") or ())

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype}{list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * element_size(self.dtype)

    def numpy(self) -> Any:
        """Reads the tensor as a numpy array."""
        return self._checkpoint.read([(self.name, None)], framework="numpy")[0]

    def torch(self, device: Any = None) -> Any:
        """Reads the tensor as a torch tensor."""
        return self._checkpoint.read([(self.name, None)], framework="torch", device=device)[0]

    def __getitem__(self, index: Any) -> Any:
        offsets, sizes, after = box(self.shape, index)
        got = self._checkpoint.read([(self.name, (offsets, sizes))])[0]
        if isinstance(got, memoryview):
            if any(step is not None for step in after):
                raise TypeError("memoryviews have no steps and no single elements: use framework='numpy'")
            return got
        return got[tuple(slice(None) if step is None else step for step in after)]


def box(shape: Sequence[int], index: Any) -> tuple[list[int], list[int], list[Any]]:
    """Returns the smallest box that has the elements of an index, and what is left to select in it.

    The rest has one entry for each dimension: None, 0 for a single index, or a slice with a step.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(p is Ellipsis for p in parts) > 1:
        raise IndexError("an index has at most one ellipsis")
    if Ellipsis in [p for p in parts if p is Ellipsis]:
        at = next(i for i, p in enumerate(parts) if p is Ellipsis)
        parts[at:at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise IndexError(f"{len(parts)} indices for {len(shape)} dimensions")
    parts += [slice(None)] * (len(shape) - len(parts))
    offsets, sizes, after = [], [], []
    for n, p in zip(shape, parts):
        if isinstance(p, slice):
            r = range(n)[p]
            lo, hi = (min(r), max(r) + 1) if len(r) else (0, 0)
            offsets.append(lo)
            sizes.append(hi - lo)
            if r.step == 1 or len(r) == 0:
                after.append(None)
            elif r.step > 0:
                after.append(slice(None, None, r.step))
            else:
                after.append(slice(None, None, r.step))
            continue
        i = p.__index__()
        if not -n <= i < n:
            raise IndexError(f"index {i} of a dimension of {n}")
        offsets.append(i % n)
        sizes.append(1)
        after.append(0)
    return offsets, sizes, after


def latest(run: Union[str, "os.PathLike[str]"], *, wait: bool = False, timeout: Optional[float] = None) -> Optional[str]:
    """Returns the path of the newest complete checkpoint in a folder of checkpoints, or None.

    wait makes it wait for saver processes that are still writing, which may have outlived
    their trainers.
    """
    command = [saver.binary(), "latest", "--json", os.fspath(run)]
    if wait:
        command.append("--wait")
        if timeout is not None:
            command.append(f"--timeout={timeout}s")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)["path"]
    raise errors.CairnError(done.stderr.strip())
