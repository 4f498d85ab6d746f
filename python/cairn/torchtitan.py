"""Checkpoints of torchtitan, through cairn.

    from cairn.torchtitan import CheckpointManager

    def llama3_8b_cairn():                           # in a registry of configurations
        config = llama3_8b()
        config.checkpoint = CheckpointManager.Config(enable=True, interval=500)
        return config

The folder of the checkpoints is a run of cairn, whose policy decides which of them are kept::

    CheckpointManager.Config(enable=True, keep="last 3, every 5000 steps", remote="s3://bucket/run")

It needs torchtitan 0.3.0.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import importlib.metadata
import inspect
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

import cairn
from cairn import errors
from cairn._address import split_address
from cairn.runs import Run
from cairn.torch._handle import Handle
from cairn.torch._job import Caught, agree, broadcast
from cairn.torch._load import load
from cairn.torch._save import async_save
from cairn.torch._state import StateDict, is_stateful

TESTED = ("0.3.0",)
"""The releases of torchtitan that this module was tested with."""

_log = logging.getLogger("cairn")


def _refusal(wrong: Iterable[str]) -> errors.OptionsError:
    """Returns the error for a torchtitan whose classes are not those that are overridden here."""
    try:
        version = importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        version = "of an unknown version"
    return errors.OptionsError(f"cairn.torchtitan was tested with torchtitan {', '.join(TESTED)}, and the checkpoint "
                               f"managers of this torchtitan {version} are different ({', '.join(sorted(wrong))}): "
                               "install one of these, or save with torchtitan's own manager", ("storage.options",))


try:
    from torchtitan.components.checkpointer import base as _base, dcp as _dcp
except ImportError as e:
    if not (e.name or "").startswith("torchtitan."):  # torchtitan, or what it needs, is not installed
        raise
    raise _refusal([str(e)]) from e

# The methods that are overridden or called here, and their arguments. They change often, and a torchtitan that is
# installed from its sources may have the version of a release, and other methods.
_METHODS = {
    "__init__": "config dataloader model_parts optimizers lr_schedulers states sd_adapter base_folder",
    "save": "curr_step last_step", "load": "step", "maybe_wait_for_staging": "", "maybe_wait_for_saving": "",
    "close": "", "_save": "curr_step last_step", "_load": "step", "_wait_for_saving": "", "_maybe_wait_for_staging": "",
    "_close": "", "dcp_save": "state_dict checkpoint_id async_mode enable_garbage_collection to_hf",
    "dcp_load": "state_dict checkpoint_id from_hf from_quantized", "_should_save": "curr_step last_step",
    "_save_last_step": "curr_step", "_create_checkpoint_id": "step folder", "_states_to_load": "model_only",
    "_flattened_model_states_sd": "state_dict",
}
_ABSTRACT = {"_save", "_load", "_wait_for_saving", "_maybe_wait_for_staging", "_close"}


def _differences() -> Iterator[str]:
    """Yields what is different in this torchtitan."""
    for name in _base.BaseCheckpointManager.__abstractmethods__ ^ _ABSTRACT:
        yield f"BaseCheckpointManager.{name}"
    for name, arguments in _METHODS.items():
        method = getattr(_dcp.CheckpointManager, name, None)
        if method is None or list(inspect.signature(method).parameters)[1:] != arguments.split():
            yield f"CheckpointManager.{name}"


if _wrong := list(_differences()):
    raise _refusal(_wrong)
MODEL, DATALOADER = _base.MODEL, _base.DATALOADER


class CheckpointManager(_dcp.CheckpointManager):
    """Saves and loads the checkpoints of a Trainer of torchtitan, which its Config chooses.

    The folder of the checkpoints is a :class:`cairn.Run`. The names in a checkpoint are those of torchtitan's own
    checkpoints, which are loaded, too: the training goes on with the newest checkpoint of the run, whether cairn or
    torchtitan has saved it. Only the policy of the run removes checkpoints.

    The error of a save in the background is raised on all ranks: by the next save, or by close, which also waits for
    the upload of the last checkpoint.

    With another number of data parallel ranks, the state of the data loader does not fit, and is not loaded: rank 0
    logs a warning.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_dcp.CheckpointManager.Config):
        """torchtitan's own options, and those of a run. keep_latest_k becomes a policy, unless keep is set."""

        async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "async"
        """When a save returns: when the checkpoint is complete, when the state is copied aside, or at once. In the
        last case, the next step of the optimizer waits for the copy."""

        keep: str = ""
        """The policy of the run, such as "last 3, every 5000 steps", in place of keep_latest_k."""

        remote: str = ""
        """The address of the same run in another store, to which checkpoints are uploaded."""

        keep_remote: str = ""
        """The policy of remote."""

        def __post_init__(self) -> None:
            _dcp.CheckpointManager.Config.__post_init__(self)
            default = next(f.default for f in dataclasses.fields(self) if f.name == "keep_latest_k")
            if self.keep and self.keep_latest_k not in (0, default):
                raise ValueError(f"keep is {self.keep!r} and keep_latest_k is {self.keep_latest_k}: set one of them.")

    save_future: Handle | None = None
    _saved: Handle | None = None  # the last save that is complete, whose upload may be under way

    def __init__(self, config: Config, **parts: Any) -> None:
        own = copy.copy(config)
        own.keep_latest_k, own.async_mode = 0, "disabled"  # no thread that removes checkpoints, no process group
        super().__init__(own, **parts)
        if not self.enable:
            return
        self.async_mode = _dcp.AsyncMode(config.async_mode)
        keep = config.keep or (f"last {config.keep_latest_k}" if config.keep_latest_k else None)
        self.run = Run(self.folder, keep=keep, remote=config.remote or None, keep_remote=config.keep_remote or None)

    def __del__(self) -> None:
        """Does nothing: a save goes on without the manager, and Python may be ending, when no wait would return."""

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        self.maybe_wait_for_saving()
        if last_step:
            self._save_last_step(curr_step)
        else:
            self.dcp_save(self._flattened_model_states_sd(), self._create_checkpoint_id(curr_step), self.async_mode)
        return True

    @torch.no_grad()
    def dcp_save(self, state_dict: StateDict, checkpoint_id: str, async_mode: Any,
                 enable_garbage_collection: bool = False, to_hf: bool = False) -> Handle | None:
        """Saves a state. It returns the handle of the save, or None if it is complete.

        torchtitan itself writes models in the form of Hugging Face, with its adapter.
        """
        if to_hf:
            super().dcp_save(state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf)
            return None
        step = int(split_address(checkpoint_id)[1].removeprefix("step-"))
        _log.info("saving step %s to %s", step, self.run.path)
        # The buffers are in a dict, in which nothing tells them from parameters.
        buffers = any(True for part in self.states[MODEL].model for _ in part.buffers())
        overlap = async_mode == _dcp.AsyncMode.ASYNC_WITH_PINNED_MEM
        self.save_future = async_save(state_dict, self.run, step=step, may_differ=buffers, overlap=overlap)
        if async_mode == _dcp.AsyncMode.DISABLED:
            self._wait_for_saving()
        return self.save_future

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        def find() -> str | None:
            latest = self.run.latest(wait=True)  # a job that was killed may have left saver processes
            return latest if step == -1 else self.run.step(step).path

        path = broadcast("latest", find, f"load step {step}")
        seed = path is not None and re.fullmatch(r"step-0+(~\d+)?", split_address(path)[1]) is not None
        model_only, from_hf, from_quantized = seed, False, False
        if path is None and (self.initial_load_path or self.initial_load_in_hf):
            path = self.initial_load_path or getattr(self.sd_adapter, "hf_assets_path", None)
            model_only, from_hf = self.initial_load_model_only, self.initial_load_in_hf
            from_quantized = self.initial_load_in_hf_quantized
            if path is None or (from_hf and self.sd_adapter is None):
                raise errors.OptionsError("initial_load_in_hf needs a model with an adapter for the form of Hugging "
                                          "Face, and initial_load_path or hf_assets_path", ("storage.options",))
        if path is None:
            _log.info("%s has no checkpoint: the training begins", self.run.path)
            return False
        _log.info("loading %s", path)
        self.dcp_load(self._states_to_load(model_only), path, from_hf, from_quantized)
        return True

    @torch.no_grad()
    def dcp_load(self, state_dict: StateDict, checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """Loads a checkpoint: with torchtitan's own reader in the form of Hugging Face, otherwise of any format."""
        if from_hf:
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        with Caught() as caught:
            owners = {k: v for k, v in state_dict.items() if is_stateful(v)}
            state = {**state_dict, **{k: v.state_dict() for k, v in owners.items()}}
        agree("torchtitan", caught.error)
        if not _fits(state.get(DATALOADER), checkpoint_id):
            del owners[DATALOADER], state[DATALOADER]
        try:
            load(state, checkpoint_id)
        except errors.MissingError as e:
            raise errors.MissingError(f"{checkpoint_id}: {e}. The last checkpoint of a training may have the model "
                                      "only (last_save_model_only, last_save_in_hf): load_step chooses an earlier one, "
                                      "and exclude_from_loading leaves other states out", e.codes) from e
        with Caught() as caught:
            for k, v in owners.items():
                v.load_state_dict(state[k])
        agree("torchtitan", caught.error)
        self.states[MODEL].load_state_dict(state)  # may be a collective

    def _maybe_wait_for_staging(self) -> None:
        if self.save_future is not None:  # which has the error, on all ranks
            concurrent.futures.wait([self.save_future.staged])

    def _wait_for_saving(self) -> None:
        handle, self.save_future, self._saved = self.save_future, None, None
        assert handle is not None
        handle.result()
        self._saved = handle

    def _close(self) -> None:
        self.maybe_wait_for_saving()
        saved, self._saved = self._saved, None
        if saved is not None:
            saved.uploaded.result()


def _fits(loader: StateDict | None, path: str) -> bool:
    """Reports whether the state of a data loader in a checkpoint is for as many data parallel ranks as there are."""
    if not isinstance(loader, dict) or "world_size" not in loader:
        return True

    def fits() -> bool:
        with cairn.open(path) as c:
            saved = c.get(f"{DATALOADER}.world_size", loader["world_size"])
        if saved == loader["world_size"]:
            return True
        _log.warning("%s has the states of the data loaders of %s data parallel ranks, and there are %s: they are not "
                     "loaded, and the data begins from the start", path, saved, loader["world_size"])
        return False

    return broadcast("torchtitan", fits)
