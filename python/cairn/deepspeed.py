"""Checkpoints of DeepSpeed, saved in the background, and loaded into any number of ranks.

    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    cairn.deepspeed.attach(engine)
    path, client_state = cairn.deepspeed.load(engine, "run")     # None and {}: there is no checkpoint yet
    ...
    engine.save_checkpoint("run")                                # returns after the copy
    ...
    engine.destroy()                                             # raises the error of the last save

The files are those that DeepSpeed itself writes. It needs the package ``deepspeed``, 0.19.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch

from cairn import checkpoint, errors
from cairn._address import address_of, join_address
from cairn._messages import Entry
from cairn.torch._files import PickledFile, async_save_files
from cairn.torch._handle import Handle
from cairn.torch._job import Caught, agree, broadcast, job
from cairn.torch._load import Loading
from cairn.torch._memory import dtype_of
from cairn.torch._state import StateDict, Tree

if not deepspeed.__version__.startswith("0.19."):
    raise errors.OptionsError(f"DeepSpeed {deepspeed.__version__} is not known: cairn.deepspeed was tested with "
                              "0.19.8, and accepts the releases 0.19", ("storage.options",))

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

_PATIENCE = 40 * 60  # seconds; a saver process that has lost its trainer gives up after 30 minutes


def attach(engine: DeepSpeedEngine) -> None:
    """Makes ``engine.save_checkpoint`` save in the background. All ranks call it, after ``deepspeed.initialize``.

    save_checkpoint then returns when the state has been copied aside. The saver processes write the files of all ranks
    and, when all of them are complete and durable, ``latest``: also if the training has ended meanwhile or was killed.
    If a rank fails, ``latest`` stays as it is, and the next save_checkpoint or ``engine.destroy`` raises the error on
    all ranks. A tag that ``latest`` names already cannot be saved again: ExistsError.
    """
    _check(engine)
    if isinstance(engine.checkpoint_engine, CheckpointEngine):
        return
    if type(engine.checkpoint_engine) is not TorchCheckpointEngine:
        raise _unfit(f"the configuration of DeepSpeed has chosen a {type(engine.checkpoint_engine).__name__}: take its "
                     "section checkpoint.writer or datastates_ckpt away")
    if engine.use_node_local_storage():
        raise _unfit("checkpoint.use_node_local_storage is set, and cairn saves to a folder that all ranks see")
    saver = engine.checkpoint_engine = CheckpointEngine(engine._config)
    collect = engine.save_checkpoint

    @functools.wraps(collect)
    def save_checkpoint(*args: Any, **options: Any) -> bool:
        try:
            collect(*args, **options)
            saver.begin()
        finally:
            saver.drop()  # after an error, the next save begins anew
        return True

    engine.save_checkpoint = save_checkpoint


def _check(engine: DeepSpeedEngine) -> None:
    """Raises an error if engine is something else."""
    if not isinstance(engine, DeepSpeedEngine):
        raise _unfit(f"engine is a {type(engine).__name__}; want what deepspeed.initialize returns first")


class CheckpointEngine(TorchCheckpointEngine):  # type: ignore[misc]
    """Collects the files of a checkpoint, which DeepSpeed passes to it, for the saver processes.

    DeepSpeed would write ``latest`` at the end of save_checkpoint, and does not with an engine that is decoupled: it
    then asks in each step what to commit, which is nothing here, and calls cleanup in ``destroy``.
    """

    def __init__(self, config_params: Any = None) -> None:
        super().__init__(config_params)
        self.name = "cairn"
        self._info: CheckpointCommitInfo | None = None  # of the checkpoint whose files are being collected
        self._files: dict[str, PickledFile] = {}
        self._error: Exception | None = None  # of a file of this rank
        self._handle: Handle | None = None

    def is_decoupled(self) -> bool:
        return True

    def create(self, info: CheckpointCommitInfo) -> None:
        """Waits for the previous save, and raises its error."""
        self.cleanup()
        self._info = info

    def save(self, state_dict: Any, path: str) -> None:
        """Adds a file to the checkpoint. A file elsewhere, such as that of save_16bit_model, is written at once."""
        folder, name = os.path.split(path)
        if self._info is None or folder != os.path.join(self._info.save_dir, self._info.tag):
            super().save(state_dict, path)
            return
        try:
            self._files[name] = PickledFile(path, state_dict)
        except Exception as e:
            self._error = self._error or e  # begin raises it on all ranks

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Ends save_16bit_model."""
        self.drop()
        return True

    def begin(self) -> None:
        """Begins the save of the files that were collected. All ranks call it."""
        info = self._info
        assert info is not None
        self._handle = async_save_files(self._collected, info.save_dir, info.tag,
                                        pointer="latest" if info.save_latest else None)

    def _collected(self) -> dict[str, PickledFile]:
        if self._error is not None:
            raise self._error
        return self._files

    def drop(self) -> None:
        """Forgets the files that were collected."""
        self._info, self._files, self._error = None, {}, None

    def cleanup(self) -> None:
        """Waits for the save that is under way, and raises its error."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.result()


def load(engine: DeepSpeedEngine, path: str | os.PathLike[str], *,
         allow_pickle: bool = False) -> tuple[str | None, StateDict]:
    """Loads a checkpoint of ZeRO into an engine with any number of ranks and any stage of ZeRO. All ranks call it.

    path is the folder with ``latest``, or the folder of a tag. It waits for saver processes that are still writing.
    It returns the path of the checkpoint and its client state, or None and an empty dict if there is no checkpoint yet.

    The weights, the fp32 weights of the optimizer, its states and options, the scheduler, the loss scaler and the
    counters of the engine are loaded. Each rank reads the parts that it holds. If a rank fails, all raise the error,
    and the engine stays as it was. Objects in the client state that are not plain data are made again only with
    allow_pickle, because a pickle can run any code.
    """
    what = f"load {os.path.basename(address_of(path).rstrip('/'))!r} into DeepSpeed"
    with Caught() as caught:
        _check(engine)
        _check_loads(engine)
        if isinstance(engine.checkpoint_engine, CheckpointEngine):
            engine.checkpoint_engine.cleanup()
    agree("deepspeed/ready", caught.error)
    found = broadcast("deepspeed", lambda: _find(address_of(path)), what)
    if found is None:
        return None, {}
    loaded: _Loaded | None = None
    with Caught() as caught:
        loaded = _Loaded(engine, found, allow_pickle)
    agree("deepspeed/read", caught.error)
    assert loaded is not None
    with torch.no_grad():
        loaded.apply()
    return found, loaded.client


def _find(address: str) -> str | None:
    """Returns the folder of the checkpoint at an address, or None."""
    newest = checkpoint.latest(address, wait=True, timeout=_PATIENCE)
    if newest is None or newest == address or "://" in address:
        return newest
    try:
        with open(os.path.join(address, "latest"), encoding="utf-8") as f:
            return join_address(address, f.read().strip())
    except FileNotFoundError:
        warnings.warn(f"{address} has no file latest, so no checkpoint is loaded: to load one, give the path of a tag, "
                      f"such as {newest}", stacklevel=errors.outside())
        return None


def _check_loads(engine: DeepSpeedEngine) -> None:
    """Raises an error if the engine is of a kind that load does not fill."""
    optimizer = engine.optimizer
    why = ""
    if type(optimizer) not in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
        why = f"its optimizer is a {type(optimizer).__name__}, not that of ZeRO 1, 2 or 3"
    elif engine.mp_world_size != 1 or engine.has_moe_layers or engine.pipeline_parallelism:
        why = "it has tensor, pipeline or expert parallelism"
    elif getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False):
        why = "its optimizer or its weights are on NVMe"
    elif engine.zero_hpz_partition_size() > 1:
        why = "zero_hpz_partition_size is set"
    elif engine.curriculum_learning_enabled() or engine.random_ltd_enabled():
        why = "it has curriculum learning or random layer token drop"
    if why:
        raise _unfit(f"cairn.deepspeed.load does not fill this engine: {why}; engine.load_checkpoint does, with the "
                     "same number of ranks")


@dataclass(frozen=True)
class _Fragment:
    """A part of a parameter that this rank holds, in a flat tensor of the optimizer."""

    flat: torch.Tensor  # fp32, the key of the state of the optimizer
    at: int  # in flat
    start: int  # in the parameter
    count: int

    def of(self, t: torch.Tensor) -> torch.Tensor:
        """Returns the same part of a tensor that is like flat."""
        return t.data.narrow(0, self.at, self.count)


class _Zero12:
    """The memory of ZeRO 1 and 2: flat tensors of the parameters of a group, cut anywhere."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.flats: list[torch.Tensor] = optimizer.single_partition_of_fp32_groups
        self.group_of = list(range(len(self.flats)))
        self.groups: list[list[torch.Tensor]] = optimizer.bit16_groups

    def shape(self, p: torch.Tensor) -> list[int]:
        return list(p.shape)

    def fragment(self, p: Any) -> _Fragment | None:
        """Returns the part of a trained parameter that this rank holds."""
        if p._hp_mapping is None:
            return None
        lp, hp = p._hp_mapping.lp_fragment_address, p._hp_mapping.get_hp_fragment_address()
        return _Fragment(self.flats[p._hp_mapping.param_group_index], hp.start, lp.start, lp.numel)

    def frozen(self, p: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Returns the part of a parameter that is not trained, and its first element in the parameter."""
        return p.data, 0

    def begin(self) -> None:
        pass

    def end(self) -> None:
        """Makes the weights of the model from those of the optimizer."""
        self.optimizer.update_lp_params()


class _Zero3:
    """The memory of ZeRO 3: each parameter is cut into equal parts, of which the last one may be padded."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.flats: list[torch.Tensor] = optimizer.fp32_partitioned_groups_flat
        self.group_of = [optimizer.sub_group_to_group_id[i] for i in range(len(self.flats))]
        self.groups: list[list[torch.Tensor]] = [[] for _ in optimizer.optimizer.param_groups]
        for i, params in enumerate(optimizer.fp16_groups):
            self.groups[self.group_of[i]] += params

    def shape(self, p: Any) -> list[int]:
        return list(p.ds_shape)

    def fragment(self, p: Any) -> _Fragment | None:
        group, at, _ = self.optimizer.grad_position[self.optimizer.get_param_id(p)]
        start, count = self._range(p)
        return _Fragment(self.flats[group], at, start, count) if count else None

    def frozen(self, p: Any) -> tuple[torch.Tensor, int]:
        start, count = self._range(p)
        return p.ds_tensor.data.view(-1)[:count], start

    def _range(self, p: Any) -> tuple[int, int]:
        size: int = p.partition_numel()
        start = size * self.optimizer._get_param_partition_rank(p)
        return start, max(0, min(size, p.ds_numel - start))

    def begin(self) -> None:
        self.optimizer.checkpoint_event_prologue()

    def end(self) -> None:
        zero = self.optimizer
        for flat, weights, parts in zip(self.flats, zero.fp16_partitioned_groups_flat, zero.fp16_partitioned_groups):
            weights.data.copy_(flat.data)
            for part, of in zip(parts, zero.unflatten(weights, parts)):
                part.data = of.data
        zero.checkpoint_event_epilogue()


class _Loaded:
    """What this rank takes from a checkpoint, in memory of its own."""

    def __init__(self, engine: DeepSpeedEngine, address: str, allow_pickle: bool) -> None:
        self._engine, self._base = engine, engine.optimizer.optimizer
        self._zero = (_Zero3 if isinstance(engine.optimizer, DeepSpeedZeroOptimizer_Stage3)
                      else _Zero12)(engine.optimizer)
        j = job(alone=True)
        saver = j.own()
        described = saver.describe(address, format="deepspeed")
        self._entries: dict[str, Entry] = {e["name"]: e for e in described.get("entries") or []}
        self._loading, tree = Loading(j.memory, allow_pickle), Tree()
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # to and from
        self._fragments: list[tuple[_Fragment, str, torch.Tensor]] = []  # of states, with their keys
        self._steps: list[torch.Tensor] = []  # of the groups

        states: dict[str, dict[str, Entry]] = {}  # by parameter and key
        for name, e in self._entries.items():
            steps = e.get("path") or [name]
            if steps[:2] == ["optimizer", "state"]:
                states.setdefault(steps[2], {})[steps[3]] = e
            elif steps[0] in ("client", "lr_scheduler") or steps[:2] == ["optimizer", "param_groups"] \
                    or (steps[0] == "deepspeed" and steps[1] in _COUNTERS):
                self._add_rest(name, steps, e, tree)
        self._keys = self._keys_of(states)
        self._add_model(states)
        self._loading.run(saver, address, {"format": "deepspeed"}, save_id=described.get("save_id", ""))
        self._rest: StateDict = tree.result()
        self.client: StateDict = self._rest.get("client", {})
        self._options: list[StateDict] = self._rest["optimizer"]["param_groups"]
        self._check_groups()
        if engine.lr_scheduler is not None and "lr_scheduler" not in self._rest:
            raise _missing("the state of the scheduler")

    def _add_rest(self, name: str, steps: list[Any], e: Entry, tree: Tree) -> None:
        if "codec" in e:
            self._loading.value(name, lambda v: tree.place(steps, v))
        else:
            shape = list(e.get("shape") or [])
            t = torch.empty(shape, dtype=dtype_of(e["dtype"]))
            self._loading.tensor(name, shape, [0] * len(shape), t)
            tree.place(steps, t)

    def _keys_of(self, states: dict[str, dict[str, Entry]]) -> list[str]:
        """Returns the keys of the states, which are the same for all trained parameters."""
        trained = [name for name, p in self._engine.module.named_parameters() if p.requires_grad]
        keys = [sorted(states.get(name, ())) for name in trained]
        for name, has in zip(trained, keys):
            if has != keys[0]:
                raise errors.MismatchError(f"the checkpoint has the states {has} of {name!r} and {keys[0]} of "
                                           f"{trained[0]!r}", ("plan.mismatch",))
        return keys[0] if keys else []

    def _add_model(self, states: dict[str, dict[str, Entry]]) -> None:
        """Adds the weights, the buffers and the states of the optimizer."""
        module = self._engine.module
        wanted = {name for name in module.state_dict() if not name.endswith("_extra_state")}
        has = {name.removeprefix("model.") for name in self._entries if name.startswith("model.")}
        if lacks := sorted(wanted - has):
            raise _missing(f"{len(lacks)} weights of the model: {lacks[:5]}")
        if more := sorted(has - wanted):
            raise errors.MismatchError(f"the checkpoint has {len(more)} weights that the model lacks: {more[:5]}",
                                       ("plan.mismatch",))
        names = {}
        for name, p in module.named_parameters():
            names[id(p)] = name
            shape = self._zero.shape(p)
            if not p.requires_grad:
                to, start = self._zero.frozen(p)
                self._copies.append((to, self._read(f"model.{name}", shape, start, to.numel(), to.dtype)))
            elif (f := self._zero.fragment(p)) is not None:
                self._copies.append((f.of(f.flat), self._read(f"model.{name}", shape, f.start, f.count, f.flat.dtype)))
                for key in self._keys:
                    if key != _STEP:
                        self._fragments.append((f, key, self._read(f"optimizer.state.{name}.{key}", shape, f.start,
                                                                   f.count, dtype_of(states[name][key]["dtype"]))))
        for name, b in module.named_buffers(remove_duplicate=False):
            if name in wanted:
                got = self._read(f"model.{name}", list(b.shape), 0, b.numel(), b.dtype)
                self._copies.append((b.data, got))
        self._names = [[names[id(p)] for p in group] for group in self._zero.groups]
        if _STEP in self._keys:
            self._steps = [self._read(f"optimizer.state.{group[0]}.{_STEP}", [], 0, 1,
                                      dtype_of(states[group[0]][_STEP]["dtype"])) for group in self._names]

    def _read(self, name: str, shape: list[int], start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns the memory for some elements of a tensor, which will be filled."""
        found = list(self._entries[name].get("shape") or [])
        if found != shape:
            raise errors.MismatchError(f"{name!r} has the shape {found} in the checkpoint, and {shape} here",
                                       ("plan.mismatch",))
        if not count:
            return torch.empty(0, dtype=dtype)
        row = math.prod(shape[1:])
        first, last = start // row, -(-(start + count) // row)
        offsets = [first] + [0] * len(shape[1:]) if shape else []
        t = torch.empty([last - first, *shape[1:]] if shape else [], dtype=dtype)
        self._loading.tensor(name, shape, offsets, t)
        return t.view(-1)[start - first * row:][:count]

    def _check_groups(self) -> None:
        """Raises an error if the parameter groups of the optimizer have other parameters."""
        if len(self._options) != len(self._names):
            raise errors.MismatchError(f"the optimizer has {len(self._names)} parameter groups, and "
                                       f"{len(self._options)} in the checkpoint", ("plan.mismatch",))
        for i, (options, names) in enumerate(zip(self._options, self._names)):
            saved = options.get("params") or []
            if all(isinstance(name, str) for name in saved) and set(saved) != set(names):
                other = sorted(set(saved) ^ set(names))
                raise errors.MismatchError(f"the parameter group {i} of the optimizer has other parameters in the "
                                           f"checkpoint: {other[:5]}", ("plan.mismatch",))

    def apply(self) -> None:
        """Fills the engine. All ranks call it."""
        engine, zero = self._engine, self._engine.optimizer
        self._zero.begin()
        for to, got in self._copies:
            to.copy_(got.view(to.shape))
        for i, flat in enumerate(self._zero.flats):
            state, group = self._base.state[flat], self._base.param_groups[self._zero.group_of[i]]
            for key in self._keys:
                if key == _STEP:
                    state[key] = _step(self._steps[self._zero.group_of[i]], group, flat)
                elif key not in state:
                    state[key] = torch.zeros_like(flat)
        for f, key, got in self._fragments:
            f.of(self._base.state[f.flat][key]).copy_(got)
        for group, options in zip(self._base.param_groups, self._options):
            group.update({k: v for k, v in options.items() if k != "params"})
        self._zero.end()

        if engine.lr_scheduler is not None:
            engine.lr_scheduler.load_state_dict(self._rest["lr_scheduler"])
        counters = self._rest["deepspeed"]
        for name in ("global_steps", "global_samples", "skipped_steps"):
            setattr(engine, name, counters[name])
        for name in ("overflow", "dynamic_loss_scale", "clip_grad"):
            if name in counters and hasattr(zero, name):
                setattr(zero, name, counters[name])
        vars(zero.loss_scaler).update({k: v for k, v in (counters.get("loss_scaler") or {}).items()
                                       if k in vars(zero.loss_scaler)})


_STEP = "step"  # the only state of an optimizer that is a number
_COUNTERS = ("global_steps", "global_samples", "skipped_steps", "overflow", "dynamic_loss_scale", "clip_grad",
             "loss_scaler")


def _step(saved: torch.Tensor, group: Mapping[str, Any], flat: torch.Tensor) -> Any:
    """Returns the step of an optimizer as it was saved: a number, or a tensor where the optimizer wants it."""
    if not saved.is_floating_point():
        return int(saved.item())
    return saved.reshape(()).clone().to(flat.device if group.get("capturable") or group.get("fused") else "cpu")


def _unfit(text: str) -> errors.OptionsError:
    return errors.OptionsError(text, ("storage.options",))


def _missing(what: str) -> errors.MissingError:
    return errors.MissingError(f"the checkpoint lacks {what}", ("plan.missing",))
