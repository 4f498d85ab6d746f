"""Checkpoints of Lightning, through cairn.

    from cairn.lightning import CheckpointIO
    trainer = Trainer(plugins=[CheckpointIO()])
    trainer.fit(model, ckpt_path=cairn.latest("checkpoints", wait=True))

It needs the package ``lightning`` or ``pytorch-lightning``. If both are installed, import the one that you
use before this module.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from typing import Any

import torch

from cairn import errors
from cairn._saver import address_of
from cairn.torch._handle import Handle
from cairn.torch._whole import async_save_whole, load_whole

if "lightning_fabric" in sys.modules and "lightning.fabric" not in sys.modules:
    from lightning_fabric.plugins import CheckpointIO as _CheckpointIO
else:
    try:
        from lightning.fabric.plugins import CheckpointIO as _CheckpointIO
    except ImportError:
        from lightning_fabric.plugins import CheckpointIO as _CheckpointIO

_PATIENCE = 40 * 60  # seconds; a saver process that has lost its trainer gives up after 30 minutes


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
    """

    def __init__(self, background: bool = True, allow_pickle: bool = False):
        self.background, self.allow_pickle = background, allow_pickle
        self._handle: Handle | None = None
        self._unwanted: list[str] = []  # checkpoints to remove when the save that is under way is complete

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str],
                        storage_options: Any | None = None) -> None:
        """Saves what Lightning has collected. Only rank 0 calls it."""
        if storage_options is not None:
            raise errors.OptionsError("storage_options: cairn.lightning.CheckpointIO has no such options",
                                      ("storage.options",))
        self._settle()
        step = checkpoint.get("global_step")
        self._handle = async_save_whole(checkpoint, path, step if isinstance(step, int) else None, alone=True)
        if not self.background:
            self._settle()

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None,
                        weights_only: bool | None = None) -> dict[str, Any]:
        """Returns a checkpoint that save_checkpoint saved. It waits if the checkpoint is still being written."""
        self._settle()
        if not isinstance(map_location, (str, int, torch.device, type(None))):
            raise errors.OptionsError("map_location: cairn.lightning.CheckpointIO wants a device", ("storage.options",))
        allow_pickle = self.allow_pickle or weights_only is False
        return load_whole(path, device=map_location, allow_pickle=allow_pickle, patience=_PATIENCE)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint, after the pending save, in case that it fails. Object storage is left alone."""
        path = address_of(path)
        if "://" in path:
            name = path.partition("?")[0].rstrip("/").rpartition("/")[2]
            warnings.warn(f"cairn.lightning.CheckpointIO removes folders only: {name} stays in object storage")
            return
        self._unwanted.append(path)
        if self._handle is None or self._handle.done():
            self._settle()

    def teardown(self) -> None:
        """Waits for the save that is under way. Lightning calls it at the end of the training."""
        self._settle()

    def _settle(self) -> None:
        """Waits for the save that is under way, and raises its error."""
        handle, self._handle = self._handle, None
        unwanted, self._unwanted = self._unwanted, []
        if handle is not None:
            handle.result()
        for path in unwanted:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):  # a link, or a file that Lightning's own CheckpointIO has saved
                os.unlink(path)
