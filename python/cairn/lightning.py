"""Checkpoints of Lightning, through cairn.

    from cairn.lightning import CheckpointIO
    trainer = Trainer(plugins=[CheckpointIO()])
    trainer.fit(model, ckpt_path=cairn.latest("checkpoints", wait=True))

With a run, its policy decides which checkpoints are kept, and they are uploaded if it has a remote place::

    run = cairn.Run("checkpoints", keep="last 3, best 2 by val_loss", remote="s3://bucket/run")
    trainer = Trainer(plugins=[CheckpointIO(run=run)], callbacks=[ModelCheckpoint(run.path, monitor="val_loss")])

It needs the package ``lightning`` or ``pytorch-lightning``. If both are installed, import the one that you
use before this module.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import warnings
from typing import Any

import torch

from cairn import errors
from cairn._address import address_of, split_address
from cairn.runs import Member, Run
from cairn.torch._handle import Handle
from cairn.torch._removal import Remover
from cairn.torch._state import StateDict
from cairn.torch._whole import PATIENCE, async_save_whole, load_whole

if "lightning_fabric" in sys.modules and "lightning.fabric" not in sys.modules:
    from lightning_fabric.plugins import CheckpointIO as _CheckpointIO
else:
    try:
        from lightning.fabric.plugins import CheckpointIO as _CheckpointIO
    except ImportError:
        from lightning_fabric.plugins import CheckpointIO as _CheckpointIO


class CheckpointIO(_CheckpointIO):
    """Saves and loads the checkpoints of a Lightning Trainer. Each checkpoint is a folder.

    A save takes place in the background: training goes on when the state is copied aside. The
    error of a save is raised by the next one, or at the end of the training. With
    background=False, a save returns when the checkpoint is complete.

    Objects that were pickled are made again if torch can load them with ``weights_only``, and
    all of them with allow_pickle, or if the caller of Lightning says weights_only=False: a
    pickle can run any code.

    Lightning collects the state on rank 0, which saves it; each rank loads it. Strategies that
    save shards, such as FSDPStrategy and ModelParallelStrategy, use no CheckpointIO for that.

    run is a :class:`cairn.Run` in whose folder ModelCheckpoint saves. If it has a policy, the
    policy decides which checkpoints of the run are removed, and not save_top_k. Values that
    ModelCheckpoint monitors become metrics.

    A save replaces a checkpoint of this training, of the training from which it goes on, or with overwrite any one;
    otherwise it fails with ExistsError.
    """

    def __init__(self, background: bool = True, allow_pickle: bool = False, run: Run | None = None, *,
                 overwrite: bool = False):
        self.background, self.allow_pickle, self.run = background, allow_pickle, run
        self.overwrite = overwrite
        self._handle: Handle | None = None
        self._before: set[str] = set()  # checkpoints of the training from which this one goes on
        self._remover = Remover()
        self._outside = False  # a checkpoint was saved outside of the run
        self._saves: dict[str, Handle] = {}  # to the run, by the paths that Lightning has named

    def save_checkpoint(self, checkpoint: StateDict, path: str | os.PathLike[str],
                        storage_options: Any | None = None) -> None:
        """Saves what Lightning has collected. Only rank 0 calls it."""
        if storage_options is not None:
            raise errors.OptionsError("storage_options: cairn.lightning.CheckpointIO has no such options",
                                      ("storage.options",))
        self._settle()
        step = checkpoint.get("global_step")
        target = self._target(path, True)
        self._handle = async_save_whole(checkpoint, target, step if isinstance(step, int) else None, alone=True,
                                        metrics=_metrics(checkpoint),
                                        overwrite=self.overwrite or address_of(path) in self._before or None)
        self._remover.note_save(self._handle)
        if isinstance(target, Member):
            self._saves[target.path] = self._handle
        if not self.background:
            self._settle()

    def _target(self, path: str | os.PathLike[str], saves: bool = False) -> str | Member:
        """Returns the place of a checkpoint, which is in the run if the path is.

        It waits for a save to the path, which may go to another folder of the run.
        """
        address = address_of(path)
        if not saves and (handle := self._saves.get(address)) is not None:
            concurrent.futures.wait([handle])
            address = handle.path
        if self.run is None:
            return address
        if (found := self.run.find(address)) is not None:
            return found
        if saves and not self._outside and not split_address(address)[1].startswith("."):
            self._outside = True
            warnings.warn(f"{split_address(address)[1]} is not directly below {self.run.path}, so it is not a "
                          "checkpoint of the run: pass the path of the run to ModelCheckpoint",
                          stacklevel=errors.outside())
        return address

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None,
                        weights_only: bool | None = None) -> StateDict:
        """Returns a checkpoint that save_checkpoint saved. It waits if the checkpoint is still being written."""
        self._settle()
        if not isinstance(map_location, (str, int, torch.device, type(None))):
            raise errors.OptionsError("map_location: cairn.lightning.CheckpointIO wants a device", ("storage.options",))
        allow_pickle = self.allow_pickle or weights_only is False
        target = self._target(path)
        found = load_whole(target if isinstance(target, str) else target.path, device=map_location,
                           allow_pickle=allow_pickle, patience=PATIENCE)
        self._before.update(_named(found))
        return found

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint in the background, when the pending save is complete. If that fails, it stays.

        In a run with a policy, the policy decides: it stays.
        """
        target = self._target(path)
        if isinstance(target, Member) and (target.run.keep or target.run.keep_remote):
            return
        self._remover.add(target)
        self._remover.begin(self._handle)
        if not self.background:
            self._settle()

    def teardown(self) -> None:
        """Waits for the save that is under way. Lightning calls it at the end of the training."""
        self._settle(last=True)

    def _settle(self, last: bool = False) -> None:
        """Waits for the save and the removals that are under way, and raises the error of the save."""
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                handle.result()
        finally:
            self._remover.settle(last)


def _named(checkpoint: StateDict) -> set[str]:
    """Returns the checkpoints that ModelCheckpoint had saved, which it replaces when the training goes on."""
    out: set[str] = set()
    for state in (checkpoint.get("callbacks") or {}).values():
        if isinstance(state, dict):
            kept = state.get("best_k_models")
            named = [state.get("last_model_path"), state.get("best_model_path"),
                     *(kept if isinstance(kept, dict) else ())]
            out.update(address_of(path) for path in named if path and isinstance(path, str))
    return out


def _metrics(checkpoint: StateDict) -> dict[str, float]:
    """Returns the values that ModelCheckpoint monitors, by name."""
    out: dict[str, float] = {}
    for state in (checkpoint.get("callbacks") or {}).values():
        if not isinstance(state, dict) or not isinstance(name := state.get("monitor"), str):
            continue
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            # Tags and metrics are single words.
            out["_".join(name.replace(",", " ").split())] = float(state["current_score"])
    return out
