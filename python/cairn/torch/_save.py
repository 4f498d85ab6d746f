"""Saving: the state is copied into the shared memory, and the saver processes write it."""

from __future__ import annotations

import base64
import contextlib
import datetime
import gc
import io
import itertools
import json
import math
import operator
import os
import secrets
import struct
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cairn import _ours, errors, values
from cairn._address import address_of, join_address
from cairn._reply import Reply
from cairn.reports import SaveReport
from cairn.runs import Member, Run
from cairn.torch import _job, _memory
from cairn.torch._handle import Handle, unseen
from cairn.torch._job import Job, job, ready
from cairn.torch._state import Leaf, Opened, Part, check, check_memory, flatten, is_leaf, is_stateful, parts

_SMALL = 1 << 20  # smaller memory is staged together, in units of up to _UNIT bytes
_UNIT = 16 << 20
_STAMP = 64  # bytes before the blobs of a unit
_GROUP = 512 << 20  # bytes of new memory that are taken while the ones before are copied to


def save(state: Mapping[Any, Any], path: str | os.PathLike[str] | Run, *, step: int | None = None,
         tags: dict[str, str] | None = None, metrics: Mapping[str, Any] | None = None, overwrite: bool | None = None,
         format: str = "native", format_options: dict[str, Any] | None = None, files_per_rank: int = 0,
         remote: str | os.PathLike[str] | None = None, local_bytes: int = 0, alone: bool = False,
         may_differ: bool = False) -> SaveReport:
    """Saves a state. All ranks call it. It returns when the checkpoint is complete, at remote too if that is set.

    >>> report = cairn.torch.save({"model": torch.nn.Linear(3, 2)}, "run/step-100", step=100)
    >>> report.step, report.plan_reused
    (100, False)

    See :func:`async_save` for the state and the options.
    """
    handle = async_save(state, path, step=step, tags=tags, metrics=metrics, overwrite=overwrite, format=format,
                        format_options=format_options, files_per_rank=files_per_rank, remote=remote,
                        local_bytes=local_bytes, alone=alone, may_differ=may_differ)
    report = handle.result()
    handle.uploaded.result()
    return report


def async_save(state: Mapping[Any, Any], path: str | os.PathLike[str] | Run, *, step: int | None = None,
               tags: dict[str, str] | None = None, metrics: Mapping[str, Any] | None = None,
               overwrite: bool | None = None, format: str = "native",
               format_options: dict[str, Any] | None = None, files_per_rank: int = 0,
               overlap: bool = False, remote: str | os.PathLike[str] | None = None, local_bytes: int = 0,
               alone: bool = False, may_differ: bool = False) -> Handle:
    """Saves a state in the background. All ranks call it.

    >>> w = torch.ones(3)
    >>> handle = cairn.torch.async_save({"w": w}, "run/step-1", step=1)
    >>> w += 1                                   # the checkpoint has ones
    >>> handle.result().step
    1

    It returns when the state has been copied aside, and the caller may change it. With overlap it returns at
    once: wait for ``handle.staged.result()`` before the state changes, usually before ``optimizer.step()``.
    Saves take place in the order of the calls.

    It raises an error if the arguments or the state cannot be saved, or a rank is gone. An error that comes
    later, also while the state is copied, is raised by ``handle.result()``. If it is not called, the next
    save warns of the error.

    state is a dict, nested as you like, of tensors, DTensors and values; at its top also of
    modules and optimizers. Tensors that are not sharded, and values, are saved once, and must be
    equal on all ranks: give a tensor or value of one rank a name of its own. Buffers of modules may differ,
    such as the statistics of a batch norm, and with may_differ all tensors; rank 0's is saved.

    path is a folder, or a :class:`cairn.Run`, in which the step names the folder: then the saver process keeps the
    run in order afterwards. A save replaces a checkpoint that this job has saved or loaded at path, when the new one
    is complete. If there is another one, the save fails with ExistsError before anything is written. With
    overwrite=True it replaces any checkpoint of its format, and with overwrite=False none. In a run, a save never
    replaces a checkpoint of another line. step and tags are recorded; :func:`cairn.latest` goes by the step. metrics
    are numbers such as {"loss": 2.3}, by which a run may keep the best checkpoints; those of rank 0 count. format is
    "native", "torchdcp" (PyTorch DCP), "hf" (safetensors, tensors only), "torch" (one file of torch.save, with
    format_options={"file": "model.pt"}) or "hyper"; format_options are in docs/saver.md. files_per_rank is
    the number of files that each rank writes at the same time; 0 leaves it to the format.

    remote is the address of the same checkpoint in another store, such as "s3://bucket/run/step-100". It is
    uploaded there when path has it; see ``Handle.uploaded``. path may be a disk of each host then.
    local_bytes bounds the checkpoints in the folders beside path: the oldest are removed, once remote has
    them. If there is still no room, the save goes to remote at once.

    With alone, only this rank saves, a state without sharded tensors, and does not wait for the others.
    """
    return begin(lambda j: described(j, state, alone), path, step, tags, overwrite, format, format_options,
                 files_per_rank, overlap, alone, remote, local_bytes, may_differ=may_differ, metrics=metrics)


