"""Saving: the state is copied into the shared memory, and the saver processes write it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cairn import _ours
from cairn._address import memory_run
from cairn._messages import FormatOptions
from cairn._reply import Reply
from cairn._request import SaveRequest
from cairn.reports import SaveReport, UploadReport
from cairn.runs import Run
from cairn.torch import _handle, _job
from cairn.torch._description import State
from cairn.torch._handle import Handle
from cairn.torch._job import Caught, Job, job, ready
from cairn.torch._remembered import describe
from cairn.torch._staging import GROUP, Staging, events
from cairn.torch._units import Unit


def save(state: Mapping[Any, Any], path: str | os.PathLike[str] | Run, *, step: int | None = None,
         tags: dict[str, str] | None = None, metrics: Mapping[str, Any] | None = None, overwrite: bool | None = None,
         format: str = "native", format_options: FormatOptions | None = None, files_per_rank: int = 0,
         remote: str | os.PathLike[str] | None = None, local_bytes: int = 0, alone: bool = False,
         may_differ: bool = False, copies: int | None = None, copy_rate: int | None = None,
         export: str | None = None) -> SaveReport:
    """Saves a state. All ranks call it. It returns when the checkpoint is complete, at remote too if that is set.

    >>> report = cairn.torch.save({"model": torch.nn.Linear(3, 2)}, "run/step-100", step=100)
    >>> report.step, report.plan_reused
    (100, False)

    See :func:`async_save` for the state and the options.
    """
    handle = async_save(state, path, step=step, tags=tags, metrics=metrics, overwrite=overwrite, format=format,
                        format_options=format_options, files_per_rank=files_per_rank, remote=remote,
                        local_bytes=local_bytes, alone=alone, may_differ=may_differ, copies=copies,
                        copy_rate=copy_rate, export=export)
    report = handle.result()
    handle.copied.result()
    handle.uploaded.result()
    return report


def async_save(state: Mapping[Any, Any], path: str | os.PathLike[str] | Run, *, step: int | None = None,
               tags: dict[str, str] | None = None, metrics: Mapping[str, Any] | None = None,
               overwrite: bool | None = None, format: str = "native",
               format_options: FormatOptions | None = None, files_per_rank: int = 0,
               overlap: bool = False, remote: str | os.PathLike[str] | None = None, local_bytes: int = 0,
               alone: bool = False, may_differ: bool = False, copies: int | None = None,
               copy_rate: int | None = None, export: str | None = None) -> Handle:
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

    path may be ``"memory:RUN"``, the memory of the hosts of the job, with step. Each host then holds the files of its
    ranks and copies of files of other hosts; see ``Handle.copied`` and docs/memory.md. copies is how many other hosts
    keep a copy of each file, 1 by default, and copy_rate bounds the bytes per second of copies that a host receives.

    export is what the checkpoint is converted into after the save and its upload, in the background, such as
    "hf/llama to s3://bucket/models/step-100 with /models/Llama-3.1-8B"; see :class:`cairn.Run`. It does not make the
    save fail. ``cairn export`` repeats one that has failed.

    With alone, only this rank saves, a state without sharded tensors, and does not wait for the others.
    """
    request = SaveRequest(path=path, step=step, tags=tags, metrics=metrics, overwrite=overwrite, format=format,
                          format_options=format_options, files_per_rank=files_per_rank, remote=remote,
                          local_bytes=local_bytes, tensors_may_differ=may_differ, copies=copies,
                          copy_rate=copy_rate, export=export)
    return begin(request, lambda j: describe(j, state, alone), alone=alone, overlap=overlap)


