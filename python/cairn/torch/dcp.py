"""The storage of torch.distributed.checkpoint: dcp.save and dcp.load through cairn.

PyTorch's planners work as they are. cairn.torch.load also loads checkpoints of Writer, and
Reader loads every format that cairn reads.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import io
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.checkpoint import (
    DefaultSavePlanner,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    StorageReader,
    StorageWriter,
    filesystem,
)
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from cairn import errors
from cairn._address import SCHEMES, address_of
from cairn._messages import FormatOptions
from cairn._request import SaveRequest, new_id
from cairn.reports import SaveReport, UploadReport
from cairn.runs import Member, Run, loaded
from cairn.torch import _memory
from cairn.torch._description import State
from cairn.torch._handle import Outcome
from cairn.torch._job import distributed, job
from cairn.torch._load import Loading
from cairn.torch._pickled import Pickled
from cairn.torch._save import begin
from cairn.torch._staging import copy_units, events
from cairn.torch._state import Leaf, Part, StateDict
from cairn.torch._units import span

_COPY_AHEAD = 10_000_000  # the default of PyTorch's FileSystemWriter
_VERSION: str | None = getattr(filesystem, "CURRENT_DCP_VERSION", None)  # older versions of PyTorch have none


class Stager(AsyncStager):
    """Copies a state aside for ``dcp.async_save``: into the memory that it shares with the saver process.

    >>> cairn.torch.Stager().stage({"w": torch.ones(2)})
    {'w': tensor([1., 1.])}

    A Writer is a Stager, so it needs no other one, and copies no bytes again. Tensors that do not
    fit into the shared memory are copied to other memory.
    """

    _synchronize_after_execute = False

    def stage(self, state_dict: StateDict) -> StateDict:
        """Returns a copy of a state. The caller may change the state when it returns."""
        memory = job().memory
        held = list(_tensors(state_dict))
        tensors = [_local(t).detach() for t in held]
        state = State([(Leaf(str(i), None, t), [Part(list(t.shape), t)]) for i, t in enumerate(tensors)], memory)
        copies: dict[int, torch.Tensor] = {}
        pending = []
        for unit in state.units:
            at = memory.alloc(unit.size)
            if at is None:
                gc.collect()  # an earlier state may still be there
                at = memory.alloc(unit.size)
            if at is not None:
                pending.append((unit, at))
        copy_units(memory, pending, events([unit for unit, _ in pending]))
        for unit, at in pending:
            lease = memory.lease(at, unit.size)
            together = lease.storage(0, unit.size)
            for blob, place in zip(unit.blobs, unit.places):
                for index, start in zip(blob.items, blob.starts):
                    t, first = tensors[index], place + start
                    if not t.numel() or first % t.element_size():
                        continue
                    like = torch.empty(t.shape, dtype=t.dtype, device="meta")
                    if strides := state.items[index].get("strides"):
                        like = torch.empty_strided(t.shape, strides, dtype=t.dtype, device="meta")
                    storage, offset = together, first // t.element_size()
                    if isinstance(held[index], DTensor):
                        # PyTorch cannot send a DTensor to another process (AsyncCheckpointerType.PROCESS)
                        # if the part of this rank is not at the beginning of its storage.
                        storage, offset = lease.storage(first, first + span(like)), 0
                    copies[index] = torch.empty(0, dtype=t.dtype, device="cpu").set_(storage, offset, t.shape,
                                                                                     like.stride())
        numbers = iter(range(len(tensors)))

        def copied(t: torch.Tensor) -> torch.Tensor:
            number = next(numbers)
            return copies[number] if number in copies else _local(t).detach().to("cpu", copy=True)

        return _rebuild(state_dict, copied)

    def synchronize_staging(self) -> None:
        """Does nothing: stage has returned when the copy is complete."""

    def close(self) -> None:
        """Does nothing: the memory is free when the save is over."""


class Writer(StorageWriter, Stager):
    """Saves for ``dcp.save`` and ``dcp.async_save``. All ranks of the job save together.

    >>> import torch.distributed.checkpoint as dcp
    >>> writer = cairn.torch.Writer("run/step-100", step=100)
    >>> metadata = dcp.save({"w": torch.ones(2)}, storage_writer=writer, no_dist=True)
    >>> writer.report.step
    100

    For the options after the star see :func:`cairn.torch.save`. The checkpoint appears when it is complete on
    all ranks; until then, and if a rank fails, the previous one stays.

    In place of a path, it accepts a :class:`cairn.Run`, whose folder of the step it saves to. If the run has a remote
    one, ``uploaded`` is the future of the upload of the last save, as ``Handle.uploaded``.

    PyTorch's ``FileSystemWriter`` has the other options. ``thread_count`` is another name of
    ``files_per_rank``. If an option has no meaning here, a warning says why. ``_extensions`` other than
    PyTorch's compression are refused: they might encrypt.
    """

    def __init__(self, path: str | os.PathLike[str] | Run, single_file_per_rank: bool = True, sync_files: bool = True,
                 thread_count: int | None = None, per_thread_copy_ahead: int = _COPY_AHEAD,
                 cache_staged_state_dict: bool = False, overwrite: bool | None = None,
                 _extensions: Sequence[Any] | None = None, serialization_format: Any = None, *, step: int | None = None,
                 tags: dict[str, str] | None = None, metrics: Mapping[str, Any] | None = None, format: str = "native",
                 format_options: FormatOptions | None = None, files_per_rank: int = 0):
        if not single_file_per_rank:
            _note("single_file_per_rank=False",
                  "a file holds many tensors, and each of them can be read without the others")
        if not sync_files:
            _note("sync_files=False", "files are synced before the checkpoint appears, so a crash leaves no damage")
        if per_thread_copy_ahead != _COPY_AHEAD:
            _note("per_thread_copy_ahead",
                  "tensors are copied into the memory that is shared with the saver process, as far as it has room")
        if cache_staged_state_dict:
            _note("cache_staged_state_dict", "the shared memory is kept from save to save anyway")
        if serialization_format is not None and getattr(serialization_format, "name", "") != "TORCH_SAVE":
            _note("serialization_format",
                  "the option format decides: the files of the format native are safetensors files")
        for extension in _extensions or ():
            if type(extension).__module__ != "torch.distributed.checkpoint._extension":
                raise errors.OptionsError(f"_extensions has a {type(extension).__name__}, which Writer cannot apply: "
                                          "save with PyTorch's FileSystemWriter, or without it", ("storage.options",))
            _note("_extensions", "data is written as it is: tensors hardly get smaller by compression")
        self.run = path if isinstance(path, Run) else None
        self.path = _path(path.member(step).path if isinstance(path, Run) else path)
        self.fs = _file_system(self.path)
        self.overwrite = overwrite
        self.request = SaveRequest(path=path, step=step, tags=tags, metrics=metrics, overwrite=overwrite, format=format,
                                   format_options=format_options, files_per_rank=files_per_rank or thread_count or 0)
        self.save_id, self._used = new_id(), False
        self.report: SaveReport | None = None
        """The report of the last save."""
        self.uploaded: Outcome[UploadReport | None] | None = None
        """The upload of the last save."""

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """Where the checkpoint is saved to."""
        return self.path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a save. It goes to checkpoint_id, if there is one, which must be in the run of the Writer."""
        if checkpoint_id:
            self._target(checkpoint_id)
            self.path = _path(checkpoint_id)
            self.fs = _file_system(self.path)
        self.save_id, self._used, self.report, self.uploaded = new_id(), False, None, None

    def _target(self, path: str | os.PathLike[str]) -> str | os.PathLike[str] | Member:
        """Returns the place of a save to a path."""
        if self.run is None:
            return path
        if (found := self.run.find(path)) is None:
            raise errors.OptionsError(f"{os.fspath(path)} is not directly below {self.run.path}, the run of the Writer",
                                      ("storage.options",))
        return found

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise errors.OptionsError("use_collectives=False saves each rank alone; Writer saves all ranks together",
                                      ("storage.options",))

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Notes in each plan how many ranks save."""
        return [dataclasses.replace(plan, storage_data=len(plans)) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Saves the items of this rank, and waits until the checkpoint is complete."""
        ranks = dist.get_world_size() if distributed() else 1
        if plan.storage_data not in (None, 1, ranks):  # all ranks of the process group raise this
            raise errors.OptionsError(f"the process group has {plan.storage_data} of the {ranks} ranks of the job; "
                                      "Writer saves all ranks "
                                      "together, or one alone with no_dist=True", ("storage.options",))
        if self._used:  # PyTorch does not call reset for each save
            self.save_id = new_id()
        self._used = True
        try:
            request = dataclasses.replace(self.request, path=self._target(self.path), save_id=self.save_id)
            handle = begin(request, lambda j: State(_leaves(plan, planner), j.memory),
                           alone=plan.storage_data == 1 < ranks)
            self.report, self.uploaded = handle.result(), handle.uploaded
        except errors.ExistsError as e:
            if self.overwrite is not False:
                raise
            # In PyTorch's words, which programs may look for.
            raise errors.ExistsError(f"Checkpoint already exists and {self.overwrite=}. ({e})", e.codes) from e
        self.save_id = self.report.save_id  # rank 0 has chosen it
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, _size(item), None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Checks that every name was written. The savers have published the checkpoint already."""
        written = {result.index.fqn for part in results for result in part}
        if lost := sorted(set(metadata.state_dict_metadata) - written):
            raise errors.StateError(f"no rank has saved {lost[0]!r}, and {len(lost) - 1} more", ("plan.state",))
        metadata.storage_meta = self.storage_meta()
        if _VERSION:
            metadata.version = _VERSION

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_path(checkpoint_id)


class Reader(StorageReader):
    """Loads for ``dcp.load``, from a checkpoint of any format that cairn reads.

    >>> import torch.distributed.checkpoint as dcp
    >>> report = cairn.torch.save({"w": torch.ones(2)}, "run/step-100")
    >>> state = {"w": torch.zeros(2)}
    >>> dcp.load(state, storage_reader=cairn.torch.Reader("run/step-100"), no_dist=True)
    >>> state
    {'w': tensor([1., 1.])}

    Elements are converted to the dtype of the tensors that they go to, as cast allows: see
    :func:`cairn.torch.load`. As with PyTorch's own storage, objects are unpickled by the planner:
    load only checkpoints that you trust. ``_extension_registry`` is an option of PyTorch's
    ``FileSystemReader``, and has no meaning here.
    """

    def __init__(self, path: str | os.PathLike[str], _extension_registry: Any = None, *, format: str | None = None,
                 format_options: FormatOptions | None = None, cast: str = "in-range"):
        if _extension_registry is not None:
            _note("_extension_registry",
                  "Reader decompresses what PyTorch's own extensions have compressed, and can apply no others")
        self.path = _path(path)
        self.fs = _file_system(self.path)
        self.format, self.format_options, self.cast = format, format_options, cast
        self.load_id = new_id()
        self._metadata: Metadata | None = None

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """Where the checkpoint is."""
        return self.path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a load. It reads from checkpoint_id, if there is one."""
        if checkpoint_id:
            self.path = _path(checkpoint_id)
            self.fs = _file_system(self.path)
        self.load_id, self._metadata = new_id(), None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Describes the checkpoint. Each tensor is one chunk, however it was saved."""
        described = job().own().describe(os.fspath(self.path), self.format, self.format_options)
        entries: dict[str, BytesStorageMetadata | TensorStorageMetadata] = {}
        paths: dict[str, tuple[Any, ...]] = {}
        for e in described.get("entries") or []:
            name = e["name"]
            if "codec" in e:
                entries[name] = BytesStorageMetadata()
            else:
                try:
                    dtype = _memory.dtype_of(e["dtype"])
                except errors.CastError as err:
                    warnings.warn(f"{name!r} is left out: {err}", stacklevel=2)
                    continue
                size = torch.Size(e.get("shape") or ())
                properties = TensorProperties(dtype=dtype, requires_grad=e.get("requires_grad", False))
                chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
                entries[name] = TensorStorageMetadata(properties, size, [chunk])
            paths[name] = tuple(_step(s) for s in e.get("path") or [name])
        meta = StorageMeta(checkpoint_id=self.checkpoint_id, save_id=described.get("save_id"), load_id=self.load_id)
        metadata = Metadata(entries, planner_data=paths, storage_data={}, storage_meta=meta)
        if _VERSION:
            metadata.version = _VERSION
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Loads the items of this rank."""
        assert self._metadata is not None
        j = job()
        loading = Loading(j.memory, allow_pickle=True)
        filled = []

        def take(item: ReadItem, v: Any) -> None:
            data = io.BytesIO()
            torch.save(v, data)
            data.seek(0)
            planner.load_bytes(item, data)

        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                loading.value(name, functools.partial(take, item))
                continue
            t = planner.resolve_tensor(item)
            described = self._metadata.state_dict_metadata[name]
            assert isinstance(described, TensorStorageMetadata)
            loading.tensor(name, list(described.size), list(item.storage_offsets), t.detach())
            filled.append((item, t))
        meta = self._metadata.storage_meta
        loading.run(j.own(), os.fspath(self.path), {"format": self.format, "format_options": self.format_options},
                    save_id=(meta and meta.save_id) or "", cast=self.cast)
        loaded(address_of(self.path), (meta and meta.save_id) or "")
        for item, t in filled:
            planner.commit_tensor(item, t)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_path(checkpoint_id)