def described(j: Job, state: torch.nn.Module | Mapping[Any, Any], alone: bool, whole: bool = False) -> State:
    """Describes a state, and remembers the description. With alone, the state must have no sharded tensors."""
    if not isinstance(state, torch.nn.Module):
        check(state)
    collects = gc.isenabled()
    gc.disable()  # it would look at all objects of the process, because many new ones are made here
    try:
        # state_dict may be a collective, so all ranks call it equally often: once.
        owners: dict[Any, Any]
        opened: Mapping[Any, Any]
        if isinstance(state, torch.nn.Module):
            owners, opened = {None: state}, state.state_dict()
        else:
            owners = {k: v for k, v in state.items() if type(v) is not torch.Tensor and is_stateful(v)}
            opened = {**state, **{k: v.state_dict() for k, v in owners.items()}} if owners else state
        for known in j.remembered:
            if known.whole != whole or known.alone != alone:
                continue
            if (found := known.again(opened, owners, j.memory)) is not None:
                return found
        tree = Opened()
        held = _held(flatten(opened, whole, tree, owners), alone)
        out = State(held, j.memory)
        out.message()
        j.remembered.appendleft(Remembered(tree, owners, held, out, whole, alone))
        return out
    finally:
        if collects:
            gc.enable()


def _held(leaves: list[Leaf], alone: bool) -> list[tuple[Leaf, list[Part] | None]]:
    """Returns the leaves of a state, and the parts of each that this rank holds."""
    out = [(leaf, parts(leaf)) for leaf in leaves]
    for leaf, held in out:
        if alone and held is not None and any(p.offsets is not None for p in held):
            raise errors.StateError(f"{leaf.name!r} is sharded over the ranks, but only this rank saves: "
                                    "all ranks must save it together", ("plan.state",))
    return out


def close() -> None:
    """Ends the saver process of this rank, when its saves are complete, and frees the shared memory.

    >>> cairn.torch.close()

    It warns of saves that have failed, if their ``result`` was not called.
    """
    _job.close()
    unseen.report()


@dataclass(slots=True)
class _Blob:
    """What is copied as a whole: a tensor, or the part of a storage that several tensors share."""

    nbytes: int
    items: list[int]
    starts: list[int]  # of each item in the blob


@dataclass(eq=False, slots=True)
class _Unit:
    """Blobs of one device that are staged and freed together, behind one stamp. Several blobs have one dtype."""

    blobs: list[_Blob] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of each blob after the unit's beginning
    size: int = _STAMP
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
        return self.size - _STAMP if self.at is None else sum(b.nbytes for b in self.blobs)

    def add(self, blob: _Blob, memory: torch.Tensor) -> None:
        """Adds a blob behind the last one. The first begins at a multiple of 64, so all are aligned for their dtype."""
        self.places.append(self.size)
        self.blobs.append(blob)
        self.memory.append(memory)
        self.size += blob.nbytes

    def message(self, at: int) -> str:
        """Returns the items and their places in JSON, if the unit is at an offset of the shared memory."""
        if (text := self.said.get(at)) is None:
            places = [at + place + start for blob, place in zip(self.blobs, self.places) for start in blob.starts]
            text = _json({"stamp": at, "items": list(self.items()), "at": places})
            self.said.clear()  # another save may be staged at the same time
            self.said[at] = text
        return text


# Small tensors of these dtypes are joined as they are. Those of others are joined as bytes.
_JOINED = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16,
                     torch.int8, torch.uint8, torch.bool})


class Pickled:
    """A value that is pickled already, as torch pickles it."""

    def __init__(self, data: bytes):
        self.data = data


