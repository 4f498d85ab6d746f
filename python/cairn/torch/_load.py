"""Loading: the saver process reads and verifies, and pieces are copied to tensors as they arrive."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cairn import _recipe, errors, names, values
from cairn._address import address_of
from cairn._boxes import PIECE, cut
from cairn._messages import Entry, FormatOptions, Reading, Want
from cairn._saver import Saver
from cairn.names import Rename
from cairn.reports import LoadReport
from cairn.runs import Run, loaded
from cairn.torch import _memory, _state
from cairn.torch._job import Caught, Job, Sharing, agree, broadcast, is_shared, job, join_memory
from cairn.torch._perrank import PerRank
from cairn.torch._state import Leaf, Part, Tree, check, check_memory, flatten, is_stateful, memory_of, parts


def load(state: Mapping[Any, Any] | torch.nn.Module, path: str | os.PathLike[str] | Run, *, strict: bool = True,
         rename: Rename = None, format: str | None = None, format_options: FormatOptions | None = None,
         allow_pickle: bool = False, cast: str = "in-range", alone: bool = False, share: bool | None = None,
         recipe: str | os.PathLike[str] | None = None, config: _recipe.Config = None, reverse: bool = False,
         variables: Mapping[str, Any] | None = None, step: int | None = None, best: str | None = None) -> LoadReport:
    """Fills a state from a checkpoint of any format. All ranks call it.

    >>> report = cairn.torch.save({"w": torch.ones(3), "step": 7}, "run/step-7")
    >>> state = {"w": torch.zeros(3, dtype=torch.float64), "step": 0}
    >>> cairn.torch.load(state, "run/step-7").missing
    ()
    >>> state
    {'w': tensor([1., 1., 1.], dtype=torch.float64), 'step': 7}

    path is a checkpoint, or a :class:`cairn.Run`, whose newest complete checkpoint is loaded: the same on all ranks.
    With step=500, it is the checkpoint of that step, and with best="loss" or best="highest accuracy" the one with the
    lowest or highest value of a metric; see :meth:`cairn.Run.step` and :meth:`cairn.Run.best`.
    After a load of a checkpoint of a run, the next save of this job to the run goes on from there.
    With a Run, it waits for saver processes that are still writing to the run.
    NotFoundError: there is no checkpoint yet.

    Tensors are filled in place, each with the part that this rank holds; elements are converted to its dtype.
    Values are replaced in the dict. If several names of the state are one tensor in memory, the checkpoint must have
    the same elements for those of them that it has: otherwise it is a MismatchError. A name that only the state has
    is a MissingError; so are, as a MismatchError, names that the checkpoint has below a module or an optimizer of the
    state, and the module or optimizer lacks. Without strict, they are left out: ``missing`` of the report has the
    names that the checkpoint lacks, which stay as they are. Other objects with a state_dict, such as a scheduler,
    get all that was saved of them. What else only the checkpoint has, also in dicts that the state has, is left out.
    Objects that were pickled are made again only with allow_pickle, because a pickle can run any code. Without it,
    they are described, as in :func:`cairn.open`, or a RepresentError if cairn saved them. format and format_options are
    needed only if the format cannot be detected or has options for reading.

    rename maps names of the state to names of the checkpoint: a dict of prefixes, such as
    {"model.": "model.module."}, of which the longest counts; a function; or "wrappers", which
    ignores the parts that DDP, torch.compile and other wrappers add to names.

    cast says which conversions are allowed. "in-range" rounds floats, and raises CastError if
    numbers would be lost: an integer that is out of the range of the tensor's dtype, or floats
    in place of which the state has integers. "any" allows every conversion, as ``Tensor.to``;
    "widen" conversions that keep every value; "none" no conversion. Quantised numbers, such as "w" in float8 beside
    "w_scale_inv", are never converted, because they mean nothing without their scales.

    With alone, only this rank loads, and does not wait for the others. With share, of the ranks of a host that want
    the same bytes, one reads them and sends them to the others. None: they do so if the checkpoint is in object
    storage; see docs/serving.md.

    A state may also be a module, which is loaded with the names of its own state_dict. With recipe, the names
    and shapes are those into which a recipe changes the checkpoint, and each rank reads only the elements of
    its part::

        cairn.torch.load(model, "Llama-3.1-8B", recipe="hf-to-titan/llama")
        cairn.torch.load({"model": model}, "Llama-3.1-8B", recipe="hf-to-titan/llama", rename={"model.": ""})

    recipe, config, reverse and variables are described at :func:`cairn.convert`.
    """
    report, sharing = LoadReport(), None
    if isinstance(path, Run) and path.memory is not None:
        join_memory(path.memory.path, alone)
    join_memory(path.path if isinstance(path, Run) else address_of(path), alone)
    if isinstance(path, Run):
        path = newest(path, alone, step, best)
    elif step is not None or best is not None:
        raise errors.OptionsError("step and best choose a checkpoint of a run: "
                                  f"if {path} is one, pass cairn.Run({str(path)!r})", ("storage.options",))
    with Caught() as caught:
        how: Reading = {"format": format, "format_options": format_options,
                        "recipe": _recipe.message(recipe, config, reverse, variables)}
        address = address_of(path)
        if is_shared(address, share, alone):
            sharing = Sharing(job(), None, f"load {address}")
        j = job(alone)
        report = _Load(j, address, strict, rename, how, allow_pickle, cast, alone or j.rank == 0, sharing).run(state)
    if sharing is not None:
        if caught.error is not None:
            sharing.fail(caught.error)
        sharing.close()
    if not alone:
        agree("load", caught.error, same=report.save_id, differs=lambda theirs: errors.ChangedError(
            f"another rank has loaded the save {theirs}, and this one {report.save_id}: the ranks have loaded "
            f"different checkpoints, or {path} "
            "was replaced meanwhile", ("storage.changed",)))
    elif caught.error is not None:
        raise caught.error
    loaded(address, report.save_id)
    return report


def newest(run: Run, alone: bool, step: int | None = None, best: str | None = None) -> str:
    """Returns the newest complete checkpoint of a run, the one of a step or the best one: what rank 0 finds.

    All ranks call it, or one alone.
    """
    def find() -> str:
        if step is not None and best is not None:
            raise errors.OptionsError("step and best contradict each other", ("storage.options",))
        if step is not None:
            return run.step(step).path or ""
        if best is not None:
            return run.best_by(best).path or ""
        if (path := run.latest(wait=True)) is None:
            raise errors.NotFoundError(f"{run.path} has no complete checkpoint yet", ("storage.notfound",))
        return path

    return find() if alone else broadcast("latest", find, f"load step {step}, best {best}")


class _Load:
    """A load, and its options."""

    def __init__(self, j: Job, path: str, strict: bool, rename: Rename, how: Reading, allow_pickle: bool, cast: str,
                 checks: bool, sharing: Sharing | None):
        self.job, self.path, self.strict, self.rename = j, path, strict, rename
        self.how, self.allow_pickle, self.cast, self.sharing = how, allow_pickle, cast, sharing
        self.checks = how["recipe"] is not None and checks  # one rank checks what the recipe assumes

    @functools.cached_property
    def entries(self) -> dict[str, Entry]:
        """What the checkpoint has, by name."""
        how: Reading = {**self.how, "recipe": _recipe.checked(self.how["recipe"])} if self.checks else self.how
        described = self.job.own().describe(self.path, **how)
        return {e["name"]: e for e in described.get("entries") or []}

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the checkpoint, in order."""
        return sorted(self.entries)

    def below(self, prefix: str) -> list[str]:
        """Returns the names of the checkpoint that begin with a prefix."""
        start = bisect.bisect_left(self.names, prefix)
        return list(itertools.takewhile(lambda name: name.startswith(prefix),
                                        itertools.islice(self.names, start, None)))

    def run(self, state: Mapping[Any, Any] | torch.nn.Module) -> LoadReport:
        """Loads the state."""
        if isinstance(state, torch.nn.Module):
            return self._run(state.state_dict(), state)
        return self._run(state)

    def _run(self, state: Mapping[Any, Any], module: torch.nn.Module | None = None) -> LoadReport:
        """Loads a dict, which may be the state of a module."""
        check(state)
        if not state:
            warnings.warn("the state is empty: nothing is loaded", stacklevel=errors.outside())
        if self.checks:
            _ = self.entries
        there = names.renamer(self.rename, self.names if self.rename == "wrappers" else ())
        # Modules and optimizers give copies of their dicts, so values that were replaced in the copies go back to them.
        owners = {k: v for k, v in state.items() if is_stateful(v)}
        for k, v in owners.items():
            if isinstance(v, torch.optim.Optimizer) and not v.state:
                self._create_state(k, v, there)
        opened = {k: self._open(k, v, there) if k in owners else v for k, v in state.items()}
        leaves = flatten(opened)
        loading = Loading(self.job.memory, self.allow_pickle)
        replaced: list[tuple[Leaf, Any]] = []

        def take(leaf: Leaf, v: Any) -> None:
            replaced.append((leaf, v))

        wanted = {leaf.name: there(leaf.name) for leaf in leaves}
        if self.rename == "wrappers":
            names.distinct(wanted)
        if self.strict:
            self._check(owners, set(wanted.values()), there)
            if module is not None and not callable(self.rename):
                self._refuse_extra(there(""), set(wanted.values()), "the module")
        held: dict[Any, list[tuple[str, Part]]] = {}
        for leaf in leaves:
            if (here := parts(leaf)) is None:
                loading.value(wanted[leaf.name], functools.partial(take, leaf))
                continue
            for p in here:
                if p.local.numel():
                    held.setdefault(memory_of(leaf.name, p.local), []).append((leaf.name, p))
                elif p.offsets is None:
                    held[leaf.name] = [(leaf.name, p)]
        twins: list[tuple[str, str, torch.Tensor, torch.Tensor]] = []
        for same in held.values():
            absent = [x for x in same if wanted[x[0]] not in self.entries] if len(same) > 1 else []
            several = _state.apart(same, wanted, self.entries) if len(same) > 1 else same
            for name, p in several[:1] + absent:
                loading.tensor(wanted[name], p.shape, p.offsets or [0] * len(p.shape), p.local)
            for name, p in several[1:]:
                t = torch.empty(p.local.shape, dtype=p.local.dtype, device=p.local.device)
                loading.tensor(wanted[name], p.shape, p.offsets or [0] * len(p.shape), t)
                twins.append((several[0][0], name, p.local, t))
        rest: dict[Any, Tree] = {}
        for k, v in owners.items():
            if isinstance(v, PerRank):
                continue
            if not _is_torch(v) and not callable(self.rename) and (prefix := there(f"{k}.")):
                rest[k] = self._rest(prefix, set(wanted.values()), loading)
        try:
            saver = self.job.own() if self.sharing is None else self.sharing.saver
            report = loading.run(saver, self.path, self.how, allow_missing=not self.strict, cast=self.cast,
                                 share=self.sharing)
        except errors.NotFoundError:
            _ = self.entries  # its error has a hint
            raise
        except errors.MissingError:
            if not (lacks := [mine for mine, name in wanted.items() if name not in set(self.names)]):
                raise  # a part of a tensor
            fits = _state.fitting(leaves, self.entries)
            raise names.missing(lacks, wanted, self.names, fits=fits) from None
        for a, b, t, twin in twins:
            plain = t.detach().resolve_conj().resolve_neg().contiguous()
            if not torch.equal(_memory.as_bytes(plain), _memory.as_bytes(twin)):
                raise _state.tied(a, b)
        for leaf, v in replaced:
            leaf.replace(v)
        for k, v in opened.items():
            if k in owners:
                if k in rest:
                    rest[k].add_to(v)
                loading.give(owners[k], v)
            elif v is not state[k]:
                Leaf(str(k), None, v, state, k).replace(v)
        if module is not None:
            loading.give(module, state)
        missing = set(report.missing)
        return dataclasses.replace(report, missing=tuple(mine for mine, name in wanted.items() if name in missing))

    def _open(self, key: Any, owner: Any, there: Callable[[str], str]) -> Any:
        """Returns the dict of an object of the state, to be filled."""
        if not isinstance(owner, PerRank):
            return owner.state_dict()
        # The checkpoint has names of the ranks that saved it, not of these ranks.
        return {"ranks": 0, **{n: None for n in owner.wanted() if there(f"{key}.{n}") in self.entries}}

    def _create_state(self, key: Any, optimizer: torch.optim.Optimizer, there: Callable[[str], str]) -> None:
        """Creates what a new optimizer keeps for the parameters that the checkpoint has something of."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if not callable(self.rename):
            _create_state(optimizer, {i for i in range(len(params)) if self.below(there(f"{key}.state.{i}."))})
            return
        # A function knows whole names only. So it is created for all parameters, and given up where the checkpoint has
        # nothing.
        _create_state(optimizer, set(range(len(params))))
        has = set(self.names)
        for i, state in optimizer.state_dict()["state"].items():
            if not any(there(f"{key}.state.{i}.{name}") in has for name in state):
                del optimizer.state[params[i]]

    def _rest(self, prefix: str, wanted: set[str], loading: Loading) -> Tree:
        """Loads the names below a prefix that are not wanted yet: an object gets its dict as it was saved."""
        tree = Tree()

        for name in self.below(prefix):
            if name in wanted:
                continue
            e = self.entries[name]
            path = _below(e.get("path"), prefix) or [name[len(prefix):]]
            if "dtype" not in e:
                loading.value(name, functools.partial(tree.place, path))
                continue
            shape = list(e.get("shape") or [])
            t = torch.empty(shape, dtype=_memory.dtype_of(e["dtype"]))
            tree.place(path, t)
            loading.tensor(name, shape, [0] * len(shape), t)
        return tree

    def _check(self, owners: dict[Any, Any], wanted: set[str], there: Callable[[str], str]) -> None:
        """Refuses a checkpoint with parameters that a module or an optimizer of the state does not have."""
        for k, v in owners.items():
            if not _is_torch(v):
                continue
            # Other versions of PyTorch may keep other options in the groups of an optimizer.
            start = f"{k}." if isinstance(v, torch.nn.Module) else f"{k}.state."
            if callable(self.rename) or not (start := there(start)):
                continue  # names of other things are not told apart
            self._refuse_extra(start, wanted, f"{str(k)!r} of the state")

    def _refuse_extra(self, start: str, wanted: set[str], owner: str) -> None:
        """Refuses a checkpoint with names that begin with start and that their owner does not have."""
        extra = [name for name in self.below(start) if name not in wanted]
        if extra and wanted.issubset(self.names):  # otherwise missing names are the better reason
            raise names.unexpected(extra, owner)


def _is_torch(v: Any) -> bool:
    return isinstance(v, (torch.nn.Module, torch.optim.Optimizer))


def _below(path: list[Any] | None, prefix: str) -> list[Any]:
    """Returns the end of a path, without what a prefix of its name consists of."""
    at = ""
    for i, step in enumerate(path or []):
        if at == prefix:
            return (path or [])[i:]
        at += f"{next(iter(step.values())) if isinstance(step, dict) else step}."
    return []


def _create_state(optimizer: torch.optim.Optimizer, numbers: set[int]) -> None:
    """Creates what a new optimizer keeps for the parameters with these numbers, to be filled.

    It takes a step whose gradients and learning rates are zero.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if not numbers:
        return
    gradients = [p.grad for p in params]
    rates = [group.get("lr") for group in optimizer.param_groups]
    try:
        for i, p in enumerate(params):
            p.grad = torch.zeros_like(p) if i in numbers else None
        for group, rate in zip(optimizer.param_groups, rates):
            if rate is not None:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        optimizer.step()
    finally:
        for p, gradient in zip(params, gradients):
            p.grad = gradient
        for group, rate in zip(optimizer.param_groups, rates):
            if rate is not None:
                group["lr"] = rate


