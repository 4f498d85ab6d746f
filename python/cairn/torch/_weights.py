"""Weights of a checkpoint, one tensor after the other, read ahead in the order of the files."""

from __future__ import annotations

import collections
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cairn import _recipe, errors, names as _names
from cairn._address import address_of
from cairn._boxes import PIECE, box, cut, element_size
from cairn._messages import Described, Entry, FormatOptions, Reading, Want
from cairn.reports import LoadReport
from cairn.runs import Run
from cairn.torch import _memory
from cairn.torch._job import Caught, Job, Sharing, is_shared, job
from cairn.torch._load import newest

Slices = Mapping[str, Any] | Callable[[str, tuple[int, ...]], Any] | None


def weights(path: str | os.PathLike[str] | Run, device: torch.device | str | int = "cpu", names: _names.Names = None,
            slices: Slices = None, *, recipe: str | os.PathLike[str] | None = None, config: _recipe.Config = None,
            reverse: bool = False, variables: Mapping[str, Any] | None = None, format: str | None = None,
            format_options: FormatOptions | None = None, base: str | os.PathLike[str] | None = None,
            share: bool | None = None, alone: bool = False, window: int = 1 << 30,
            pin_memory: bool = False) -> WeightIterator:
    """Returns an iterator of (name, tensor) over the tensors of a checkpoint of any format.

    >>> report = cairn.torch.save({"w": torch.arange(6.).reshape(3, 2), "b": torch.ones(3)}, "run/step-7")
    >>> {name: tuple(t.shape) for name, t in cairn.torch.weights("run/step-7")}
    {'b': (3,), 'w': (3, 2)}
    >>> dict(cairn.torch.weights("run/step-7", names="w*", slices={"w": (slice(1, 3), slice(1))}))
    {'w': tensor([[2.],
            [4.]])}

    The tensors are new, on the device, and verified as far as the format has checksums. They come in the order of the
    files, and are read ahead: up to window bytes are read or wait for the caller. On a GPU they are
    complete when they come. With pin_memory, tensors on the CPU are in pinned memory. A tensor that was
    saved under several names comes once for each of them, and is one tensor if the same part of it is asked for.

    names chooses tensors: a name or a pattern, such as "model.layers.*.weight"; a list of names and patterns; or a
    function of the name. MissingError: the checkpoint has no such name, or a pattern matches none.

    slices chooses parts, by indices as of ``cairn.open(path)[name]``: a dict of names, or a function of the name and
    the shape. It is None for a whole tensor. Only these elements are read, rounded up to what is verified as a whole.
    The rows of a rank of four, for example::

        def rows(name, shape):
            return slice(shape[0] * rank // 4, shape[0] * (rank + 1) // 4) if shape else None

        for name, tensor in cairn.torch.weights("Llama-3.1-8B", "cuda", slices=rows): ...

    With recipe, the names and shapes are those into which a recipe changes the checkpoint. recipe, config, reverse and
    variables are described at :func:`cairn.convert`, a path that is a Run at :func:`load`. format and format_options
    are needed only if the format cannot be detected or has options for reading. base is the checkpoint to which a
    version of slime, miles or SGLang is a difference, as in :func:`follow`.

    With share, all ranks of the job call it, and of the ranks of a host that want the same bytes at about the same
    time, one reads them and sends them to the others; see docs/serving.md. None: they do so if the checkpoint is in
    object storage. If one rank fails or closes its iterator, the iterators of all ranks end. With share, a consumer
    must not wait for the consumer of another rank, unless the ranks ask for the same bytes. With alone, only this
    rank calls it.

    Close the iterator, or use it in a with statement, if you do not read it to its end.
    """
    if window <= 0:
        raise errors.OptionsError(f"window is {window}; want a number of bytes", ("storage.options",))
    if base is not None:
        format_options = {**(format_options or {}), "base": address_of(base)}
    if isinstance(path, Run):
        path = newest(path, alone)
    address = address_of(path)
    chosen = _recipe.message(recipe, config, reverse, variables)
    how: Reading = {"format": format, "format_options": format_options, "recipe": chosen}
    together = is_shared(address, share, alone)
    j, plan, save_id, sharing = None, [], "", None
    to = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    with Caught() as caught:
        j = job(alone)
        if to.type == "cuda" and to.index is None:
            to = torch.device("cuda", torch.cuda.current_device())
        described = j.own().describe(address, format, format_options,
                                     _recipe.checked(chosen) if alone or j.rank == 0 else chosen)
        plan, save_id = _plan(described, address, names, slices), described.get("save_id", "")
    if together:
        sharing = Sharing(j, caught.error, f"load weights of {address}")
    elif caught.error is not None:
        raise caught.error
    assert j is not None
    with Caught() as caught:
        return WeightIterator(_Stream(j, sharing, address, plan, to, how, save_id, window, pin_memory))
    assert caught.error is not None
    if sharing is not None:
        sharing.fail(caught.error)
        sharing.close()
    raise caught.error