class State:
    """The description of a state for the saver process: leaves, with the parts on this rank, or None for a value."""

    def __init__(self, leaves: Iterable[tuple[Leaf, list[Part] | None]], memory: _memory.Memory):
        self.memory = memory
        self.items: list[dict[str, Any]] = []
        self.texts: list[str] = []  # the items in JSON, in the first parts of the list if not in all
        self.absent: list[str] = []
        storages: dict[Any, list[tuple[int, torch.Tensor]]] = {}
        for leaf, held in leaves:
            place = _place(leaf)
            if held is None:
                self.items.append({**place, **_value(leaf.name, leaf.value)})
                continue
            held = [p for p in held if p.local.numel() or not p.shape or 0 in p.shape]
            if not held:
                self.absent.append(leaf.name)
                continue
            for p in held:
                t = p.local
                try:
                    item = {**place, "dtype": _memory.dtype_name(t.dtype), "shape": p.shape}
                except errors.RepresentError as e:
                    raise errors.RepresentError(f"{leaf.name!r}: {e}", e.codes) from None
                if p.offsets is not None:
                    item.update(sharded=True, offsets=p.offsets, sizes=list(t.shape))
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
        self.units: list[_Unit] = []
        self._shared_units: dict[tuple[torch.device, torch.dtype], _Unit] = {}
        self._staged_units: dict[int, _Unit] = {}
        for tensors in storages.values():
            self._add(*(self._blob(*tensors[0]) if len(tensors) == 1 else self._shared(tensors)))

    def message(self) -> str:
        """Returns the items in JSON."""
        self.texts += [_json(item) for item in self.items[len(self.texts):]]
        return f"[{','.join(self.texts)}]"

    def _blob(self, index: int, t: torch.Tensor) -> tuple[_Blob, torch.Tensor]:
        """Returns a tensor that shares its storage with no other."""
        if t.is_contiguous() or span(t) > 2 * t.nbytes:
            return _Blob(t.nbytes, [index], [0]), t.contiguous()
        return self._shared([(index, t)])

    def _shared(self, tensors: list[tuple[int, torch.Tensor]]) -> tuple[_Blob, torch.Tensor]:
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
        return _Blob(hi - lo, [index for index, _ in tensors], [start - lo for start in starts]), raw

    def _add(self, blob: _Blob, t: torch.Tensor) -> None:
        """Adds a blob to a unit."""
        if (at := self.memory.place(t)) is not None:
            if at not in self._staged_units:
                self.units.append(self._staged_units.setdefault(at, _Unit(at=at)))
            unit = self._staged_units[at]
            unit.blobs.append(blob)
            unit.memory.append(t)
            unit.places.append(t.data_ptr() - self.memory.bytes.data_ptr() - at)
            return
        small = blob.nbytes < _SMALL
        if small and t.dtype not in _JOINED:
            t = _memory.as_bytes(t)
        key = (t.device, t.dtype)
        unit = self._shared_units.get(key, _FULL) if small else _FULL
        if unit.size + blob.nbytes > _UNIT:
            unit = _Unit()
            self.units.append(unit)
            if small:
                self._shared_units[key] = unit
        unit.add(blob, t)


_FULL = _Unit(size=_UNIT + 1)
_json = json.JSONEncoder(separators=(",", ":")).encode


def _place(leaf: Leaf) -> dict[str, Any]:
    return {"name": leaf.name} if leaf.path is None else {"name": leaf.name, "path": leaf.path}