def _local(v: torch.Tensor) -> torch.Tensor:
    return v.to_local() if isinstance(v, DTensor) else v


def _tensors(v: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a state, and the shards of a ShardedTensor that this rank holds."""
    if isinstance(v, ShardedTensor):
        yield from (s.tensor for s in v.local_shards())
    elif isinstance(v, torch.Tensor):
        yield v
    elif isinstance(v, Mapping):
        for x in v.values():
            yield from _tensors(x)
    elif type(v) in (list, tuple):
        for x in v:
            yield from _tensors(x)


def _rebuild(v: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns a state with copies, in the order of _tensors."""
    if isinstance(v, DTensor):
        return DTensor.from_local(copied(v), v.device_mesh, v.placements, run_check=False, shape=v.shape,
                                  stride=v.stride())
    if isinstance(v, ShardedTensor):
        shards = [Shard(copied(s.tensor), s.metadata) for s in v.local_shards()]
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, sharded_tensor_metadata=v.metadata(), process_group=v._process_group)
    if isinstance(v, torch.Tensor):
        return copied(v)
    if isinstance(v, Mapping):
        kind = collections.OrderedDict if isinstance(v, collections.OrderedDict) else dict
        return kind((k, _rebuild(x, copied)) for k, x in v.items())
    if type(v) in (list, tuple):
        return type(v)([_rebuild(x, copied) for x in v])
    return copy.deepcopy(v)