def prepare(state: Mapping[Any, Any]) -> None:
    """Prepares the first save of a state, which then stops training as briefly as later saves. All ranks call it.

    >>> cairn.torch.prepare({"model": torch.nn.Linear(3, 2)})

    It starts the saver process. The shared memory is taken in the background, while the job
    sets itself up.
    """
    j, units = None, list[Unit]()
    with Caught() as caught:
        j = job()
        units = describe(j, state, False).units
    ready(j, caught.error, False, "prepare a save")
    assert j is not None
    held = [(at, u.size) for u in units if u.at is None and (at := j.arena.reserve(u.size)) is not None]
    for at, size in held:
        j.arena.free(at, size)
    devices = {u.device for u in units if u.device.type == "cuda"}

    def take() -> None:
        for lo in range(0, max((at + size for at, size in held), default=0), GROUP):
            if j.closing:
                return
            j.arena.back(lo, min(lo + GROUP, j.arena.window))
            for device in devices:
                j.memory.register(device)

    j.preparing = threading.Thread(target=take, name="cairn-prepare", daemon=True)
    j.preparing.start()


def close(*, forget: bool = False) -> None:
    """Ends the saver process of this rank, when its saves are complete, and frees the shared memory.

    >>> cairn.torch.close()

    It warns of saves that have failed, if their ``result`` was not called. forget also removes the checkpoints of this
    job from the memory of this host (``memory:RUN``), for the end of a training that will not go on.
    """
    _job.close(forget)
    _handle.unseen.report()


def begin(request: SaveRequest, make: Callable[[Job], State], *, alone: bool = False, overlap: bool = False,
          explain: Callable[[BaseException], BaseException] | None = None) -> Handle:
    """Begins a save of the state that make returns. All ranks call it, or one alone. All raise an error of make.

    explain returns the error of the handle for an error of the saver process.
    """
    j, title = None, ""
    with Caught() as caught:
        _handle.unseen.report()
        request = request.checked()
        j = job(alone)
        state = make(j)
        title = request.title()
    saver = ready(j, caught.error, alone, title)
    assert j is not None
    if not alone and (run := memory_run(request.store)) is not None:
        j.join_memory(run)
    message = request.message()
    reply: Reply[SaveReport] = Reply()
    reply.number, reply.explain = saver.number(), explain
    upload = None if request.upload is None else saver.expect_upload(reply.number)
    copies = saver.expect_copies(reply.number) if request.in_memory else None
    handle = Handle(request.store, reply, upload, copies)
    staging = Staging(j, saver, state, reply, upload, handle.staged)
    if request.upload is not None and upload is not None:
        _note(upload, request.place(request.upload), request.save_id)
    # Savers may copy from the staged state, too. A state of a Stager is the caller's, who may save it again.
    lent = any(unit.at is not None for unit in state.units)
    (reply if copies is None or lent else copies).then(staging.end)
    reply.then(staging.let_go)
    if "run" not in message:
        _note(reply, request.place(request.store), request.save_id)
    _handle.connect(handle, staging.hear)
    try:
        staging.begun = events(state.units)
        saver.begin(("generation", reply.number), reply, "save", {"items": state.message()}, **message,
                    absent=state.absent, fits=staging.reserve() and not (copies and lent))
        if overlap:
            # The interpreter waits for it at its end: a save that is not staged would be lost.
            threading.Thread(target=staging.run, name="cairn-stage", daemon=False).start()
            return handle
        staging.run()
    except BaseException as e:  # Ctrl-C too: the ranks and the saver process must not wait for the rest of the save
        staging.abandon(e)
        saver.close(5)  # the savers of the other ranks do not wait for this one
        _handle.fail(handle, e)
        staging.error = e
    # Ctrl-C: the caller does not get the handle
    if staging.error is not None and not isinstance(staging.error, Exception):
        _handle.note_seen(handle, staging.error)
        raise staging.error
    return handle


def _note(reply: Reply[SaveReport] | Reply[UploadReport], address: str, save_id: str) -> None:
    """Notes that this process saves to an address: a later save may replace the checkpoint."""
    place = _ours.note_begun(address, save_id)

    def over() -> None:
        if reply.error is None and reply.body is not None:
            _ours.note_saved(place, save_id, reply.body.save_id)

    reply.then(over)