class Remembered:
    """The description of a state, for later states that differ in the contents of tensors and in values only.

    To describe many small tensors takes longer than to copy them. So it compares all of them at once with lists of
    their forms and devices, and notices if one has another form or shares memory.
    """

    def __init__(self, tree: Opened, owners: dict[Any, Any], leaves: list[tuple[Leaf, list[Part] | None]], state: State,
                 whole: bool, alone: bool):
        self.tree, self.whole, self.alone, self.usable = tree, whole, alone, False
        # Another module with the same names may have parameters where this one has buffers.
        self.modules = {k: weakref.ref(v) for k, v in owners.items() if isinstance(v, torch.nn.Module)}
        self.places: dict[int, dict[str, Any]] = {}  # of values
        self.numbers: list[int] = []  # of the leaves that are tensors; the lists below have an entry for each
        self.same: dict[int, int] = {}  # entries with the same memory as an earlier entry
        self.specs: dict[int, tuple[Any, Any, Any]] = {}  # of DTensors: type, spec, and what _form returns
        tensors: list[torch.Tensor] = []  # this rank's parts of DTensors
        if state.absent or len(state.items) != len(leaves) or any(u.at is not None for u in state.units):
            return
        first: dict[tuple[int, torch.Size, torch.dtype], tuple[int, int]] = {}
        storages: dict[int, int] = {}
        for i, (leaf, held) in enumerate(leaves):
            if held is None:
                self.places[i] = _place(leaf)
                continue
            v: Any = leaf.value
            t, spec = held[0].local, getattr(v, "_spec", None)
            if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.dtype.is_complex or t.is_neg():
                return
            if not t.is_contiguous() or not t.numel():
                return
            if t is not v and (spec is None or t is not v._local_tensor):
                return
            here = len(self.numbers)
            same, entry = first.setdefault((t.data_ptr(), t.shape, t.dtype), (i, here))
            if storages.setdefault(t.untyped_storage().data_ptr(), same) != same:
                return  # they share a part of their memory
            if same != i:
                if "alias" not in state.items[i] or state.items[i]["alias"] != state.items[same].get("alias"):
                    return  # they are the same memory, but other boxes
                self.same[here] = entry
            self.numbers.append(i)
            tensors.append(t)
            if spec is not None:
                self.specs[here] = type(v), spec, _form(v)
        self.like = _alike(tensors)
        self.items, self.texts = state.items, state.texts
        self.units = [(u.blobs, u.places, u.size, u.said, [b.items[0] for b in u.blobs]) for u in state.units]
        self.raw = any(t.dtype not in _JOINED for t in tensors)
        self._mark(tree)
        self.usable = True

    def _mark(self, opened: Opened) -> None:
        """Notes which dicts and lists have tensors and nothing else."""
        for part in opened.parts:
            if isinstance(part, Opened):
                self._mark(part)
        opened.tensors = all(type(part) is int and part not in self.places for part in opened.parts)

    def again(self, opened: Mapping[Any, Any], owners: dict[Any, Any], memory: _memory.Memory) -> State | None:
        """Returns the description of a state, or None if it has another form. opened has the dicts of the owners."""
        if not self.usable or memory.leased():
            return None
        if any(ref() is not owners.get(k) for k, ref in self.modules.items()):
            return None
        if any(isinstance(v, torch.nn.Module) and k not in self.modules for k, v in owners.items()):
            return None
        found: list[Any] = []
        if not self._walk(opened, self.tree, found) or not self._same_forms(found):
            return None
        out = State([], memory)
        out.items, out.texts = list(self.items), list(self.texts)
        for i, place in self.places.items():
            out.items[i] = {**place, **_value(place["name"], found[i])}
            out.texts[i] = _json(out.items[i])
        for blobs, places, size, said, numbers in self.units:
            tensors = [found[i] for i in numbers]
            if self.raw and len(tensors) > 1:  # as State joins them
                tensors = [t if t.dtype in _JOINED else _memory.as_bytes(t) for t in tensors]
            out.units.append(_Unit(blobs, places, size, tensors, said))
        return out

    def _walk(self, holder: Any, opened: Opened, found: list[Any]) -> bool:
        """Adds the leaves of a dict or a list in their order, and reports whether they are where they were."""
        in_list = isinstance(holder, list)
        if (not in_list and not isinstance(holder, Mapping)) or list(range(len(holder)) if in_list
                                                                     else holder) != opened.keys:
            return False
        values = holder if in_list else holder.values()
        if opened.tensors:  # _same_forms notices anything else
            found.extend(values)
            return True
        for v, part in zip(values, opened.parts):
            if type(part) is not int:
                if isinstance(v, torch.Tensor) or is_leaf(v, self.whole) or not self._walk(v, part, found):
                    return False
                continue
            if part in self.places and (isinstance(v, torch.Tensor) or not is_leaf(v, self.whole)):
                return False
            found.append(v)
        return True

    def _same_forms(self, found: list[Any]) -> bool:
        """Reports whether the tensors among the leaves are like those before. It replaces DTensors by their parts.

        Tensors that now share a part of their memory match: the part is copied twice.
        """
        tensors = [found[i] for i in self.numbers]
        for entry, (kind, spec, form) in self.specs.items():
            v: Any = tensors[entry]
            if type(v) is not kind or (v._spec is not spec and v._spec != spec) or _form(v) != form:
                return False
            found[self.numbers[entry]] = tensors[entry] = v._local_tensor
        if not self.like(tensors):
            return False
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        if any(addresses[entry] != addresses[first] for entry, first in self.same.items()):
            return False
        return all(addresses) and len(set(addresses)) == len(addresses) - len(self.same)


_form = operator.attrgetter("dtype", "shape", "requires_grad")


def _alike(tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], bool]:
    """Returns a function that reports whether other tensors have the types, dtypes, shapes, strides and devices of
    contiguous tensors, and their requires_grad.
    """
    try:  # PyTorch's compiler compares all tensors in one call, in a quarter of the time
        from torch._C._dynamo import guards

        make: Any = guards.TensorGuards  # its stub lacks the tensors
        known = make(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                     dynamic_dims_strides=[list(t.stride()) for t in tensors])
        return lambda others: bool(known.check(*others))
    except Exception:  # not all releases have it
        kinds, forms = list(map(type, tensors)), list(map(_every, tensors))
        return lambda others: list(map(type, others)) == kinds and list(map(_every, others)) == forms


def _every(t: torch.Tensor) -> tuple[Any, ...]:
    return _form(t), t.device, t.stride()


def span(t: torch.Tensor) -> int:
    """Returns the bytes from the first element of a tensor, which has some, to the end of its last."""
    return (sum((d - 1) * s for d, s in zip(t.shape, t.stride())) + 1) * t.element_size()