def _is_path(checkpoint_id: str | os.PathLike[str]) -> bool:
    try:
        address = address_of(checkpoint_id)
    except errors.OptionsError:
        return False
    scheme, is_url, _ = address.partition("://")
    return not is_url or scheme in SCHEMES


def _path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns a folder as PyTorch has it, and a URL as it is."""
    return path if "://" in os.fspath(path) else pathlib.Path(path)


def _file_system(path: str | os.PathLike[str]) -> FileSystem | None:
    """Returns PyTorch's functions for the files of a folder, which programs use, or None for a URL."""
    return FileSystem() if isinstance(path, pathlib.Path) else None


_noted: set[str] = set()


def _note(option: str, why: str) -> None:
    """Warns, once, of an option of PyTorch's storage that has no meaning here."""
    if option not in _noted:
        _noted.add(option)
        warnings.warn(f"{option} has no meaning for cairn: {why}", stacklevel=3)


def _step(step: Any) -> str | int:
    """Returns a step of a path as PyTorch has it: a string for a key of a dict, an integer for a position."""
    if isinstance(step, str):
        return step
    return step["pos"] if "pos" in step else step["int"]


def _leaves(plan: SavePlan, planner: SavePlanner) -> list[tuple[Leaf, list[Part] | None]]:
    """Returns the items of a plan, grouped by tensor."""
    # PyTorch's planners note where in the state each name was; others may note anything else.
    noted = plan.planner_data if isinstance(plan.planner_data, dict) else {}
    leaves: dict[str, tuple[Leaf, list[Part] | None]] = {}
    for item in plan.items:
        name = item.index.fqn
        path = noted.get(name)
        steps = [s if isinstance(s, str) else {"pos": s} for s in path] if isinstance(path, tuple) else None
        if item.type == WriteItemType.BYTE_IO:
            leaves[name] = Leaf(name, steps, _object(item, planner)), None
            continue
        t = planner.resolve_data(item)
        assert isinstance(t, torch.Tensor) and item.tensor_data is not None
        whole = item.type == WriteItemType.TENSOR
        part = Part(list(item.tensor_data.size), t, None if whole else list(item.tensor_data.chunk.offsets))
        _, held = leaves.setdefault(name, (Leaf(name, steps, t), []))
        assert held is not None
        held.append(part)
    return list(leaves.values())


def _object(item: WriteItem, planner: SavePlanner) -> Any:
    if isinstance(planner, DefaultSavePlanner) and type(planner).resolve_data is DefaultSavePlanner.resolve_data \
            and type(planner).transform_object is DefaultSavePlanner.transform_object:
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)  # the planner may have changed it
    assert isinstance(data, io.BytesIO)
    return Pickled(data.getvalue())


def _size(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
