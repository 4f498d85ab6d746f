"""Publishing: each version of a model is a checkpoint of a run, which has only what has changed."""

from __future__ import annotations

import concurrent.futures
import copy
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cairn import errors
from cairn._request import SaveRequest
from cairn.runs import Policy, Run
from cairn.torch._description import State
from cairn.torch._handle import Handle, failure
from cairn.torch._job import Job
from cairn.torch._remembered import describe
from cairn.torch._save import begin

_runs: dict[tuple[str, str], Run] = {}  # by address and policy: to check a policy takes long
_published: dict[str, _Versions] = {}  # by the address of the run
_UNDER_WAY = 2  # versions of a run that are under way at the same time


@dataclass
class _Versions:
    """The versions of a run, as far as this process knows them."""

    complete: int | None = None  # the newest complete one, or -1. None: the process has not looked
    under_way: list[tuple[int, Handle]] = field(default_factory=list)

    def settle(self) -> None:
        """Notes which versions are complete by now. One that has failed does not count."""
        over = [(version, handle) for version, handle in self.under_way if handle.done()]
        self.under_way = [row for row in self.under_way if row not in over]
        for version, handle in over:
            error = failure(handle)
            if error is None:
                self.complete = max(version, -1 if self.complete is None else self.complete)
            elif isinstance(error, errors.ExistsError):
                self.complete = None  # another process publishes too


os.register_at_fork(after_in_child=_published.clear)  # a child does not hear of the saves of its parent


def publish(model: torch.nn.Module | Mapping[Any, Any], run: str | os.PathLike[str] | Run, version: int, *,
            keep: Policy | None = None, tags: dict[str, str] | None = None, metrics: Mapping[str, Any] | None = None,
            overlap: bool = False) -> Handle:
    """Publishes the weights of a model as a version, in the background. All ranks call it.

    >>> model = torch.nn.Linear(3, 2)
    >>> handle = cairn.torch.publish(model, "run/weights", version=1)
    >>> handle.result().step                     # the version is complete
    1
    >>> with torch.no_grad():
    ...     model.weight[0, 0] += 1
    >>> cairn.torch.publish(model, "run/weights", version=2).result().step
    2

    Versions are the checkpoints of a run: ``run/weights/step-000000002`` here. Programs that follow the run read what
    has changed since the version that they have; any program that loads checkpoints can load a version.

    It returns when the weights have been copied aside, as :func:`async_save` does, and with overlap at once. The saver
    processes keep the bytes of the last version in memory, and write what has changed: each rank needs as much
    memory as it writes. In a folder and in object storage alike, nothing is read.

    At most two versions of a run are under way: if there are two, publish first waits until the older one is over. An
    error of that one is not raised here; its handle has it.

    model is a module, whose tensors have the names of ``state_dict()``, or a dict of tensors. run is a path, a URL
    or a :class:`cairn.Run`. keep says which versions stay, "last 4" by default; a Run has its own policy.
    Versions to which others refer stay too. tags and metrics: see :func:`async_save`.

    Versions ascend, and are never replaced: a server may have the version already. ExistsError: the run has this
    version or a newer one, or one is under way; the error says which version comes next. If another process has
    published the version meanwhile, ``handle.result()`` raises it. A version that has failed can be published again.
    A trainer that resumes goes on from the newest version of the run, whatever its step is. Its first version is
    compared with the one before by reading that from the folder; in object storage it is written as a whole, apart from
    parts that are equal.
    """
    known, number = _remembering(run, keep), operator.index(version)
    versions = _published.setdefault(known.path, _Versions())
    while True:
        versions.settle()
        if len(versions.under_way) < _UNDER_WAY:
            break
        concurrent.futures.wait([versions.under_way[0][1]])  # an error stays in its handle

    def make(j: Job) -> State:
        if number < 0:
            raise errors.OptionsError(f"the version is {number}; want 0 or more", ("storage.options",))
        if j.rank == 0:
            _check(known, versions, number)
        return describe(j, model, False)

    def explain(error: BaseException) -> BaseException:
        if not isinstance(error, errors.ExistsError):
            return error
        return errors.ExistsError(f"{known.path} has version {number}, which another process has published: publish "
                                  f"version {number + 1} or a later one ({error})", error.codes)

    to = known if number >= 0 else known.path  # make refuses the version
    request = SaveRequest(path=to, step=number, tags=tags, metrics=metrics, overwrite=False)
    handle = begin(request, make, overlap=overlap, explain=explain)
    versions.under_way.append((number, handle))
    return handle


def _remembering(run: str | os.PathLike[str] | Run, keep: Policy | None) -> Run:
    """Returns a run whose saves remember the bytes of the last one."""
    if isinstance(run, Run):
        if keep is not None:
            raise errors.OptionsError("keep is set, but the Run has a policy of its own", ("storage.options",))
        if run.remote is not None or run.alone:
            raise errors.OptionsError(f"versions cannot be published to {run!r}: they refer to each other, and are in "
                                      "one place", ("storage.options",))
        run = copy.copy(run)
        run.remember = True
        return run
    key = os.fspath(run), repr(keep)
    if key not in _runs:
        _runs[key] = Run(run, keep="last 4" if keep is None else keep, remember=True)
    return _runs[key]


def _check(run: Run, versions: _Versions, version: int) -> None:
    """Raises ExistsError if the run has the version or a newer one. It looks at the run only if it must."""
    if versions.complete is None:
        # Also versions on a line that was left are never replaced.
        versions.complete = max((c.step for c in run.checkpoints() if c.complete and c.step is not None), default=-1)
    last, state = versions.complete, ""
    if versions.under_way and versions.under_way[-1][0] > last:
        last, state = versions.under_way[-1][0], ", which is under way"
    if version <= last:
        raise errors.ExistsError(f"{run.path} has version {last}{state}: publish version {last + 1} or a later one "
                                 f"instead of {version}", ("storage.exists",))