def _row_major(source: torch.Tensor, start: int, item: dict[str, Any], offset: int, n: int) -> torch.Tensor:
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


def _value(name: str, v: Any) -> dict[str, Any]:
    if not isinstance(v, Pickled):
        try:
            codec, data = values.encode(v)
            return {"codec": codec, "data": base64.b64encode(data).decode()}
        except values.NotPlain as e:
            v = _pickle(name, v, str(e))
    # An object of a class: marked, so that only a load that asks for it makes it again.
    data = _json({"$object": {"module": "cairn.torch", "name": "Pickled", "call": True,
                              "args": [{"$bytes": base64.b64encode(v.data).decode()}]}}).encode()
    return {"codec": "json", "data": base64.b64encode(data).decode()}


def _pickle(name: str, v: Any, what: str) -> Pickled:
    """Pickles a value. It warns, once for each name and type, if a load would refuse to make it again."""
    buffer = io.BytesIO()
    try:
        torch.save(v, buffer)
    except Exception as e:  # of any class
        raise errors.StateError(f"{name!r} is {what}, which cannot be pickled: {e}", ("plan.state",)) from e
    if (name, what) not in _pickles:
        _pickles.add((name, what))
        try:
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except Exception:
            warnings.warn(f"{name!r} is {what}, which is saved as a pickle: a load makes it again only with "
                          "allow_pickle=True. "
                          "Save plain data in its place, such as a dict", errors.PickleWarning,
                          stacklevel=errors.outside())
    return Pickled(buffer.getvalue())


_pickles: set[tuple[str, str]] = set()  # names and types of values that were saved as pickles


def numbers(metrics: Mapping[str, Any] | None) -> dict[str, float | str]:
    """Returns metrics as a message has them. What float accepts is a number, such as a tensor with one element."""
    out: dict[str, float | str] = {}
    for name, v in (metrics or {}).items():
        if not isinstance(name, str):
            raise errors.OptionsError(f"a metric is called {name!r}; want a string", ("storage.options",))
        try:
            n = float(v)
        except (TypeError, ValueError, RuntimeError) as e:
            raise errors.OptionsError(f"the metric {name!r} is {v!r}; want a number: {e}",
                                      ("storage.options",)) from None
        out[name] = n if math.isfinite(n) else "NaN" if math.isnan(n) else "+Inf" if n > 0 else "-Inf"
    return out


def new_id() -> str:
    """Returns the id of a new save, or of a load: the names of newer files come after those of older ones."""
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dt%H%M%S}-{secrets.token_hex(6)}"


