"""Publishing: each version of a model is a checkpoint of a run, which has only what has changed."""

from __future__ import annotations

import copy
import functools
import operator
import os
from collections.abc import Mapping
from typing import Any

import torch

from cairn import errors
from cairn._request import SaveRequest
from cairn.runs import Policy, Run, policy_text
from cairn.torch._description import State
from cairn.torch._handle import Handle, unseen
from cairn.torch._job import Job, job
from cairn.torch._remembered import describe
from cairn.torch._save import begin
from cairn.torch._versions import Versions


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

    def make(j: Job) -> State:
        versions = j.published.setdefault(known.path, Versions())
        versions.wait()
        unseen.report()  # of the version that it has waited for
        if number < 0:
            raise errors.OptionsError(f"the version is {number}; want 0 or more", ("storage.options",))
        if j.rank == 0:
            versions.check(known, number)
        return describe(j, model, False)

    def explain(error: BaseException) -> BaseException:
        if not isinstance(error, errors.ExistsError):
            return error
        return errors.ExistsError(f"{known.path} has version {number}, which another process has published: publish "
                                  f"version {number + 1} or a later one ({error})", error.codes)

    to = known if number >= 0 else known.path  # make refuses the version
    request = SaveRequest(path=to, step=number, tags=tags, metrics=metrics, overwrite=False)
    handle = begin(request, make, overlap=overlap, explain=explain)
    job().published.setdefault(known.path, Versions()).under_way.append((number, handle))
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
    return _run("last 4" if keep is None else policy_text(keep), os.fspath(run), os.getcwd())


@functools.lru_cache
def _run(keep: str, path: str, folder: str) -> Run:
    """Returns the run at a path, as seen from a folder. To check a policy takes long."""
    return Run(path, keep=keep, remember=True)
