"""Following: tensors in use are brought from one version of their weights to the next."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from cairn import _recipe, errors, names
from cairn._address import address_of
from cairn._arena import default_ceiling
from cairn._messages import Entry, ErrorMessage, FormatOptions, Found, Known, Reading, Search, Version
from cairn._saver import Saver
from cairn.names import Rename
from cairn.reports import UpdateReport
from cairn.runs import Run
from cairn.torch._job import Caught, Job, agree, broadcast, job
from cairn.torch._load import Loading
from cairn.torch._state import Part, apart, check_memory, fitting, flatten, is_stateful, memory_of, parts, tied
from cairn.torch._units import span

Params: TypeAlias = "Mapping[str, Any] | torch.nn.Module"

_ROUND = 5.0  # seconds after which rank 0 answers ranks that wait, so that they do not take it for lost
_DENSE = 8  # a piece of which more than one element in 8 differs is kept whole


def follow(run: str | os.PathLike[str] | Run, *, base: str | os.PathLike[str] | None = None,
           recipe: str | os.PathLike[str] | None = None, config: _recipe.Config = None, reverse: bool = False,
           variables: Mapping[str, Any] | None = None, rename: Rename = None, format: str | None = None,
           format_options: FormatOptions | None = None, cast: str = "in-range", cache_bytes: int | None = None,
           alone: bool = False) -> Follower:
    """Returns the versions of the weights in a run, to which tensors in use can be brought. All ranks call it.

    >>> report = cairn.torch.save({"w": torch.ones(3)}, cairn.Run("run/weights"), step=1)
    >>> weights = cairn.torch.follow("run/weights")
    >>> params = {"w": torch.zeros(3)}
    >>> weights.update(params).version, params
    (1, {'w': tensor([1., 1., 1.])})

    run is the folder or the address of a run, such as the one of :func:`cairn.torch.publish`. Each folder below it with
    a complete checkpoint, of any format, is a version. Its number is the step that it records or, if it records none,
    the number at the end of its name. Versions of slime, miles and SGLang are differences to a checkpoint, which base
    names.

    A server has names, dtypes and shardings of its own: recipe, config, reverse, variables, rename, format,
    format_options and cast are described at :func:`cairn.torch.load`.

    The saver process of this rank keeps up to cache_bytes of the files of a version in memory, so that it reads only
    the changes of the next one. By default that is up to half of the memory, divided by the ranks of this host. 0 keeps
    nothing.

    With alone, only this rank follows, and does not wait for the others.
    """
    if base is not None:
        if format is not None or format_options:
            raise errors.OptionsError("base is for versions of slime, whose format is detected: leave out format and "
                                      "format_options", ("storage.options",))
        format_options = {"base": address_of(base)}
    keep = default_ceiling() if cache_bytes is None else operator.index(cache_bytes)
    if keep < 0:
        raise errors.OptionsError(f"cache_bytes is {keep}: want 0 or more", ("storage.options",))
    how: Reading = {"format": format, "format_options": format_options, "keep": keep,
                    "recipe": _recipe.message(recipe, config, reverse, variables)}
    return Follower(address_of(run.path if isinstance(run, Run) else run), how, rename, cast, alone)


class Follower:
    """The versions of weights in a run. :func:`follow` returns it.

    >>> run = cairn.Run("versions")
    >>> for version in 1, 2:
    ...     report = cairn.torch.save({"w": torch.full((4,), version)}, run, step=version)
    >>> weights = cairn.torch.follow(run)
    >>> params = {"w": torch.zeros(4, dtype=torch.int64)}
    >>> weights.update(params, version=1).elements_changed, weights.version, weights.newest()
    (4, 1, 2)
    >>> prepared = weights.prepare(params)    # the server goes on
    >>> report = prepared.commit()            # a short pause
    >>> report.from_version, report.version, params["w"]
    (1, 2, tensor([2, 2, 2, 2]))

    ``version`` is the version of the last update, or None: then there was none, or it failed while it changed the
    tensors.
    """

    def __init__(self, run: str, how: Reading, rename: Rename, cast: str, alone: bool):
        self.run, self.alone = run, alone
        self.version: int | None = None
        self._save_id = ""
        self._how, self._rename, self._cast = how, rename, cast
        self._known: Known = {}  # the field of the message "newest", without last
        self._warned: set[str] = set()  # what wait has warned of
        self._saver: weakref.ref[Saver] | None = None  # which has loaded the last version
        self._changes = 0  # how often tensors were changed
        self._lock = threading.Lock()  # held while a commit changes tensors

    def __repr__(self) -> str:
        return f"<weights of {self.run}, version {self.version}>"

    def newest(self) -> int | None:
        """Returns the newest complete version in the run, or None. Each rank may call it by itself.

        It leaves out versions that are damaged, as far as that is known.
        """
        found = self._ask({"damaged": self._known.get("damaged")})
        return found["version"]["step"] if "version" in found else None

    def wait(self, timeout: float | None = None, *, interval: float = 0.2) -> int:
        """Waits for a version that is newer than the version of the last update, and returns it. All ranks call it.

        Rank 0 looks every interval seconds. It also returns the version of the last update if that was saved again.
        It leaves out versions that prepare has found damaged, and the newest version if prepare has found that it does
        not fit the tensors, or the recipe: then it waits for a newer one, or for another save of it. It warns, once, of
        each version that it passes over because it cannot be opened.

        TimeoutError, the one of Python: there is no such version after timeout seconds. If another rank does not call
        wait, for example because it has ended, that takes until the timeout of the process group.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout

        def look() -> tuple[int | None, bool]:
            """Returns the version, or None and whether the time is over."""
            answer_by = time.monotonic() + _ROUND
            while True:
                found = self._ask(self._now())
                for problem in found.get("problems", ()):
                    if problem not in self._warned:
                        self._warned.add(problem)
                        warnings.warn(f"{self.run}: a damaged version is passed over: {problem}",
                                      stacklevel=errors.outside())
                if "version" in found:
                    return found["version"]["step"], False
                now = time.monotonic()
                if now >= end or now >= answer_by:
                    return None, now >= end
                time.sleep(max(0.0, min(interval, end - now, answer_by - now)))

        while True:
            version, late = look() if self.alone else broadcast("follow-wait", look, self._call("wait for a version"))
            if version is not None:
                return version
            if late:
                newer = "complete version" if self.version is None else f"version newer than {self.version}"
                raise TimeoutError(f"{self.run} has no {newer} after {timeout} seconds")

    def update(self, params: Params, version: int | None = None) -> UpdateReport:
        """Brings tensors in use to the newest version, or to a version. All ranks call it.

        It is :meth:`prepare`, and then :meth:`Prepared.commit`.
        """
        return self.prepare(params, version).commit()

    def prepare(self, params: Params, version: int | None = None) -> Prepared:
        """Reads and verifies a version, and keeps what differs from tensors in use. All ranks call it.

        The tensors stay as they are. They must not change until :meth:`Prepared.commit`, which changes the elements
        that differ and leaves the others alone: elements that were changed meanwhile would be wrong.

        params is a module, or a dict of tensors by name; it may contain modules and dicts. The tensors may be on any
        device and have any strides. DTensors get the part that this rank holds. Names that only the version has are
        left out. A name that only params has is a MissingError. If several names are one tensor in memory, the version
        must have the same elements for those of them that it has: otherwise it is a MismatchError. StateError: tensors
        share a part of their memory, or params has a quantised tensor without its scales.

        If the version is replaced or removed meanwhile, prepare looks again which versions there are, up to 16 times.
        If it turns out to be damaged, prepare reads it again without what the saver process has kept, and then, if
        version is None, tries a newer one that is there by now, or the next older one. Only an update with a version
        goes back behind the version of the last update. If no version can be loaded, the tensors stay as they are, and
        it raises the first error. All ranks prepare the same version, or none. Newer versions that cannot be opened
        are left out; the report names them.
        OptionsError: ranks ask for different versions, or follow different runs.
        """
        begun = time.monotonic()
        version = None if version is None else operator.index(version)
        search: Search = {} if version is None else {"step": version}
        error: errors.CairnError | None = None  # of the last attempt
        while True:
            found = self._choose(version, search, error)
            self._known, search = found["known"], found["search"]
            if "version" not in found:
                raise self._over(found, version, error)
            got = self._attempt(params, found["version"])
            if isinstance(got, Prepared):
                self._known["unfit"] = None
                got._note_begin(begun, error is not None, tuple(found.get("problems", ())))
                return got
            error = got

    def _ask(self, known: Known, search: Search | None = None, outcome: ErrorMessage | None = None) -> Found:
        """Asks the saver process for a version: see the message "newest"."""
        return job(self.alone).own().newest(self.run, format=self._how["format"],
                                            format_options=self._how["format_options"], known=known, search=search,
                                            outcome=outcome)

    def _now(self) -> Known:
        """Returns what is known about the versions."""
        last: Version | None = None if self.version is None else {"step": self.version, "save_id": self._save_id}
        return {**self._known, "last": last}

    def _choose(self, version: int | None, search: Search, error: errors.CairnError | None) -> Found:
        """Returns the version that all ranks try next, after the error of the last attempt."""
        def find() -> Found:
            return self._ask(self._now(), search, None if error is None else {"text": str(error), "codes": error.codes})

        call = self._call("load the newest version" if version is None else f"load version {version}")
        return find() if self.alone else broadcast("follow", find, call)

    def _over(self, found: Found, version: int | None, error: errors.CairnError | None) -> errors.CairnError:
        """Returns the error of a search that is over without a version. error is the one of the last attempt."""
        over = found["over"]
        if over == "failed":
            assert error is not None
            return error
        if over == "none":
            text = f"{self.run} has no complete version"
            if version is not None:
                text += f" {version}"
            elif self.version is not None:
                text += f" {self.version} or newer: the tensors stay as they are. update(…, version=…) goes back"
            else:
                text += ". The folders below a run are its versions: if this is a version, follow the folder above it"
            return errors.NotFoundError(text, ("storage.notfound",))
        why = errors.from_message(found["why"])
        kind = errors.CorruptError if over == "damaged" else type(why)  # also if a part of a chain is incomplete
        kept = "as they were" if self.version is None else f"at version {self.version}"
        stay = "The tensors stay" if version is not None else "No newer version can be loaded: the tensors stay"
        return kind(f"{why}. {stay} {kept}", why.codes)

    def _call(self, text: str) -> str:
        """Describes a call that all ranks make. Other hosts may have other paths to the run."""
        return f"{text} of {os.path.basename(self.run.rstrip('/'))!r}"

    def _attempt(self, params: Params, version: Version) -> Prepared | errors.CairnError:
        """Loads a version. It returns an error of cairn, and raises others. It does the same on all ranks."""
        failed: errors.CairnError | None = None
        prepared: Prepared | None = None
        with Caught() as caught:
            try:
                prepared = self._load(params, version)
            except errors.CairnError as e:
                failed = e
        if self.alone and caught.error is not None:
            raise caught.error
        if not self.alone and agree("prepare", caught.error, lacks=failed is not None):
            try:  # all ranks get the reason
                agree("prepare-why", failed)
            except errors.CairnError as e:
                failed = e
        if failed is not None:
            return failed
        assert prepared is not None
        return prepared

    def _load(self, params: Params, version: Version) -> Prepared:
        """Reads a version, and compares."""
        j = job(self.alone)
        saver = j.own()
        entries: dict[str, Entry] = {}

        def described(check: bool = False) -> dict[str, Entry]:
            if not entries:
                how: Reading = {**self._how, "recipe": _recipe.checked(self._how["recipe"])} if check else self._how
                entries.update((e["name"], e) for e in saver.describe(version["store"], **how).get("entries") or [])
            return entries

        if self._how["recipe"] is not None and (self.alone or j.rank == 0):
            described(check=True)  # one rank checks what the recipe assumes
        there = names.renamer(self._rename, described() if self._rename == "wrappers" else ())
        comparing = _Comparing(j)
        held: dict[Any, list[tuple[str, Part]]] = {}
        wanted: dict[str, str] = {}
        leaves = flatten(_opened(params))
        for leaf in leaves:
            wanted[leaf.name] = there(leaf.name)
            if (here := parts(leaf)) is None:
                raise errors.StateError(f"{leaf.name!r} is a {type(leaf.value).__name__}, not a tensor",
                                        ("plan.state",))
            for p in here:
                if p.local.numel():
                    held.setdefault(memory_of(leaf.name, p.local), []).append((leaf.name, p))
                elif p.offsets is None:
                    held[leaf.name] = [(leaf.name, p)]
        asked = set(wanted.values())
        for mine, p in (x for same in held.values() for x in same):
            if p.local.is_floating_point() and p.local.element_size() == 1:
                scales = described().get(wanted[mine], {}).get("scales")
                if scales is not None and scales not in asked:
                    raise errors.StateError(f"{mine!r} is quantised, and params does not have its scales, {scales!r} "
                                            "of the version: without them its numbers mean nothing", ("plan.state",))
        twins: list[tuple[str, str, _Target, _Target]] = []
        for same in held.values():
            several = apart(same, wanted, described()) if len(same) > 1 else same
            name, p = (several or same)[0]
            comparing.tensor(wanted[name], p.shape, p.offsets or [0] * len(p.shape), p.local)
            target = comparing.compared[-1]
            for other, p in several[1:]:
                comparing.tensor(wanted[other], p.shape, p.offsets or [0] * len(p.shape), p.local)
                twins.append((name, other, target, comparing.compared[-1]))
        _check_apart([(same[0][0], same[0][1].local) for same in held.values()])
        if self._rename == "wrappers":
            names.distinct(wanted)
        try:
            report = comparing.run(saver, version["store"], self._how, cast=self._cast,
                                   save_id=version.get("save_id", ""))
        except errors.MissingError:
            read = {want["name"] for want in comparing.wants}
            if not (absent := [mine for mine, name in wanted.items() if name in read and name not in described()]):
                raise  # a part of a tensor
            raise names.missing(absent, wanted, list(described()), call="follow",
                                fits=fitting(leaves, described())) from None
        for a, b, target, twin in twins:
            if not comparing.same(target, twin):
                raise tied(a, b)
            comparing.compared.remove(twin)
        full = self.version is None or not self._how["keep"] or self._saver is None or self._saver() is not saver
        self._saver = weakref.ref(saver)
        return Prepared(self, version, comparing, report.bytes_read, full)


