"""Checkpoints of Megatron-core, and of what is built on it, through cairn.

    import cairn.megatron
    cairn.megatron.install()                     # before the training begins, on all ranks

From then on Megatron-LM, Megatron-Bridge, verl, slime, miles and ms-swift save and load with cairn where they use the
format torch_dist. A program with strategies of its own gives them to Megatron-core::

    dist_checkpointing.save(state, folder, cairn.megatron.SaveStrategy())
    state = dist_checkpointing.load(state, folder, cairn.megatron.LoadStrategy())

A checkpoint is a native one, with Megatron's names, and with the files by which Megatron finds it. It needs the package
``megatron-core``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron import core as _core

import cairn
import cairn.torch
from cairn import _wait, errors
from cairn._address import address_of
from cairn._request import SaveRequest
from cairn.runs import Run
from cairn.torch._description import State
from cairn.torch._handle import Handle
from cairn.torch._job import Caught, Job, agree, broadcast
from cairn.torch._remembered import describe
from cairn.torch._save import begin
from cairn.torch._state import StateDict
from cairn.torch._whole import key_of, load_whole

TESTED = ("0.16", "0.17", "0.18", "0.19")
"""The releases of Megatron-core that this module was tested with."""

if ".".join((_version := str(getattr(_core, "__version__", "unknown"))).split(".")[:2]) not in TESTED:
    raise errors.OptionsError(f"cairn.megatron was tested with Megatron-core {', '.join(TESTED)}, and not with "
                              f"{_version}: install one of these, or save without cairn", ("storage.options",))

from megatron.core.dist_checkpointing import core as _config  # noqa: E402 -- other releases may have other modules
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, is_main_replica  # noqa: E402
from megatron.core.dist_checkpointing.strategies import async_utils, torch as _stock  # noqa: E402

_BACKEND = "cairn"  # in the file by which Megatron recognises a checkpoint
_COMMON_FILE = "common.pt"
_CONFIG_FILE = "metadata.json"
_TRACKER_FILE = "latest_checkpointed_iteration.txt"
_COMMON = "common_state"  # the key of the state that is not sharded, since 0.19
_KEYS = "cairn.megatron.common"  # the value with the keys of that state


class SaveStrategy(_stock.TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Saves the sharded state of Megatron-core with cairn.

    With the option async_sharded_save, training goes on when the state is copied aside. The request is over when the
    checkpoint is complete on all ranks. If a save fails on one rank, it fails on all.

    run is the :class:`cairn.Run` in whose folder Megatron saves: then its policy decides which checkpoints are kept,
    saves store what has changed, and checkpoints are uploaded to its remote place. Without a run, a save replaces the
    checkpoint that Megatron has saved under the same iteration before, when the new one is complete.
    """

    run: Run | None = None

    def __init__(self, *args: Any, run: Run | None = None, **kwargs: Any) -> None:
        if "backend" in kwargs or args:
            super().__init__(*args, **kwargs)
        else:
            super().__init__("torch_dist", 1, **kwargs)
        self.backend = _BACKEND
        self.run = run or self.run

    def save(self, sharded_state_dict: StateDict, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Saves a state. It returns when the checkpoint is complete."""
        _complete(*self._begin(sharded_state_dict, checkpoint_dir))

    def async_save(self, sharded_state_dict: StateDict, checkpoint_dir: str | os.PathLike[str],
                   async_strategy: str = "mcore") -> Any:
        """Copies a state aside, and returns the request with which Megatron waits for the checkpoint."""
        handle, folder, common = self._begin(sharded_state_dict, checkpoint_dir)
        # Megatron asks a process of its own whether the save is over, which sees no futures: only this file.
        fd, under_way = tempfile.mkstemp(prefix="cairn-save-")
        os.close(fd)
        handle.add_done_callback(lambda _: os.unlink(under_way))
        return _request_class(async_strategy)(_wait.until_gone, (under_way, os.getpid()),
                                              [lambda: _complete(handle, folder, common)])

    def _begin(self, sharded_state_dict: StateDict,
               checkpoint_dir: str | os.PathLike[str]) -> tuple[Handle, str, StateDict | None]:
        """Begins a save. It returns the folder, and the state that is not sharded, or None on other ranks than 0."""
        folder = address_of(checkpoint_dir)
        target: Any = self.run.find(folder) if self.run is not None else folder
        if target is None:
            raise errors.OptionsError(f"{folder} is not a folder of the run of this strategy", ("storage.options",))
        common: StateDict | None = None

        def describes(j: Job) -> State:  # an error of one rank is one on all
            nonlocal common
            state, common = _saved(sharded_state_dict)
            if common is None and dist.get_rank() == 0:
                common = _take_common(folder)
            if common is not None:
                state = _joined(state, {**common, _KEYS: sorted(map(str, common))})
            return describe(j, state, False, whole=True)

        request = SaveRequest(path=target, step=_iteration(os.path.basename(folder)), overwrite=True)
        return begin(request, describes), folder, common


class LoadStrategy(_stock.TorchDistLoadShardedStrategy):  # type: ignore[misc]
    """Loads the sharded state of Megatron-core from a checkpoint of :class:`SaveStrategy`.

    Another checkpoint, such as one that Megatron itself has saved, is loaded as Megatron loads it. With allow_pickle,
    objects are loaded of classes that torch does not load with ``weights_only``: a pickle can run any code.
    """

    allow_pickle = False

    def __init__(self, *args: Any, allow_pickle: bool | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Megatron makes tensors of fp8 ordinary ones before the load.
        self.stream_ckpt_dequant = False
        self.allow_pickle = self.allow_pickle if allow_pickle is None else allow_pickle

    def load(self, sharded_state_dict: StateDict, checkpoint_dir: str | os.PathLike[str], *args: Any,
             **kwargs: Any) -> Any:
        """Fills the tensors of a state, and returns it with these and with the objects of the checkpoint."""
        if not _is_ours(checkpoint_dir):
            return super().load(sharded_state_dict, checkpoint_dir, *args, **kwargs)
        state: StateDict = {}
        with Caught() as caught:
            state = self._wanted(sharded_state_dict, checkpoint_dir)
        if caught.error is not None:
            agree("load", caught.error)  # the other ranks are in cairn.torch.load, and hear of it
        cairn.torch.load(state, address_of(checkpoint_dir), allow_pickle=self.allow_pickle)
        return _loaded(sharded_state_dict, state)

    def _wanted(self, sharded_state_dict: StateDict, checkpoint_dir: str | os.PathLike[str]) -> StateDict:
        """Returns what this rank loads of a checkpoint, by name."""
        state: StateDict = {_KEYS: None}
        shards: dict[str, cairn.torch.Shards] = {}
        shapes = None
        for part in nested_values(sharded_state_dict):
            if isinstance(part, ShardedObject):
                state[part.unique_key] = None
                continue
            _fill(part)
            shape, at, t = part.global_shape, part.global_offset, _with_axes(part)
            if part.allow_shape_mismatch:
                if shapes is None:
                    with cairn.open(address_of(checkpoint_dir)) as c:
                        shapes = c.shapes()
                shape = tuple(shapes.get(part.key, shape))  # the load says what is missing
                at, t = _overlap(shape, at, t)
            held = shards.setdefault(part.key, cairn.torch.Shards(shape)).parts
            shards[part.key] = cairn.torch.Shards(shape, [*held, (at, t)])
        return {**state, **shards}

    def load_tensors_metadata(self, checkpoint_dir: str | os.PathLike[str], metadata: Any = None) -> StateDict:
        """Returns the tensors of a checkpoint, without their elements."""
        if not _is_ours(checkpoint_dir):
            return super().load_tensors_metadata(checkpoint_dir, metadata)  # type: ignore[no-any-return]
        return {k: v for k, v in self.load_sharded_metadata(checkpoint_dir).items() if isinstance(v, ShardedTensor)}

    def load_sharded_metadata(self, checkpoint_dir: str | os.PathLike[str]) -> StateDict:
        """Returns the tensors and the sharded objects of a checkpoint, without their contents."""
        if not _is_ours(checkpoint_dir):
            return super().load_sharded_metadata(checkpoint_dir)  # type: ignore[no-any-return]
        out: StateDict = {}
        with cairn.open(address_of(checkpoint_dir)) as c:
            shapes, common = c.shapes(), c[_KEYS]
            for name in c:
                if key_of(entry := c.entry(name)) in common:
                    continue
                if "dtype" in entry:
                    like = torch.empty(shapes[name], dtype=getattr(torch, entry["dtype"]), device="meta")
                    out[name] = ShardedTensor.from_rank_offsets(name, like).without_data()
                elif "/shard_" in name:
                    out[name] = ShardedObject.empty_from_unique_key(name)
        return out

    def remove_sharded_tensors(self, checkpoint_dir: str, key_prefix: str) -> None:
        """Removes tensors of a checkpoint that Megatron has saved. Those of cairn are not changed."""
        if _is_ours(checkpoint_dir):
            raise errors.OptionsError(f"{checkpoint_dir} is a checkpoint of cairn, which nothing changes: copy the "
                                      f"rest of it, with cairn convert --exclude '{key_prefix}*'",
                                      ("storage.options",))
        super().remove_sharded_tensors(checkpoint_dir, key_prefix)


_base = sys.modules.get("megatron.core.dist_checkpointing.strategies.base")
if hasattr(_base, "register_default_strategy"):  # until 0.16, which chooses by the backend that a checkpoint names
    _base.register_default_strategy(_base.StrategyAction.LOAD_SHARDED, _BACKEND, 1,  # type: ignore[union-attr]
                                    LoadStrategy())

with contextlib.suppress(ImportError):  # Bridge refuses classes of packages that it does not know
    from megatron.bridge.utils.instantiate_utils import register_allowed_target_prefix

    register_allowed_target_prefix("cairn")


def install(*, run: Run | None = None, allow_pickle: bool = False) -> None:
    """Has Megatron, and what is built on it, save and load with cairn. All ranks call it before the training begins.

    It replaces the classes of Megatron's format torch_dist in all modules that have imported them. run and allow_pickle
    are described at :class:`SaveStrategy` and :class:`LoadStrategy`. Another call replaces them.
    """
    SaveStrategy.run, LoadStrategy.allow_pickle = run, allow_pickle
    replaced: dict[str, type] = {"TorchDistSaveShardedStrategy": SaveStrategy,
                                 "TorchDistLoadShardedStrategy": LoadStrategy}
    for name, ours in replaced.items():
        theirs = ours.__mro__[1]
        for module in list(sys.modules.values()):
            # Programs put None there, and objects without a dict.
            if module is not sys.modules[__name__] and getattr(module, "__dict__", {}).get(name) is theirs:
                setattr(module, name, ours)


def finish(folder: str | os.PathLike[str]) -> int | None:
    """Finishes the newest checkpoint below a folder that saver processes have completed after the death of a training.

    A checkpoint is complete before Megatron writes the files by which it finds it. If the training was killed between
    the two, this writes them. One process calls it before the training begins, or rank 0. It waits for
    saver processes that are still writing. If the tracker file names an older iteration, and the newest checkpoint has
    all its files, somebody has chosen to go back: the tracker file stays. It returns the iteration from which Megatron
    will go on, or None::

        cairn.megatron.finish("checkpoints")
    """
    root = address_of(folder)
    try:
        with open(os.path.join(root, _TRACKER_FILE), encoding="utf-8", errors="replace") as f:
            tracked = f.read().strip()
    except FileNotFoundError:
        tracked = ""
    known = int(tracked) if tracked.isdecimal() else None
    path = cairn.latest(root, wait=True)
    found = None if path is None else _iteration(os.path.basename(path))
    if path is None or found is None or tracked == "release":
        return known
    if known is not None and (known > found or _is_finished(path)):
        return known
    with cairn.open(path) as c:
        if _KEYS not in c:
            return known
        keys = c[_KEYS]
    _write_common(path, load_whole(path, keys=frozenset(keys)))
    _config.save_config(_config.CheckpointingConfig(_BACKEND, 1), path)
    _write(os.path.join(root, _TRACKER_FILE), lambda f: f.write(str(found).encode()))
    return found


def _iteration(name: str) -> int | None:
    """Returns the iteration in the name of a folder of Megatron."""
    found = re.fullmatch(r"iter_(\d+)", name)
    return int(found[1]) if found else None


def _is_ours(folder: str | os.PathLike[str]) -> bool:
    if not os.path.exists(os.path.join(folder, "cairn.json")):
        return False
    if os.path.exists(os.path.join(folder, ".metadata")):
        raise errors.ExistsError(f"{folder} has two checkpoints: Megatron has saved over one of cairn, and would take "
                                f"{_COMMON_FILE} of that: remove .metadata, or cairn.json and {_COMMON_FILE}",
                                ("storage.exists",))
    return True


def _joined(state: StateDict, common: StateDict) -> StateDict:
    """Returns the sharded state and the state that is not sharded as one."""
    if clash := sorted(state.keys() & common.keys()):
        raise errors.StateError(f"{clash[0]!r} is the name of a tensor or an object, and a key of the state that is "
                                "not sharded: rename one of them", ("plan.state",))
    return {**state, **common}


def _is_finished(folder: str) -> bool:
    """Reports whether a checkpoint has the files of Megatron. They may be those of the checkpoint that it replaced."""
    try:
        times = [os.path.getmtime(os.path.join(folder, name)) for name in ("cairn.json", _COMMON_FILE, _CONFIG_FILE)]
    except FileNotFoundError:
        return False
    return times[0] <= times[1]


def _saved(sharded_state_dict: StateDict) -> tuple[StateDict, StateDict | None]:
    """Returns what this rank saves of a state, by Megatron's names, and the state that is not sharded, if it has it."""
    state: StateDict = {}
    shards: dict[str, list[ShardedTensor]] = {}
    common: StateDict | None = None
    for part in nested_values(sharded_state_dict):
        if not is_main_replica(part.replica_id):
            continue
        if isinstance(part, ShardedTensor):
            shards.setdefault(part.key, []).append(part)
        elif part.key == _COMMON:
            common = part.data
        else:
            state[part.unique_key] = (part.data,)  # in a tuple, it is one value
    for key, held in shards.items():
        for part in held:
            _refuse_flat(part)
            if part.data is None:
                raise errors.StateError(f"{key!r} has no data", ("plan.state",))
        state[key] = cairn.torch.Shards(held[0].global_shape, [(p.global_offset, _with_axes(p)) for p in held])
    return state, common


def _refuse_flat(part: ShardedTensor) -> None:
    if getattr(part, "flattened_range", None) is not None:
        raise errors.StateError(f"{part.key!r} is a part of a flat tensor (flattened_range), as in the form "
                                "fully_sharded_model_space: choose another form of the optimizer's states, such as "
                                "fully_reshardable", ("plan.state",))


def _with_axes(part: ShardedTensor) -> torch.Tensor:
    """Returns the elements of a part with as many axes as the whole tensor has."""
    return part.data.detach().reshape((1,) * part.prepend_axis_num + tuple(part.local_shape))


def _fill(part: ShardedTensor) -> None:
    """Prepares the tensor of a part that is loaded."""
    _refuse_flat(part)
    if part.data is None:
        part.init_data("cpu", init_fn=torch.zeros if part.allow_shape_mismatch else torch.empty)
        return
    part.data = part.data.detach()
    if not part.data.is_contiguous():
        part.data = part.data.contiguous()
    if part.allow_shape_mismatch:
        part.data.zero_()


def _overlap(shape: tuple[int, ...], at: tuple[int, ...],
             t: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
    """Returns the elements of a part that a tensor of another shape has, and where they are."""
    at = tuple(map(min, at, shape))
    for axis, (first, whole) in enumerate(zip(at, shape)):
        t = t.narrow(axis, 0, min(t.shape[axis], whole - first))
    return at, t


def _loaded(sharded: Any, values: Mapping[str, Any]) -> Any:
    """Returns a state with the contents of its parts."""
    if isinstance(sharded, dict):
        return {k: _loaded(v, values) for k, v in sharded.items()}
    if isinstance(sharded, list):
        return [_loaded(v, values) for v in sharded]
    return sharded.data if isinstance(sharded, ShardedTensor) else values[sharded.unique_key][0]


def _complete(handle: Handle, folder: str, common: StateDict | None) -> None:
    """Waits for a save, and writes the common state. All ranks call it. An error is one on all ranks."""
    try:
        handle.result()
    except BaseException:
        if common and not any(os.path.exists(os.path.join(folder, n)) for n in ("cairn.json", _COMMON_FILE)) \
                and os.path.exists(os.path.join(folder, ".metadata")):
            _write_common(folder, common)  # of Megatron's checkpoint, which stays
        raise
    if handle.path != folder:
        raise errors.ExistsError(f"{folder} has a checkpoint of another line of the run, which stays, and this one is "
                                 f"in {handle.path}: Megatron does not find it there. Call cairn.megatron.finish "
                                 "before a training, so that it goes on from the newest checkpoint",
                                 ("storage.exists",))
    broadcast("megatron", lambda: _write_common(folder, common or {}), folder)


def _take_common(folder: str) -> StateDict:
    """Returns the common state that Megatron has written before the rest, as it does before 0.19, without a file.

    It is written again when the checkpoint is complete. Until then, the folder looks like one of another format.
    """
    path = os.path.join(folder, _COMMON_FILE)
    try:
        common: StateDict = torch.load(path, map_location="cpu", weights_only=False)  # of this process
    except FileNotFoundError:
        return {}
    os.unlink(path)
    return common


def _write_common(folder: str, common: StateDict) -> None:
    """Writes the file in which Megatron looks for the common state of a checkpoint of any format."""
    _write(os.path.join(folder, _COMMON_FILE), lambda f: torch.save(common, f))


def _write(path: str, write: Callable[[Any], object]) -> None:
    """Writes a file, which appears when it is complete."""
    with open(f"{path}.new", "wb") as f:
        write(f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(f"{path}.new", path)


def _request_class(async_strategy: str) -> Any:
    """Returns the class of the requests that Megatron's queue takes."""
    choose = getattr(_stock, "get_async_strategy", None)  # since 0.17
    return async_utils.AsyncRequest if choose is None else choose(async_strategy)[1]["AsyncRequest"]


def __getattr__(name: str) -> Any:
    # Megatron-Bridge is not always there, and takes long to import.
    if name != "CheckpointManager":
        raise AttributeError(f"module 'cairn.megatron' has no attribute {name!r}")
    from megatron.bridge.training import checkpointing

    class CheckpointManager(checkpointing.DefaultCheckpointManager):  # type: ignore[misc]
        """The checkpoint manager of Megatron-Bridge, with cairn. A script imports cairn.megatron, and its configuration
        has ``checkpoint.custom_manager_class = "cairn.megatron.CheckpointManager"``.
        """

        def __init__(self, checkpoint_config: Any) -> None:
            install(run=SaveStrategy.run, allow_pickle=LoadStrategy.allow_pickle)
            super().__init__(checkpoint_config)

    globals()[name] = CheckpointManager
    return CheckpointManager