class Loading:
    """Boxes of tensors and values of a checkpoint, and where they go."""

    def __init__(self, memory: _memory.Memory, allow_pickle: bool = False):
        self.memory, self.allow_pickle = memory, allow_pickle
        self.wants: list[Want] = []
        self.targets: list[Any] = []
        self.late: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self.devices: set[torch.device] = set()
        self.copies = _memory.Copies(memory, set())  # of run
        self.inference = False  # some tensors were made in torch.inference_mode

    def tensor(self, name: str, shape: list[int], offsets: list[int], t: torch.Tensor) -> None:
        """Adds a box of a tensor, which fills t. Elements are converted to its dtype."""
        self.inference = self.inference or t.is_inference()
        t = t.detach()
        check_memory(name, t)
        flat = t
        if not t.is_contiguous() or t.is_conj() or t.is_neg():
            flat = torch.empty(t.shape, dtype=t.dtype, device=t.device)
            self.late.append((name, t, flat))
        for want, at in self.pieces(name, shape, offsets, t):
            self.add(want, (_memory.as_bytes(flat), at), t.device)

    def pieces(self, name: str, shape: list[int], offsets: list[int], t: torch.Tensor) -> Iterator[tuple[Want, int]]:
        """Yields the wants for a box of the shape of t, and the offset of each in the bytes of the box."""
        most = min(PIECE, self.memory.arena.window // 2)
        return cut({"name": name, "dtype": _memory.dtype_name(t.dtype)}, shape, offsets, list(t.shape), most)

    def add(self, want: Want, target: Any, device: torch.device) -> None:
        """Adds a box, whose bytes fill gets with the target."""
        self.wants.append(want)
        self.targets.append(target)
        self.devices.add(device)

    def value(self, name: str, take: Callable[[Any], None]) -> None:
        """Adds a value. take is called with it by the thread that calls run, after all tensors are filled."""
        self.wants.append({"name": name})
        self.targets.append((name, take))

    def give(self, owner: Any, state: Mapping[Any, Any]) -> None:
        """Gives an object the dict that was loaded for it."""
        with torch.inference_mode(self.inference or torch.is_inference_mode_enabled()):
            owner.load_state_dict(state)

    def run(self, saver: Saver, path: str, how: Reading, *, allow_missing: bool = False, save_id: str = "",
            cast: str = "in-range", share: Sharing | None = None) -> LoadReport:
        """Loads everything. The report has the names that the checkpoint lacks, if allow_missing is set.

        ChangedError: save_id is not empty, and the checkpoint has another one.
        """
        self.memory.reclaim()
        self.copies = _memory.Copies(self.memory, self.devices)
        taken: list[tuple[str, Callable[[Any], None], Any]] = []

        def piece(i: int, data: memoryview | None, value: tuple[str, bytes] | None) -> None:
            if value is not None:
                taken.append((*self.targets[i], values.decode(*value)))
            elif data:
                self.fill(self.targets[i], torch.frombuffer(data, dtype=torch.uint8))

        try:
            report = saver.load(path, self.wants, piece, allow_missing=allow_missing, save_id=save_id, cast=cast,
                                settle=self.copies.settle, share=share, **how)
        finally:
            self.copies.close()
        lacks = set(report.missing)
        for name, t, flat in self.late:
            if name in lacks:
                continue
            with torch.inference_mode(t.is_inference() or torch.is_inference_mode_enabled()):
                t.copy_(flat)
        if taken:
            refs = set().union(*(values.refs(v) for _, _, v in taken)) if self.allow_pickle else set()
            tensors = self._tensors(refs, saver, path, how, report.save_id) if refs else {}
            described: set[str] = set()
            for name, take, v in taken:
                take(new := made(name, v, self.allow_pickle, tensors))
                described |= set() if self.allow_pickle else values.classes(new)
            if described:
                values.warn_of(path, described)
        return report

    def _tensors(self, refs: set[str], saver: Saver, path: str, how: Reading,
                 save_id: str) -> dict[str, torch.Tensor]:
        """Reads the tensors inside of objects."""
        entries = saver.describe(path, **how).get("entries") or []
        loading, out = Loading(self.memory), {}
        for e in entries:
            if e["name"] in refs:
                shape = list(e.get("shape") or [])
                t = torch.empty(shape, dtype=_memory.dtype_of(e["dtype"]))
                loading.tensor(e["name"], shape, [0] * len(shape), t)
                out[e["name"]] = parameter(e, t)
        loading.run(saver, path, how, save_id=save_id, cast="none")
        return out

    def fill(self, target: Any, source: torch.Tensor) -> None:
        """Copies the bytes of a box, which are in the shared memory, to its target."""
        flat, at = target
        self.copies.copy(flat, at, source)


def parameter(entry: Entry, t: torch.Tensor) -> torch.Tensor:
    """Returns a tensor inside of an object. Objects that hold tensors with gradients are nearly always modules."""
    return torch.nn.Parameter(t) if entry.get("requires_grad") else t


_CLASSES: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch", "device"): torch.device,
    ("torch", "Size"): torch.Size,
}