def _check_apart(held: list[tuple[str, torch.Tensor]]) -> None:
    """Raises StateError if tensors share a part of their memory."""
    places = [(str(t.device), t.data_ptr(), name, t) for name, t in held if t.numel()]
    group: list[tuple[str, torch.Tensor]] = []
    end = "", 0
    for device, at, name, t in sorted(places, key=lambda x: x[:3]):
        if (device, at) >= end:  # those before have ended
            _check_group(group)
            group = []
        group.append((name, t))
        end = max(end, (device, at + span(t)))
    _check_group(group)


def _check_group(group: list[tuple[str, torch.Tensor]]) -> None:
    """Does so for tensors between whose first and last elements are elements of others, such as columns."""
    if len(group) < 2:
        return
    first = min(t.data_ptr() for _, t in group)
    runs = [_runs(t, t.data_ptr() - first) for _, t in group]
    unit = math.gcd(*(n for at, run, outer in runs for n in (at, run, *(stride for _, stride in outer))))
    used = torch.zeros(max(t.data_ptr() - first + span(t) for _, t in group) // unit, dtype=torch.bool)
    for i, (at, run, outer) in enumerate(runs):
        mine = used.as_strided([*(n for n, _ in outer), run // unit], [*(s // unit for _, s in outer), 1], at // unit)
        if not mine.any():
            mine.fill_(True)
            continue
        for other in group[:i] if i > 1 else ():  # it is one of them
            _check_group([other, group[i]])
        raise errors.StateError(f"{group[0][0]!r} and {group[i][0]!r} share a part of their memory: leave one of them "
                                "out, or pass the tensor that has the elements of both", ("plan.state",))


def _runs(t: torch.Tensor, at: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Returns where the bytes of a tensor are: at, the bytes that follow one another, and how often at which stride."""
    run, outer = t.element_size(), []
    for stride, n in sorted((s * t.element_size(), n) for n, s in zip(t.shape, t.stride()) if n > 1):
        if stride == run:
            run *= n
        else:
            outer.append((n, stride))
    return at, run, outer


def _opened(params: Params) -> Mapping[str, Any]:
    """Returns a dict of the tensors that modules use."""
    if isinstance(params, torch.nn.Module):
        return _tensors(params)
    if not isinstance(params, Mapping):
        raise errors.StateError(f"params is a {type(params).__name__}; want a module or a dict of tensors",
                                ("plan.state",))
    return {k: _tensors(v) if is_stateful(v) else v for k, v in params.items()}


def _tensors(module: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a module by their names in its state_dict."""
    if not isinstance(module, torch.nn.Module):
        raise errors.StateError(f"a {type(module).__name__} is not a module or a tensor", ("plan.state",))
    used = {id(t) for t in (*module.parameters(), *module.buffers())}
    out = {}
    for name, v in module.state_dict(keep_vars=True).items():
        if not isinstance(v, torch.Tensor):
            continue  # a value of a part of the module
        if id(v) not in used:
            raise errors.StateError(f"{name!r} of the state_dict is a copy of what the module uses: pass the tensors "
                                    "in use, as a dict", ("plan.state",))
        out[name] = v
    return out


class Prepared:
    """A version that was read and verified: what differs from tensors in use. :meth:`Follower.prepare` returns it.

    >>> report = cairn.torch.save({"w": torch.ones(2)}, cairn.Run("weights"), step=5)
    >>> params = {"w": torch.zeros(2)}
    >>> prepared = cairn.torch.follow("weights").prepare(params)
    >>> prepared.version, params["w"]
    (5, tensor([0., 0.]))
    >>> prepared.commit().version, params["w"]
    (5, tensor([1., 1.]))
    """

    def __init__(self, weights: Follower, version: Version, comparing: _Comparing, bytes_read: int,
                 full: bool):
        self.version = int(version["step"])
        self._weights, self._save_id, self._bytes_read = weights, version.get("save_id", ""), bytes_read
        self._targets: list[_Target] | None = comparing.done()
        self._devices = [d for d in comparing.devices if d.type == "cuda"]
        self._changes = weights._changes
        self._seconds, self._full = 0.0, full
        self._tried: tuple[str, ...] = ()

    def _note_begin(self, at: float, again: bool, tried: tuple[str, ...]) -> None:
        """Notes when the preparation began, for the report, whether attempts failed before, and what went wrong."""
        self._seconds, self._full, self._tried = time.monotonic() - at, self._full or again, tried

    def commit(self) -> UpdateReport:
        """Changes the tensors. Each rank calls it, when nothing uses its tensors.

        It can be called once, and only if no other commit has changed tensors since prepare. If it raises an error
        after it has begun, ``weights.version`` is None, and some tensors may have changed: the next update compares
        all of them.
        """
        w = self._weights
        with w._lock:
            if self._targets is None or self._changes != w._changes:
                raise errors.OptionsError("this update was committed before, or another commit has changed tensors "
                                          "since it was prepared: prepare it again", ("storage.options",))
            targets, self._targets = self._targets, None
            was, w.version, w._save_id = w.version, None, ""
            w._changes += 1
            begun = time.monotonic()
            for t in targets:
                t.write()
            for d in self._devices:
                torch.cuda.current_stream(d).synchronize()
            pause = time.monotonic() - begun
            w.version, w._save_id = self.version, self._save_id
        return UpdateReport(
            self.version, was, self._save_id, sum(t.elements * t.size for t in targets), self._bytes_read,
            sum(t.changed * t.size for t in targets), sum(t.elements for t in targets),
            sum(t.changed for t in targets), self._seconds + pause, pause, self._full, self._tried)


class _Target:
    """A tensor in use, and the elements of a version that differ from it."""

    def __init__(self, t: torch.Tensor):
        self.elements, self.size, self.changed = t.numel(), t.element_size(), 0
        self.inference = t.is_inference()
        # Bits are compared, because a NaN does not equal itself, and 0 equals -0.
        self.bits = torch.view_as_real(t).view(torch.int64) if self.size == 16 else t.view(_INTS[self.size])
        n = 1 + sum((n - 1) * s for n, s in zip(self.bits.shape, self.bits.stride())) if t.numel() else 0
        self.span = self.bits.as_strided((n,), (1,)) if t.numel() else self.bits.reshape(-1)
        self.index = torch.int32 if n < 1 << 31 else torch.int64
        self.at: list[torch.Tensor] = []  # positions in span
        self.values: list[torch.Tensor] = []
        self.whole: list[tuple[torch.Tensor, torch.Tensor]] = []  # parts of bits, and what they become

    def compare(self, part: torch.Tensor, new: torch.Tensor, keep: Any) -> None:
        """Notes the elements of a part of bits that differ from new, which keep copies if they are many."""
        differ = part.ne(new)
        if not (count := _count(differ)):
            return
        self.changed += _count(differ.any(-1)) if self.size == 16 else count  # two integers are one element
        if count * _DENSE > part.numel():
            self.whole.append((part, keep(new)))
            return
        at = differ.reshape(-1).nonzero().squeeze(1)
        self.values.append(new.reshape(-1)[at])
        self.at.append((_places(part, at) + (part.storage_offset() - self.bits.storage_offset())).to(self.index))

    def same(self, other: _Target) -> bool:
        """Reports whether what was noted is the same for both. They are one tensor in memory, divided into the same
        parts."""
        if (self.changed, len(self.whole), len(self.at)) != (other.changed, len(other.whole), len(other.at)):
            return False
        for (a, new), (b, also) in zip(*(sorted(t.whole, key=lambda x: x[0].storage_offset()) for t in (self, other))):
            if a.storage_offset() != b.storage_offset() or not torch.equal(new, also):
                return False
        if not self.at:
            return True
        (at, order), (also_at, also_order) = torch.cat(self.at).sort(), torch.cat(other.at).sort()
        return torch.equal(at, also_at) and torch.equal(torch.cat(self.values)[order],
                                                        torch.cat(other.values)[also_order])

    def done(self) -> None:
        """Joins what was noted, so that write has little to do."""
        if len(self.at) > 1:
            self.at, self.values = [torch.cat(self.at)], [torch.cat(self.values)]

    def write(self) -> None:
        """Changes the tensor."""
        with torch.no_grad(), torch.inference_mode(self.inference) if self.inference else contextlib.nullcontext():
            for at, values in zip(self.at, self.values):
                self.span.index_copy_(0, at.long(), values)
            for part, new in self.whole:
                part.copy_(new, non_blocking=True)


_INTS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _count(flags: torch.Tensor) -> int:
    """Returns how many flags are set, in parts: on a GPU, PyTorch takes 8 bytes for each flag that it counts."""
    return int(sum(part.count_nonzero() for part in flags.reshape(-1).split(1 << 22)))


def _overlaps(t: torch.Tensor) -> bool:
    """Reports whether elements of a tensor may share memory."""
    end = 0  # the largest distance of two elements along the dimensions so far
    for stride, n in sorted((s, n) for n, s in zip(t.shape, t.stride()) if n > 1):
        if stride <= end:
            return t.numel() > 0
        end += (n - 1) * stride
    return False


def _places(part: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Returns the places in memory, relative to the first element, of elements with positions in row-major order."""
    if part.is_contiguous():
        return at
    out = torch.zeros_like(at)
    for n, stride in zip(reversed(part.shape), reversed(part.stride())):
        out += at % n * stride
        at = at // n
    return out


class _Comparing(Loading):
    """A load that compares with tensors rather than filling them."""

    def __init__(self, j: Job):
        super().__init__(j.memory)
        self.compared: list[_Target] = []
        self.staging: dict[torch.device, torch.Tensor] = {}

    def tensor(self, name: str, shape: list[int], offsets: list[int], t: torch.Tensor) -> None:
        """Adds a box of a tensor, which is compared with t."""
        t = t.detach()
        check_memory(name, t)
        if t.is_conj() or t.is_neg():
            raise errors.StateError(f"{name!r} is a view that changes the sign of its elements: pass the tensor in "
                                    "memory", ("plan.state",))
        if _overlaps(t):
            raise errors.StateError(f"{name!r} is a view whose elements share memory, such as an expanded tensor: pass "
                                    "the tensor in memory", ("plan.state",))
        pieces = self.pieces(name, shape, offsets, t)  # checks the dtype
        target = _Target(t)
        self.compared.append(target)
        for want, _ in pieces:
            part = target.bits
            for dim, (at, first, n) in enumerate(zip(want["offsets"], offsets, want["sizes"])):
                part = part.narrow(dim, at - first, n)
            self.add(want, (target, part), t.device)

    def fill(self, target: Any, source: torch.Tensor) -> None:
        """Compares the bytes of a box with the tensor in use."""
        to, part = target
        with torch.no_grad(), self._on(part.device, source) as new:
            to.compare(part, new.view(part.dtype).reshape(part.shape), _pinned if part.is_cuda else torch.clone)

    @contextlib.contextmanager
    def _on(self, device: torch.device, source: torch.Tensor) -> Iterator[torch.Tensor]:
        """Returns bytes of the shared memory on a device."""
        if device.type == "cpu":
            yield source
        elif device.type != "cuda":
            yield source.to(device)
        else:
            self.memory.register(device)
            with self._stream(device):
                if device not in self.staging or len(self.staging[device]) < len(source):
                    self.staging[device] = torch.empty(len(source), dtype=torch.uint8, device=device)
                new = self.staging[device][:len(source)]
                self.memory.copy(new, source)
                yield new

    def same(self, a: _Target, b: _Target) -> bool:
        """Reports whether two names of one tensor have the same elements."""
        with self._stream(a.bits.device):
            return a.same(b)

    def done(self) -> list[_Target]:
        """Returns the tensors with what differs, when the load is over."""
        self.staging.clear()
        for t in self.compared:
            with self._stream(t.bits.device):
                t.done()
        return self.compared

    @contextlib.contextmanager
    def _stream(self, device: torch.device) -> Iterator[None]:
        """Has a CUDA device work beside the streams of the caller. The work is complete at the end."""
        if device.type != "cuda":
            yield
            return
        stream = self.memory.stream(device)
        with torch.cuda.stream(stream):
            if (begun := self.copies.begun.get(device)) is not None:
                stream.wait_event(begun)
            yield
        stream.synchronize()


def _pinned(t: torch.Tensor) -> torch.Tensor:
    """Returns a copy in memory of the host, from which CUDA copies quickly."""
    out = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
    out.copy_(t, non_blocking=True)
    return out
