"""Descriptions of states that were saved, for later saves of states of the same form."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cairn import errors
from cairn._messages import Item, encode
from cairn.torch import _memory
from cairn.torch._description import State, place_of
from cairn.torch._job import Job
from cairn.torch._pickled import value_item
from cairn.torch._state import Leaf, Opened, Part, Shards, check, flatten, is_leaf, is_stateful, parts
from cairn.torch._units import JOINED, Unit


def describe(j: Job, state: torch.nn.Module | Mapping[Any, Any], alone: bool, whole: bool = False) -> State:
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
        self.places: dict[int, Item] = {}  # of values
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
                self.places[i] = place_of(leaf)
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
        self.raw = any(t.dtype not in JOINED for t in tensors)
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
            out.items[i] = value_item(place, found[i])
            out.texts[i] = encode(out.items[i])
        for blobs, places, size, said, numbers in self.units:
            tensors = [found[i] for i in numbers]
            if self.raw and len(tensors) > 1:  # as State joins them
                tensors = [t if t.dtype in JOINED else _memory.as_bytes(t) for t in tensors]
            out.units.append(Unit(blobs, places, size, tensors, said))
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
            if part in self.places and (isinstance(v, (torch.Tensor, Shards)) or not is_leaf(v, self.whole)):
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