def begin(make: Callable[[Job], State], path: Any, step: int | None, tags: dict[str, Any] | None,
          overwrite: bool | None, format: str, format_options: dict[str, Any] | None, files_per_rank: int,
          overlap: bool, alone: bool = False, remote: Any = None, local_bytes: int = 0, save_id: str = "",
          may_differ: bool = False, metrics: Mapping[str, Any] | None = None,
          explain: Callable[[BaseException], BaseException] | None = None) -> Handle:
    """Begins a save of the state that make returns. All ranks call it, or one alone. All raise an error of make.

    path is an address, a Run or a Member of one. The id of the save is the save_id of rank 0, or a new one if that is
    empty. explain returns the error of the handle for an error of the saver process.
    """
    j = error = None
    try:
        unseen.report()
        member = path.member(step) if isinstance(path, Run) else path if isinstance(path, Member) else None
        if member is not None:
            if remote is not None:
                raise errors.OptionsError("remote is set, but the run has the address of the remote run",
                                          ("storage.options",))
            path, remote = member.path, member.remote
        noted = numbers(metrics)
        store = address_of(path)
        above = store
        while "://" not in store and not os.path.exists(above):
            above = os.path.dirname(above)
        if os.path.isfile(above):
            raise errors.OptionsError(f"{above} is a file: a checkpoint is saved to a folder", ("storage.options",))
        step = None if step is None else operator.index(step)
        if step is not None and not -1 << 63 <= step < 1 << 63:
            raise errors.OptionsError(f"the step is {step}; it has 64 bits", ("storage.options",))
        files_per_rank, local_bytes = operator.index(files_per_rank), operator.index(local_bytes)
        if local_bytes and remote is None:
            raise errors.OptionsError("local_bytes is set without remote: nothing could be removed",
                                      ("storage.options",))
        upload_to = None if remote is None else address_of(remote)
        json.dumps(format_options, allow_nan=False)
        if not isinstance(overwrite, bool | None):
            raise errors.OptionsError(f"overwrite is {overwrite!r}; want True, False or None", ("storage.options",))
        if not all(isinstance(s, str) for tag in (tags or {}).items() for s in tag):
            raise errors.OptionsError(f"tags are {tags!r}; want strings", ("storage.options",))
        j = job(alone)
        state = make(j)
    except BaseException as e:  # the other ranks must know
        error = e
    what = ""
    if error is None:  # the ranks of other hosts may have other paths to the folder, or to the run
        to = (upload_to or store).rstrip("/").split("/")[-1 if member is None else -2:]
        what = f"save to {'/'.join(to)!r}, step {step}"
    saver = ready(j, error, alone, what)
    assert j is not None
    handle = Handle(store)
    handle._reply.explain = explain
    number = saver.number()
    message: dict[str, Any] = {
        "store": store, "format": format, "save_id": (save_id := save_id or new_id()),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z"),
        "writer": "cairn.torch", "fail_if_exists": overwrite is False, "cache": True, "files_per_rank": files_per_rank,
        "absent": state.absent,
    }
    if format_options:
        message["format_options"] = format_options
    if step is not None:
        message["step"] = step
    if tags:
        message["tags"] = tags
    if noted:
        message["metrics"] = noted
    if member is not None:
        message["run"] = member.message()
    elif overwrite is None:
        message["replaces"] = _ours.at(store, _noted_at(store, format, format_options))
        if upload_to is not None:  # a save is uploaded after the saves before it, whose uploads may have failed
            message["replaces_remote"] = [*_ours.at(upload_to, _noted_at(upload_to, format, format_options)),
                                          *filter(None, message["replaces"])]
    if may_differ:
        message["tensors_may_differ"] = True
    if upload_to is not None:
        message.update(remote=upload_to, local_bytes=local_bytes)
        handle._upload = saver.expect_upload(number)
        _note(handle._upload, _noted_at(upload_to, format, format_options), save_id)
    staging = Staging(j, saver, state, number, handle)
    handle._staging = staging
    handle._reply.then(staging.over)
    if member is None:
        _note(handle._reply, _noted_at(store, format, format_options), save_id)
    handle._watch()
    try:
        staging.begun = events(state.units)
        saver.begin(("generation", number), handle._reply, "save", {"items": state.message()}, **message,
                    fits=staging.reserve())
        if overlap:
            # The interpreter waits for it at its end: a save that is not staged would be lost.
            threading.Thread(target=staging.run, name="cairn-stage", daemon=False).start()
            return handle
        staging.run()
    except BaseException as e:
        staging.abandon(e)
        saver.close(5)  # the savers of the other ranks do not wait for this one
        handle._fail(e)
        staging.error = e
    # Ctrl-C: the caller does not get the handle
    if staging.error is not None and not isinstance(staging.error, Exception):
        unseen.drop(handle._seen, staging.error)
        raise staging.error
    return handle


def _noted_at(address: str, format: str, format_options: dict[str, Any] | None) -> str:
    """Returns the address of a checkpoint in a folder: of its file, if other checkpoints may be beside it."""
    file = (format_options or {}).get("file")
    return join_address(address, file) if format == "torch" and isinstance(file, str) else address


def _note(reply: Reply, address: str, save_id: str) -> None:
    """Notes that this process saves to an address: a later save may replace the checkpoint."""
    place = _ours.begun(address, save_id)

    def over() -> None:
        if reply.error is None and reply.body is not None:
            _ours.saved(place, save_id, reply.body.save_id)

    reply.then(over)


def events(units: list[_Unit]) -> dict[torch.device, Any]:
    """Returns an event for each device of some units. Copies wait for it, and not for later work of the device."""
    out: dict[torch.device, Any] = {}
    for device in {u.device for u in units if u.device.type == "cuda"}:
        with torch.cuda.device(device):
            out[device] = torch.cuda.current_stream(device).record_event()
    return out


def copy_units(memory: _memory.Memory, pending: list[tuple[_Unit, int]],
               begun: dict[torch.device, Any]) -> str:
    """Copies units to their places in the shared memory, and returns them as a message has them, in JSON."""
    gathers = []
    for unit, at in pending:
        if unit.at is None:
            gathers.append((memory.part(at + _STAMP, unit.size - _STAMP), unit.memory))
    with memory.gather(gathers, begun):
        return f"[{','.join(unit.message(at) for unit, at in pending)}]"


