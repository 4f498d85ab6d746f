"""A state dict as a list of tensors and values with names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from cairn import errors

StateDict: TypeAlias = dict[str, Any]
"""The state of a user, or of an object in it: tensors, values, dicts and lists by name, of any class."""

_MAX_DEPTH = 256
_MAX_NAME = 4096


@dataclass(slots=True)
class Leaf:
    """A tensor or a value, its name, its place in the state, and what holds it there."""

    name: str
    path: list[Any] | None
    value: Any
    holder: Any = None  # a dict or a list
    key: Any = None
    may_differ: bool = False  # ranks may hold different contents, such as buffers of modules

    def replace(self, new: Any) -> None:
        """Puts another value in its place."""
        try:
            self.holder[self.key] = new
        except TypeError:
            raise errors.StateError(f"{self.name!r} is a value in a {type(self.holder).__name__}, "
                                    "which nothing can be assigned to", ("plan.state",)) from None


@dataclass(slots=True)
class Opened:
    """A dict or a list that flatten has opened."""

    keys: list[Any] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)  # of each key: an Opened, or the number of a leaf
    tensors: bool = False  # all parts are known to be tensors


def flatten(state: Mapping[Any, Any], whole: bool = False, into: Opened | None = None,
            owners: Mapping[Any, Any] = MappingProxyType({})) -> list[Leaf]:
    """Returns the leaves of a state. Dicts are opened, and lists with a tensor or a dict in them.

    With whole, the state can be made again from its leaves: dicts that are empty, or have keys that are
    neither strings nor integers, are leaves. into receives the dicts and lists that were opened. owners has
    the objects whose dicts are in the state in place of them. The state is the dict of the owner None.
    """
    out: list[Leaf] = []
    check(state)
    _open([], "", state, out, whole, into or Opened())
    buffers = {b if k is None else f"{k}.{b}" for k, v in owners.items() if isinstance(v, torch.nn.Module) for b,
               _ in v.named_buffers(remove_duplicate=False)}
    for leaf in out if buffers else ():
        leaf.may_differ = leaf.name in buffers
    names: set[str] = set()
    for leaf in out:
        if leaf.name in names:
            raise errors.StateError(f"two entries of the state have the name {leaf.name!r}", ("plan.state",))
        names.add(leaf.name)
        if leaf.name.isascii() and 0 < len(leaf.name) <= _MAX_NAME:
            continue
        try:
            size = len(leaf.name.encode())
        except UnicodeEncodeError:  # a surrogate without its other half
            size = 0
        if not 0 < size <= _MAX_NAME:
            raise errors.StateError(f"the name {leaf.name[:100]!r} does not have 1 to {_MAX_NAME} bytes of UTF-8",
                                    ("plan.state",))
    return out


def check(state: Any) -> None:
    """Raises an error if state cannot be one."""
    if not isinstance(state, Mapping):
        raise errors.StateError(f"a state is a dict, such as {{'model': model}}, not a {type(state).__name__}",
                                ("plan.state",))


def is_stateful(v: Any) -> bool:
    """Reports whether v is a module, an optimizer or the like."""
    return not isinstance(v, (torch.Tensor, Mapping, type)) and callable(getattr(v, "state_dict", None)) \
        and callable(getattr(v, "load_state_dict", None))


def _opens(v: Any, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        raise errors.StateError("a list of the state is nested too deeply, or contains itself", ("plan.state",))
    if isinstance(v, (Mapping, torch.Tensor)):
        return True
    return isinstance(v, list) and any(_opens(x, depth + 1) for x in v)


def _is_key(k: Any) -> bool:
    return isinstance(k, (str, int)) and not isinstance(k, bool)


def is_leaf(v: Any, whole: bool) -> bool:
    """Reports whether flatten does not open v, which is not a tensor."""
    if isinstance(v, Mapping):
        return whole and not (v and all(map(_is_key, v)))
    return not (isinstance(v, list) and _opens(v))


def _open(path: list[Any], prefix: str, holder: Any, out: list[Leaf], whole: bool, into: Opened) -> None:
    """Adds the leaves of a dict or a list. Its names begin with prefix."""
    if len(path) >= _MAX_DEPTH:
        raise errors.StateError(f"{prefix[:100]!r} is nested too deeply, or contains itself", ("plan.state",))
    in_list = isinstance(holder, list)
    for k, v in enumerate(holder) if in_list else holder.items():
        if not _is_key(k):
            where = prefix[:-1] or "the state"
            raise errors.StateError(f"the key {k!r} of {where!r} is neither a string nor an integer", ("plan.state",))
        here = [*path, {"pos": k} if in_list else k if isinstance(k, str) else {"int": str(k)}]
        name = f"{prefix}{k}"
        if isinstance(v, torch.Tensor) or is_leaf(v, whole):
            into.keys.append(k)
            into.parts.append(len(out))
            out.append(Leaf(name, here, v, holder, k))
            continue
        below = Opened()
        into.keys.append(k)
        into.parts.append(below)
        _open(here, name + ".", v, out, whole, below)


class Tree(dict[Any, Any]):
    """A dict or a list that is being made of its parts, which have paths as flatten makes them."""

    is_list = False

    def place(self, path: list[Any], value: Any) -> None:
        """Puts a part into its place."""
        step, rest = path[0], path[1:]
        if isinstance(step, dict):
            self.is_list = "pos" in step
            step = step["pos"] if self.is_list else int(step["int"])
        if rest:
            self.setdefault(step, Tree()).place(rest, value)
        else:
            self[step] = value

    def result(self) -> Any:
        """Returns the dict or the list."""
        made = {k: v.result() if isinstance(v, Tree) else v for k, v in self.items()}
        return [made[k] for k in sorted(made)] if self.is_list else made

    def add_to(self, holder: Any) -> None:
        """Adds the parts to a dict or a list that lacks them."""
        for k in sorted(self) if self.is_list else self:
            v = self[k]
            has = k < len(holder) if isinstance(holder, list) else k in holder
            if isinstance(v, Tree) and has and isinstance(holder[k], (dict, list)):
                v.add_to(holder[k])
                continue
            v = v.result() if isinstance(v, Tree) else v
            if isinstance(holder, list) and not has:
                holder.append(v)
            else:
                holder[k] = v


def _is_sharded(v: Any) -> bool:
    return type(v).__name__ == "ShardedTensor" and hasattr(v, "local_shards")


class Shards:
    """A tensor of a state of which the caller says which parts this rank holds.

    >>> rank, ranks = 0, 1
    >>> rows = torch.ones(2, 3)
    >>> state = {"w": cairn.torch.Shards((2 * ranks, 3), [((2 * rank, 0), rows)])}
    >>> report = cairn.torch.save(state, "run/step-8")
    >>> whole = torch.zeros(2 * ranks, 3)
    >>> report = cairn.torch.load({"w": whole}, "run/step-8")
    >>> whole
    tensor([[1., 1., 1.],
            [1., 1., 1.]])

    It is for frameworks whose tensors are neither DTensors nor whole. shape is the shape of the whole tensor. parts are
    boxes of it: where a box begins, and its elements. A rank may hold several boxes, or none. Together, the ranks that
    save hold all elements. A load fills the parts in place.
    """

    requires_grad = False

    def __init__(self, shape: Sequence[int], parts: Iterable[tuple[Sequence[int], torch.Tensor]] = ()) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        """The shape of the whole tensor."""
        self.parts: list[tuple[tuple[int, ...], torch.Tensor]] = [(tuple(at), t) for at, t in parts]
        """Where each part begins, and its elements."""
        for at, t in self.parts:
            inside = len(at) == t.dim() == len(self.shape) and all(
                begin >= 0 and begin + n <= whole for begin, n, whole in zip(at, t.shape, self.shape))
            if not inside or t.dtype != self.parts[0][1].dtype:
                raise errors.StateError(f"a {t.dtype} of the shape {list(t.shape)} at {list(at)} is not a part of a "
                                        f"{self.parts[0][1].dtype} of the shape {list(self.shape)}", ("plan.state",))

    def __repr__(self) -> str:
        return f"<{len(self.parts)} parts of a tensor of the shape {list(self.shape)}>"


@dataclass(slots=True)
class Part:
    """A part of a tensor that this rank holds: a box, or all of it."""

    shape: list[int]
    local: torch.Tensor
    offsets: list[int] | None = None  # None: all of it


def fitting(leaves: Iterable[Leaf], entries: Mapping[str, Mapping[str, Any]]) -> Callable[[str, str], bool]:
    """Returns a function that says whether a leaf can have the contents of an entry of a checkpoint.

    It can if both are values, or tensors of one shape.
    """
    held = {leaf.name: parts(leaf) for leaf in leaves}

    def fits(mine: str, theirs: str) -> bool:
        here, entry = held[mine], entries[theirs]
        if here is None or "dtype" not in entry:
            return here is None and "dtype" not in entry
        return not here or here[0].shape == (entry.get("shape") or [])

    return fits


def parts(leaf: Leaf) -> list[Part] | None:
    """Returns the parts of a tensor that this rank holds, or None if the leaf is not a tensor."""
    v = leaf.value
    whole: Any = v  # of classes that not every build of torch has
    if isinstance(v, Shards):
        return [Part(list(v.shape), p.local, list(at)) for at, t in v.parts
                for p in parts(Leaf(leaf.name, None, t)) or ()]
    if not isinstance(v, torch.Tensor):
        return None
    if torch.nn.parameter.is_lazy(v):
        raise _unfit(leaf, "has no shape yet: its module must be called once before")
    if _is_sharded(v):
        shape = list(whole.metadata().size)
        return [Part(shape, s.tensor, list(s.metadata.shard_offsets)) for s in whole.local_shards()]
    if hasattr(v, "device_mesh") and hasattr(v, "placements"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if any(p.is_partial() for p in v.placements):
            raise _unfit(leaf, "is a DTensor whose sum is outstanding (Partial): redistribute it first")
        if v.is_meta:
            raise _unfit(leaf, "is on the device meta and has no memory: use to_empty() first")
        with torch.no_grad():  # otherwise it is a view
            local = whole.to_local()
        if v.device_mesh.get_coordinate() is None:
            return []
        sizes, offsets = compute_local_shape_and_global_offset(v.shape, v.device_mesh, v.placements)
        local = _arrived(local)
        spec: Any = getattr(v, "_spec", None)
        if getattr(spec, "shard_order", None) is not None and not spec.is_default_device_order(spec.shard_order):
            raise _unfit(leaf, "is a DTensor whose shards do not follow the order of its mesh: redistribute it first")
        if list(sizes) != list(local.shape):
            raise _unfit(leaf, f"is a DTensor with a local shape of {list(local.shape)}, not {list(sizes)}")
        return [Part(list(v.shape), local, list(offsets))]
    if v.layout is not torch.strided or v.is_nested:
        raise _unfit(leaf, "is a sparse or nested tensor, which cannot be saved or loaded: use its parts")
    if v.is_meta:
        raise _unfit(leaf, "is on the device meta and has no memory: use to_empty() first")
    return [Part(list(v.shape), _arrived(v))]


def memory_of(name: str, t: torch.Tensor) -> tuple[Any, ...]:
    """Returns what is equal for tensors that are one in memory."""
    check_memory(name, t)
    return t.device, t.data_ptr(), t.dtype, t.shape, t.stride()


def apart(same: list[tuple[str, Part]], wanted: Mapping[str, str], entries: Mapping[str, Any]) -> list[tuple[str,
                                                                                                           Part]]:
    """Returns those of several names of one tensor in memory that are different tensors in a checkpoint.

    wanted has the names in the checkpoint. Names that it lacks are left out, and so are all but the first of the names
    under which it has one tensor.
    """
    out: dict[Any, tuple[str, Part]] = {}
    for name, p in same:
        if (e := entries.get(wanted[name])) is not None:
            box = tuple(p.shape), tuple(p.offsets or [0] * len(p.shape))
            out.setdefault((e.get("alias") or wanted[name], box), (name, p))
    return list(out.values())


def tied(a: str, b: str) -> errors.MismatchError:
    """Returns the error of two names of one tensor that have different elements in a checkpoint."""
    return errors.MismatchError(f"{a!r} and {b!r} are one tensor in memory, and the checkpoint has different elements "
                                "for them: untie them, or leave one of the names out", ("plan.mismatch",))


def _arrived(t: torch.Tensor) -> torch.Tensor:
    """Waits for a tensor that a collective is still filling."""
    return t.wait() if type(t).__name__ == "AsyncCollectiveTensor" else t  # type: ignore[attr-defined]


def check_memory(name: str, t: torch.Tensor) -> None:
    """Raises StateError if the elements of a tensor are not in its own memory."""
    if not t.numel():
        return
    last = int(t.storage_offset()) + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    try:
        storage = t.untyped_storage()
        fits = storage.nbytes() >= (last + 1) * t.element_size()
        if fits and storage.device.type == t.device.type and storage.data_ptr():
            return
    except (RuntimeError, NotImplementedError):  # a class that wraps other tensors
        pass
    raise errors.StateError(f"{name!r} is a {type(t).__name__} without memory of its own, such as one that wraps "
                            "other tensors, "
                            "that is fake or whose storage was freed: save and load the tensors that it is made of",
                            ("plan.state",))


def _unfit(leaf: Leaf, text: str) -> errors.StateError:
    return errors.StateError(f"{leaf.name!r} {text}", ("plan.state",))