def made(name: str, v: Any, allow_pickle: bool, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Makes small tensors inside of a value, objects of classes of torch that can do no harm and, with allow_pickle,
    all other objects, with these tensors inside. Otherwise objects stay described.

    RepresentError: allow_pickle is needed, or an object cannot be made.
    """
    def make(x: Any) -> Any:
        if isinstance(x, values.RawTensor):
            return torch.frombuffer(bytearray(x.data), dtype=_memory.dtype_of(x.dtype)).reshape(x.shape) if x.data \
                else torch.empty(x.shape, dtype=_memory.dtype_of(x.dtype))
        if isinstance(x, values.Ref):
            return tensors.get(x.name, x)
        if (data := values.pickled(x)) is not None:
            return _unpickled(x, data, allow_pickle)
        if x.module == "torch" and isinstance(dtype := getattr(torch, x.name, None), torch.dtype):
            return dtype
        known = _CLASSES.get((x.module, x.name))
        if known is not None and set(x.fields) == {"call", "args"}:
            return known(*x.fields["args"])
        return values.construct(x) if allow_pickle else x

    try:
        return values.replaced(v, make)
    except errors.RepresentError as e:
        raise errors.RepresentError(f"{name!r}: {e}", e.codes) from e.__cause__


def _unpickled(v: values.Object, data: bytes, allow_pickle: bool) -> Any:
    """Returns an object that cairn saved as a pickle."""
    try:
        return torch.load(io.BytesIO(data), weights_only=not allow_pickle)
    except Exception as e:
        if allow_pickle:
            raise
        raise errors.RepresentError(f"it is a pickle, with {', '.join(sorted(values.classes(v)))}: load it with "
                                    "allow_pickle=True if you trust the checkpoint", ("storage.represent",)) from e