class WeightIterator(Iterator[tuple[str, torch.Tensor]]):
    """An iterator of :func:`weights`. ``report`` is the :class:`cairn.LoadReport`, once it has come to its end.

    >>> report = cairn.torch.save({"w": torch.ones(4)}, "run/step-8")
    >>> with cairn.torch.weights("run/step-8") as found:
    ...     name, tensor = next(found)
    >>> name
    'w'
    """

    def __init__(self, stream: _Stream):
        self._stream = stream
        self._end = weakref.finalize(self, stream.close)  # its thread would go on otherwise

    def __iter__(self) -> WeightIterator:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        return self._stream.take()

    def __enter__(self) -> WeightIterator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration. Reads that are under way are cancelled."""
        self._end()

    @property
    def report(self) -> LoadReport | None:
        return self._stream.report


class _Part:
    """A part of a tensor that is to be read."""

    def __init__(self, entry: Entry, index: Any):
        self.name: str = entry["name"]
        self.entry = entry
        self.shape = list(entry.get("shape") or [])
        self.after: list[Any] = []
        if index is None:
            self.offsets, self.sizes = [0] * len(self.shape), self.shape
        else:
            try:
                self.offsets, self.sizes, self.after = box(self.shape, index)
            except (IndexError, TypeError) as e:
                raise type(e)(f"the slice of {self.name!r}: {e}") from None
            if any(isinstance(a, slice) and a.step < 0 for a in self.after):
                raise IndexError(f"the slice of {self.name!r} has a negative step, which tensors do not have")
        self.whole = math.prod(self.shape) * element_size(entry["dtype"])  # bytes of the tensor
        self.nbytes = math.prod(self.sizes) * element_size(entry["dtype"])

    def same(self, other: _Part) -> bool:
        """Reports whether two parts have the same elements of the same tensor."""
        return bool(self.entry.get("alias")) and (self.entry.get("alias"), self.offsets, self.sizes, self.after) == (
            other.entry.get("alias"), other.offsets, other.sizes, other.after)


def _plan(described: Described, address: str, names: _names.Names, slices: Slices) -> list[_Part]:
    """Returns the parts to read, in the order of the files."""
    entries = {e["name"]: e for e in described.get("entries") or [] if "dtype" in e}
    chosen = set(_names.chosen(list(entries), names, "weights"))
    if isinstance(slices, Mapping) and (unknown := sorted(set(slices) - chosen)):
        why = "names does not choose" if unknown[0] in entries else f"{address} does not have"
        raise errors.MissingError(f"slices has {unknown[0]!r}, which {why}", ("plan.missing",))

    def index(name: str) -> Any:
        if slices is None or isinstance(slices, Mapping):
            return (slices or {}).get(name)
        return slices(name, tuple(entries[name].get("shape") or ()))

    order = sorted(chosen, key=lambda name: (entries[name].get("order", 0), name))
    return [_Part(entries[name], index(name)) for name in order]


class _Closed(BaseException):
    """The caller has closed the iterator."""

    def __repr__(self) -> str:  # as other ranks receive it
        return "the trainer cancelled the load"


class _Item:
    """A tensor on its way."""

    def __init__(self, part: _Part, tensor: torch.Tensor, left: int):
        self.part, self.tensor, self.left = part, tensor, left
        self.event: torch.cuda.Event | None = None
        self.names = [part.name]  # for which it is returned


class _Stream:
    """Reads ahead, in a thread."""

    def __init__(self, j: Job, sharing: Sharing | None, address: str, plan: list[_Part], device: torch.device,
                 how: Reading, save_id: str, window: int, pin_memory: bool):
        self._job, self._sharing, self._address, self._plan = j, sharing, address, plan
        self._saver = j.own() if sharing is None else sharing.saver
        self._device, self._how, self._save_id, self._window = device, how, save_id, window
        self._new = functools.partial(torch.empty, device=device, pin_memory=pin_memory and device.type == "cpu")
        # New tensors belong to the stream of the caller, as if the caller had made them.
        self._caller = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._copies = _memory.Copies(j.memory, {device})
        self._changed = threading.Condition()
        self._items: collections.deque[_Item] = collections.deque()  # in the order in which they are returned
        self._targets: dict[int, tuple[_Item, torch.Tensor, int]] = {}  # by the number of the want
        self._numbers = 0  # of wants
        self._ahead = 0  # bytes of items
        self._closed = self._over = False
        self._error: BaseException | None = None
        self.report: LoadReport | None = None
        self._thread = threading.Thread(target=self._run, name="cairn-weights", daemon=True)
        self._thread.start()

    def take(self) -> tuple[str, torch.Tensor]:
        """Returns the next tensor, or raises StopIteration."""
        with self._changed:
            while not self._over and not (self._items and not self._items[0].left):
                self._changed.wait()
            if self._closed or not self._items or self._items[0].left:
                if self._error is not None and not self._closed:
                    raise self._error
                raise StopIteration
            item = self._items[0]
            name = item.names.pop(0)
            if not item.names:
                self._items.popleft()
                self._ahead -= item.part.nbytes
                self._changed.notify_all()
        if item.event is not None:
            item.event.synchronize()
        t = item.tensor
        if any(a is not None for a in item.part.after):
            t = t[tuple(slice(None) if a is None else a for a in item.part.after)]
        return name, t

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(10)  # a rank that hangs does not hold up this one
        self._items.clear()

    def _run(self) -> None:
        report = None
        with Caught() as caught:  # _Closed too
            self._job.memory.reclaim()
            report = self._saver.load(self._address, self._wants(), self._piece, settle=self._settle,
                                      share=self._sharing, save_id=self._save_id, **self._how)
        self._copies.close()
        if self._sharing is not None:
            self._sharing.close()
        with self._changed:
            self.report, self._error, self._over = report, caught.error or self._error, True
            self._changed.notify_all()

    def _wants(self) -> Iterator[Want | None]:
        """Yields what is to be read, as far as the window allows. saver.load iterates."""
        most = min(PIECE, self._job.arena.window // 2)
        i = asked = 0
        # A message asks for at most a quarter of the window. The first ones are smaller, so that they do not all end at
        # the same time and leave the disk idle.
        quota = self._window // 16
        while i < len(self._plan):
            part = self._plan[i]
            # Ranks that share ask for the same tensors by the same message, whatever their callers do.
            n = part.nbytes if self._sharing is None else part.whole
            if asked and asked + n > quota:
                quota = min(quota + self._window // 16, self._window // 4)
                self._numbers += 1
                asked = 0
                yield None
            with self._changed:
                while not (self._closed or self._error or asked) and self._ahead and \
                        self._ahead + max(part.nbytes, quota) > self._window:
                    self._changed.wait()
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise _Closed
            asked += n
            with torch.cuda.stream(self._caller):  # None: it changes nothing
                t = self._new(part.sizes, dtype=_memory.dtype_of(part.entry["dtype"]))
                if self._caller is not None:  # memory that the caller has used and freed before
                    self._copies.begun[self._device] = self._caller.record_event()
            wants = list(cut(part.entry, part.shape, part.offsets, part.sizes, most)) if t.numel() else []
            item = _Item(part, t, len(wants))
            while (i := i + 1) < len(self._plan) and part.same(self._plan[i]):
                item.names.append(self._plan[i].name)
            flat = _memory.as_bytes(t)
            with self._changed:
                self._items.append(item)
                self._ahead += part.nbytes
                self._changed.notify_all()  # an item without elements is complete
            for want, at in wants:
                self._targets[self._numbers] = (item, flat, at)
                self._numbers += 1
                yield want

    def _settle(self, error: BaseException | None) -> None:
        self._copies.settle()
        if error is not None:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _piece(self, i: int, data: memoryview | None, _: Any) -> None:
        if self._closed:
            raise _Closed
        assert data is not None
        item, flat, at = self._targets.pop(i)
        event = self._copies.copy(flat, at, torch.frombuffer(data, dtype=torch.uint8))
        with self._changed:
            item.left -= 1
            item.event = event
            if not item.left:
                self._changed.notify_all()
