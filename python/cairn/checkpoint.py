"""Reading checkpoints without a training job."""

from __future__ import annotations

import base64
import difflib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cairn import _address, _command, _recipe, _saver, errors, values
from cairn._boxes import DTYPES, PIECE, box, cut, element_size
from cairn._messages import Entry, FormatOptions, Reading, RecipeMessage, Want


def open(path: str | os.PathLike[str], *, framework: str | None = None, format: str | None = None,
         format_options: FormatOptions | None = None, recipe: str | os.PathLike[str] | None = None,
         config: _recipe.Config = None, reverse: bool = False,
         variables: Mapping[str, Any] | None = None, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint of any format that cairn reads: the path of a folder or a file, or file:///path.

    >>> with cairn.open("run/step-100") as c:
    ...     c.step, c.shapes()["model.weight"], c["step"]
    (100, (4, 2), 100)

    framework is the kind of the slices: "numpy", "torch" or "memory" (memoryviews). Without it
    they are numpy arrays if numpy is installed, and memoryviews otherwise. A memoryview of a type
    that memoryviews lack, such as bfloat16, is bytes in one dimension. format and
    format_options are needed only if the format cannot be detected or has options for reading. With
    ``{"base": MODEL}``, the folder of a LoRA adapter opens as its model with the adapter merged.

    Objects that were pickled are described, as :class:`cairn.values.Object`, and a PickleWarning names their classes.
    With allow_pickle, which needs torch, they are made again: a pickle can run any code.

    recipe shows the checkpoint in another form, for example a folder of Hugging Face with the names and shapes
    of torchtitan::

        c = cairn.open("Llama-3.1-8B", recipe="hf-to-titan/llama")
        c["layers.0.attention.qkv_linear.wq.weight"][:128]        # reads the rows that they are made of

    config, reverse and variables are described at :func:`cairn.convert`.
    """
    _address.address_of(path)  # raises for None and for paths that are not UTF-8
    return Checkpoint(os.fsdecode(path), framework, format, format_options,
                      _recipe.message(recipe, config, reverse, variables), allow_pickle)


class Checkpoint(Mapping[str, Any]):
    """An open checkpoint: a mapping of names to a :class:`Tensor` or a value each.

    >>> c = cairn.open("run/step-100")
    >>> "model.bias" in c, len(c), c.world_size
    (True, 3, 1)
    >>> sorted(c.load("model.", strip=True))
    ['bias', 'weight']
    >>> c.close()

    Attributes, which are empty or None if the format does not record them: ``format``, with its version;
    ``step`` and ``tags``, as they were given to the save; ``save_id``; ``time`` of the save; ``writer``, the
    program; ``world_size``, the number of ranks; ``notes`` on how the checkpoint was read; ``missing``, names
    that cannot be read because a file is missing or damaged. If the names in a file are not known, ``missing`` has a
    pattern for them, such as ``scheduler.*``.
    """

    def __init__(self, path: str, framework: str | None = None, format: str | None = None,
                 format_options: FormatOptions | None = None, recipe: RecipeMessage | None = None,
                 allow_pickle: bool = False):
        if framework not in (None, "numpy", "torch", "memory"):
            raise errors.OptionsError(f"framework is {framework!r}; it may be 'numpy', 'torch' or 'memory'")
        self.path, self.framework = path, framework
        self._store = _address.address_of(path)  # the working directory may change
        self._reading: Reading = {"format": format, "format_options": format_options, "recipe": recipe}
        # The recipe is checked once, not for each read.
        d = _saver.shared().describe(self._store, format, format_options, _recipe.checked(recipe))
        self.format: str = d.get("format", "")
        self.step: int | None = d.get("step")
        self.save_id: str = d.get("save_id", "")
        self.time: str | None = d.get("time")
        self.tags: dict[str, str] = d.get("tags") or {}
        self.writer: str = d.get("writer", "")
        self.world_size: int = d.get("world_size", 0)
        self.notes: list[str] = d.get("notes") or []
        self.missing: list[str] = d.get("missing") or []
        self._entries: dict[str, Entry] = {e["name"]: e for e in d.get("entries") or []}
        self._allow_pickle, self._described = allow_pickle, set[str]()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{self.path}: {self.format}, {len(self)} names>"

    def __enter__(self) -> Checkpoint:
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

    def entry(self, name: str) -> Entry:
        """Returns the description of a tensor or a value, as docs/saver.md has it."""
        try:
            return self._entries[name]
        except KeyError:
            raise self._lacks(name) from None

    def _lacks(self, name: str) -> errors.MissingError:
        near = difflib.get_close_matches(name, {*self._entries, *(n.rpartition(".")[0] + "." for n in self._entries)},
                                         3, 0.7)
        hint = f"; the nearest names are {', '.join(map(repr, near))}" if near else ""
        return errors.MissingError(f"{self.path} has no {name!r}{hint}", ("plan.missing",))

    def __getitem__(self, name: str) -> Any:
        e = self.entry(name)
        if "dtype" in e:
            return Tensor(self, e)
        return self._values([name])[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all tensors."""
        return {n: tuple(e.get("shape") or ()) for n, e in self._entries.items() if "dtype" in e}

    def load(self, prefix: str = "", *, strip: bool = False, device: Any = None,
             framework: str | None = None) -> dict[str, Any]:
        """Reads all tensors and values whose names begin with prefix, and returns them by their full names.

        Tensors that were tied when they were saved are one tensor again.
        With strip, the names are without the prefix. For framework see :func:`cairn.open`;
        with device, such as "cuda" or "cpu", the tensors are torch tensors on it::

            model.load_state_dict(c.load("model.", strip=True, device="cpu"))

        MissingError: no name begins with the prefix. CorruptError: a name that begins with it is in ``missing``.
        """
        if device is not None:
            framework = "torch"
        lost = [n for n in self.missing if _overlap(n, prefix)]
        if lost:
            raise errors.CorruptError(f"{self.path}: {', '.join(lost[:10])} cannot be read: a file is missing or "
                                      "damaged; 'cairn verify' names it", ("storage.corrupt",))
        names = [n for n in self._entries if n.startswith(prefix)]
        if prefix and not names:
            raise self._lacks(prefix)
        out = self._values([n for n in names if "dtype" not in self._entries[n]])
        tensors = {n: self._entries[n].get("alias") or n for n in names if "dtype" in self._entries[n]}
        first: dict[Any, str] = {}
        for n, tie in tensors.items():
            first.setdefault(tie, n)
        read = dict(zip(first, self.read([(n, None) for n in first.values()], framework=framework, device=device)))
        out.update((n, read[tie]) for n, tie in tensors.items())
        return {n[len(prefix):].removeprefix(".") or n if strip else n: out[n] for n in names}

    def _values(self, names: Sequence[str]) -> dict[str, Any]:
        self._check()
        out: dict[str, Any] = {}
        far: list[str] = []
        for n in names:
            if (data := _held(e := self.entry(n))) is not None:
                out[n] = values.decode(e["codec"], data)
            else:
                far.append(n)

        def piece(i: int, _: memoryview | None, value: tuple[str, bytes] | None) -> None:
            assert value is not None
            out[far[i]] = values.decode(*value)

        if far:
            self._load([{"name": n} for n in far], piece)
        return {n: self._made(n, v) for n, v in out.items()}

    def _made(self, name: str, v: Any) -> Any:
        """Makes the objects in a value, or warns that they are described: once, if the description has all values."""
        if not self._allow_pickle:
            if new := values.classes(v) - self._described:
                for e in self._entries.values():
                    if "codec" in e and (data := _held(e)) is not None:
                        new |= values.classes(values.decode(e["codec"], data))
                self._described |= new
                values.warn_of(self.path, new)
            return v
        from cairn.torch import _load

        refs = sorted(values.refs(v))
        tensors = dict(zip(refs, self.read([(n, None) for n in refs], framework="torch"))) if refs else {}
        return _load.made(name, v, True, {n: _load.parameter(self._entries[n], t) for n, t in tensors.items()})

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"the checkpoint {self.path} is closed")

    def _load(self, wants: Sequence[Want], piece: _saver.Piece) -> None:
        _saver.shared().load(self._store, wants, piece, save_id=self.save_id, **self._reading)

    def read(self, boxes: Sequence[tuple[str, tuple[Sequence[int], Sequence[int]] | None]], *,
             framework: str | None = None, device: Any = None) -> list[Any]:
        """Reads boxes of tensors: names with (offsets, sizes), or None for all of a tensor."""
        self._check()
        kind = framework or self.framework or _default_framework()
        wants: list[Want] = []
        results, targets = [], []
        most = min(PIECE, _saver.shared().arena.window // 2)
        for name, part in boxes:
            e = self.entry(name)
            if "dtype" not in e:
                raise errors.MismatchError(f"{name!r} is a value, not a tensor", ("plan.mismatch",))
            shape = list(e.get("shape") or [])
            offsets, sizes = ([0] * len(shape), shape) if part is None else (list(part[0]), list(part[1]))
            result, memory = _allocate(kind, e["dtype"], sizes, device)
            results.append(result)
            for want, at in cut(e, shape, offsets, sizes, most):
                wants.append(want)
                targets.append((memory, at))

        def piece(i: int, data: memoryview | None, _: Any) -> None:
            memory, at = targets[i]
            assert data is not None
            memory(at, data)

        if wants:
            self._load(wants, piece)
        return [r() for r in results]


def _held(entry: Entry) -> bytes | None:
    """Returns the bytes of a value, if they are small enough to be part of its description."""
    data = base64.b64decode(entry.get("data") or "")
    return data if len(data) == entry.get("bytes", 0) else None


def _default_framework() -> str:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return "memory"
    return "numpy"


def _allocate(kind: str, dtype: str, sizes: list[int],
              device: Any) -> tuple[Callable[[], Any], Callable[[int, memoryview], None]]:
    """Returns a function for the result and one that copies a part of its bytes."""
    if kind == "torch":
        from cairn.torch import _memory

        return _memory.allocate(dtype, sizes, device)
    n = math.prod(sizes) * element_size(dtype)
    _, code, numpy_name = DTYPES.get(dtype, (0, None, None))
    if kind == "numpy":
        if numpy_name is None:
            raise errors.CastError(f"numpy has no {dtype}: use framework='torch' or 'memory'", ("tensor.cast",))
        import numpy

        array: Any = numpy.empty(sizes, numpy_name)
        flat = memoryview(array.reshape(-1).view(numpy.uint8)) if array.size else memoryview(bytearray())
        return lambda: array, lambda at, data: flat.__setitem__(slice(at, at + len(data)), data)
    buffer: Any = memoryview(bytearray(n))

    def result() -> Any:
        if code is None:
            return buffer
        return buffer.cast(code, sizes) if n else buffer.cast(code)

    return result, lambda at, data: buffer.__setitem__(slice(at, at + len(data)), data)


class Tensor:
    """A tensor of a checkpoint, with ``name``, ``dtype`` and ``shape``. An index or a method reads it.

    >>> w = cairn.open("run/step-100")["model.weight"]
    >>> w
    <model.weight: float32[4, 2]>
    >>> w[1:3, :].tolist()       # reads exactly these elements; [:] reads all
    [[2.0, 3.0], [4.0, 5.0]]
    """

    def __init__(self, checkpoint: Checkpoint, entry: Entry):
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
        """The size of all elements."""
        return math.prod(self.shape) * element_size(self.dtype)

    def numpy(self) -> Any:
        """Reads the tensor as a numpy array."""
        return self._checkpoint.read([(self.name, None)], framework="numpy")[0]

    def torch(self, device: Any = None) -> Any:
        """Reads the tensor as a torch tensor."""
        return self._checkpoint.read([(self.name, None)], framework="torch", device=device)[0]

    def __getitem__(self, index: Any) -> Any:
        offsets, sizes, after = box(self.shape, index)
        kind = self._checkpoint.framework or _default_framework()
        if kind == "memory" and any(isinstance(a, slice) for a in after):
            raise TypeError("memoryviews have no steps: use framework='numpy' or 'torch'")
        got = self._checkpoint.read([(self.name, (offsets, sizes))])[0]
        if kind == "memory":
            if got.ndim != len(sizes) or not any(a == 0 for a in after):
                return got  # bytes, or all dimensions stay
            return got.cast("B").cast(got.format, [n for n, a in zip(sizes, after) if a is None])
        if kind == "torch":  # which has no negative steps
            back = [d for d, a in enumerate(after) if isinstance(a, slice) and a.step < 0]
            got = got.flip(back) if back else got
            after = [slice(None, None, -a.step) if d in back else a for d, a in enumerate(after)]
        return got[tuple(slice(None) if a is None else a for a in after)]


def latest(run: str | os.PathLike[str], *, wait: bool = False, timeout: float | None = None,
           remote: str | os.PathLike[str] | None = None) -> str | None:
    """Returns the path of the newest complete checkpoint in a folder of checkpoints, or None if it has none.

    >>> cairn.latest("run")                      # doctest: +ELLIPSIS
    '/.../run/step-100'
    >>> cairn.latest("run-that-has-not-begun") is None
    True

    For a run that is a URL, it returns a URL. With remote, the run to which the saves were
    uploaded, it looks at both; of equal saves it returns the one in run, if that is whole.

    The newest checkpoint of a :class:`cairn.Run` is the last save to it or, if the run was rewound since, the one
    to which it was. Checkpoints that were not saved to a Run are ordered by step, from ``save(…, step=…)`` or else from
    the number at the end of the folder's name. Of equal steps, the one that was saved last counts.

    wait makes it wait for saver processes that are still writing, which may have outlived their trainers.
    It warns of damaged and incomplete checkpoints that it has passed over.
    UnderWayError: there is no checkpoint yet, but a save is under way, without wait or still after timeout seconds.
    UncertainError: there is no checkpoint, but object storage has not answered the commit of a save, and may still
    carry it out.
    """
    address = _address.address_of(run)
    if os.path.isfile(address):
        raise errors.OptionsError(f"{address} is a file: a run is a folder of checkpoints", ("storage.options",))
    flags = []
    if wait:
        flags.append("--wait")
        if timeout is not None:
            flags.append(f"--timeout={max(1, int(timeout * 1e9))}ns")
    if remote is not None:
        flags.append(f"--remote={_address.address_of(remote)}")
    try:
        found = _command.run("latest", flags, address)
    except errors.NotFoundError:
        return None
    for passed in found.get("skipped") or ():
        if not passed["under_way"]:
            problem = "; ".join(passed["problem"].splitlines())
            warnings.warn(f"{passed['path']} was passed over: {problem}", stacklevel=errors.outside())
    path: str = found["path"]
    return path


def _overlap(missing: str, prefix: str) -> bool:
    """Returns whether a name in ``Checkpoint.missing`` begins with prefix, or may stand for one that does."""
    if not missing.endswith("*"):
        return missing.startswith(prefix)
    at = missing[:-1]
    return at.startswith(prefix) or prefix.startswith(at)