class _Ahead:
    """Takes memory for units, in a thread of its own if that takes long."""

    def __init__(self, arena: Any, units: list[tuple[_Unit, int]]):
        self.error: BaseException | None = None
        self.arena = arena
        self.units = [(at, at + u.size) for u, at in units if u.at is None and not arena.is_backed(at, at + u.size)]
        self.thread = threading.Thread(target=self._run, name="cairn-back", daemon=True) if self.units else None
        try:
            if self.thread is not None:
                self.thread.start()
        except RuntimeError:  # the interpreter is ending, and starts nothing more
            self.thread = None
            self._run()

    def _run(self) -> None:
        try:
            lo, hi = self.units[0]
            for a, b in self.units[1:]:  # parts that follow one another are taken together
                if a != hi:
                    self.arena.back(lo, hi)
                    lo = a
                hi = b
            self.arena.back(lo, hi)
        except BaseException as e:
            self.error = e

    def join(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def wait(self) -> None:
        """Waits until the units have memory, or raises why they have not."""
        self.join()
        if self.error is not None:
            raise self.error


def prepare(state: Mapping[Any, Any]) -> None:
    """Prepares the first save of a state, which then stops training as briefly as later saves. All ranks call it.

    >>> cairn.torch.prepare({"model": torch.nn.Linear(3, 2)})

    It starts the saver process. The shared memory is taken in the background, while the job
    sets itself up.
    """
    j = error = None
    units: list[_Unit] = []
    try:
        j = job()
        units = described(j, state, False).units
    except BaseException as e:  # the other ranks must know
        error = e
    ready(j, error, False, "prepare a save")
    assert j is not None
    held = [(at, u.size) for u in units if u.at is None and (at := j.arena.reserve(u.size)) is not None]
    for at, size in held:
        j.arena.free(at, size)
    devices = {u.device for u in units if u.device.type == "cuda"}

    def take() -> None:
        for lo in range(0, max((at + size for at, size in held), default=0), _GROUP):
            if j.closing:
                return
            j.arena.back(lo, min(lo + _GROUP, j.arena.window))
            for device in devices:
                j.memory.register(device)

    j.preparing = threading.Thread(target=take, name="cairn-prepare", daemon=True)
    j.preparing.start()


class Staging:
    """Copies a state into the shared memory, unit by unit."""

    def __init__(self, j: Job, saver: Any, state: State, generation: int, handle: Handle):
        self.job, self.saver, self.state, self.generation, self.handle = j, saver, state, generation, handle
        self.held: list[tuple[int, _Unit]] = []  # units in memory, with their offsets
        self.released: set[int] = set()  # items that the save does not need any more
        self.begun: dict[torch.device, Any] = {}
        self.lock = threading.Lock()
        self.fetching = threading.Lock()  # held while a fetch reads a tensor
        self.complete = False  # the caller may change the state
        self.running = False  # the shared memory is being written
        self.ended = False  # the save is over
        self.error: BaseException | None = None  # of run

    def reserve(self) -> bool:
        """Takes shared memory for all units, or for none, and reports whether all of them will be staged.

        Without it the saver process must be able to fetch: a later save may stage first, and
        has its memory until this one is over.
        """
        self.job.memory.reclaim()
        for unit in self.state.units:
            if unit.at is not None:
                continue
            if (at := self.job.arena.reserve(unit.size)) is None:
                self.free(self.held)
                self.held = []
                return False
            self.held.append((at, unit))
        return True

    def run(self) -> None:
        try:
            if self._copy_all():
                self.handle.staged._settle()
        except BaseException as e:
            self.begun.clear()
            traceback.clear_frames(e.__traceback__)  # they keep the tensors
            # If the save is over, for example because its process has ended, this is only a consequence.
            error = (self.ended and isinstance(e, Exception) and self.handle._reply.error) or e
            # The shared memory is in use until the saver process has answered, by this error or by the end of the
            # process.
            self.error = self.handle._reply.error = error
            if self.handle._upload is not None:
                self.handle._upload.error = error
            self.abandon(error)
            self.handle.staged._settle(error=error)
        finally:
            self.stop()

    def _copy_all(self) -> bool:
        """Copies the state aside and tells the saver process. False: the save was over before."""
        start = time.monotonic_ns()
        with self.lock:
            if self.ended:
                return False
            self.running = True
            reserved = {unit: at for at, unit in self.held}
        for some in self._backed([(u, at) for u in self.state.units if (at := reserved.get(u, u.at)) is not None]):
            self.copy(some)
        pending: list[tuple[_Unit, int]] = []
        for unit in self.state.units:
            if unit in reserved or unit.at is not None:
                continue
            at = self.job.memory.alloc(unit.size)
            while at is None and not self.released.issuperset(unit.items()):
                self.copy(pending)
                pending = []
                if self.ended:
                    raise self.handle._reply.error or errors.CairnError(
                        "the save ended before the state was staged")
                with self.job.arena.room:
                    self.job.arena.room.wait(0.1)
                at = self.job.memory.alloc(unit.size)
            if at is None:
                continue  # the saver process has fetched it, or does not need it
            with self.lock:
                self.held.append((at, unit))
            pending.append((unit, at))
        self.copy(pending)
        with self.fetching:  # from here on, fetches read staged units
            self.complete = True
        self.stop()
        self.begun.clear()  # a worker that is forked later could not destroy an event, and would abort
        self.saver.send("staged", generation=self.generation, all=True, stage_ns=time.monotonic_ns() - start,
                        stage_bytes=sum(u.nbytes() for u in self.state.units))
        return True

    def _backed(self, units: list[tuple[_Unit, int]]) -> Iterator[list[tuple[_Unit, int]]]:
        """Yields units whose places have memory. While the caller uses some, others get theirs."""
        arena = self.job.arena
        groups: list[list[tuple[_Unit, int]]] = [[]]
        size = 0
        for unit, at in units:
            if size >= _GROUP:
                groups.append([])
                size = 0
            groups[-1].append((unit, at))
            size += 0 if unit.at is not None or arena.is_backed(at, at + unit.size) else unit.size
        ahead = _Ahead(arena, groups[0])
        try:
            for group, following in itertools.zip_longest(groups, groups[1:]):
                ahead.wait()
                if following:
                    ahead = _Ahead(arena, following)
                yield group
        finally:
            ahead.join()

    def abandon(self, error: BaseException) -> None:
        """Has the saver process give up the save."""
        with contextlib.suppress(errors.CairnError):  # it has ended
            self.saver.send("abandon", generation=self.generation, error={"text": str(error) or repr(error)})

    def stop(self) -> None:
        """Notes that the shared memory is not being written any more."""
        with self.lock:
            self.running = False
            ended = self.ended
        if ended:
            self.over()

    def copy(self, pending: list[tuple[_Unit, int]]) -> None:
        """Copies units and tells the saver where they are."""
        if not pending:
            return
        for _, at in pending:
            self.job.arena.view[at:at + 8] = bytes(8)
        units = copy_units(self.job.memory, pending, self.begun)
        for _, at in pending:
            self.job.arena.view[at:at + 8] = struct.pack("<Q", self.generation)
        self.saver.send("staged", {"units": units}, generation=self.generation)
        for unit, _ in pending:
            unit.staged = True
        self.release([])

    def release(self, items: list[int]) -> None:
        """Frees units whose items the save does not need any more, for units that have no room yet."""
        with self.lock:
            self.released.update(items)
            over = [(at, u) for at, u in self.held if u.staged and self.released.issuperset(u.items())]
            self.held = [(at, u) for at, u in self.held if (at, u) not in over] if over else self.held
        self.free(over)

    def free(self, units: list[tuple[int, _Unit]]) -> None:
        for at, unit in units:
            if unit.staged and not self.job.closing:  # otherwise the process may be saving it still
                self.job.arena.view[at:at + 8] = bytes(8)
            self.job.arena.free(at, unit.size)

    def fetch(self, body: dict[str, Any]) -> None:
        """Copies a part of an item that is not staged, or was not when the saver asked for it, into the window."""
        try:
            item, n = body["item"], body["length"]
            unit, blob, place, t = next((u, b, p, t) for u in self.state.units for b, p,
                                        t in zip(u.blobs, u.places, u.memory) if item in b.items)
            self.job.arena.back(body["at"], body["at"] + n)
            memory = self.job.memory
            with self.fetching:
                with self.lock:
                    staged = next((at for at, u in self.held if u is unit and u.staged), None)
                if staged is not None:
                    source = memory.part(staged + place, blob.nbytes)
                elif self.complete and unit.at is None:
                    raise errors.CairnError("the save does not need this any more")
                else:
                    source = _memory.as_bytes(t)
                stream = memory.stream(source.device) if source.is_cuda else None
                with torch.cuda.stream(stream):
                    if stream is not None:
                        stream.wait_event(self.begun[source.device])
                    part = _row_major(source, blob.starts[blob.items.index(item)], self.state.items[item],
                                      body["offset"], n)
                with memory.gather([(memory.part(body["at"], n), [part])], self.begun):
                    pass
            self.saver.send("fetched", fetch=body["fetch"])
        except BaseException as e:
            self.saver.send("fetched", fetch=body["fetch"], error={"text": str(e) or repr(e)})

    def over(self) -> None:
        """The save is over: its memory is free, or will be when nothing writes to it any more."""
        with self.lock:
            self.ended = True
            if self.running:
                return
            held, self.held = self.held, []
            units, self.state.units = self.state.units, []  # its tensors may be large
        for unit in units:
            if unit.at is not None and not self.job.closing:
                self.job.arena.view[unit.at:unit.at + 8] = bytes(8)
        self.free(held)
        self.handle._staging = None
        # A save of a small state may be complete before run has noted that the state is staged.
        self.handle.staged._settle(error=self.handle._reply.error)
