"""Checkpoints of verl's FSDP engine, through cairn.

    CAIRN_VERL=1 python -m verl.trainer.main_ppo actor_rollout_ref.actor.checkpoint.async_save=True …

verl finds this package by its entry point, and does nothing with it unless the environment variable is 1 in the
processes of the trainer and of the workers. Then FSDPCheckpointManager is in place of verl's class of that name. It
saves in the background, also if verl's own class cannot, and any number of ranks goes on with a checkpoint. Checkpoints
that verl itself has saved are loaded, too.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Collection
from typing import Any

import verl
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import cairn
from cairn import errors
from cairn._address import address_of
from cairn.runs import Run
from cairn.torch._handle import Handle, failure
from cairn.torch._job import Caught, agree, broadcast
from cairn.torch._load import load
from cairn.torch._perrank import RandomState
from cairn.torch._removal import Remover
from cairn.torch._save import async_save
from cairn.torch._state import StateDict
from cairn.transformers import _files, export

if verl.__version__ != "0.9.1":  # other releases keep the classes below in other places
    raise errors.OptionsError(f"cairn.verl was tested with verl 0.9.1, and this is verl {verl.__version__}",
                              ("storage.options",))

from verl.trainer.ppo import checkpoint_callback
from verl.utils.checkpoint.checkpoint_manager import get_checkpoint_tracker_filename
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager as _FSDPCheckpointManager
from verl.workers.engine.fsdp import transformer_impl as _engine

_PARTS = ("actor", "critic")  # the folders of a step of the trainer for PPO
_PATIENCE = 60  # seconds from the end of a save until its step must be noted
_HF = "huggingface"  # the folder of verl for the files that from_pretrained reads


def install() -> None:
    """Puts FSDPCheckpointManager and CheckpointCallback in place of verl's classes. The entry point calls it."""
    _engine.FSDPCheckpointManager = FSDPCheckpointManager
    checkpoint_callback.CheckpointCallback = CheckpointCallback


class FSDPCheckpointManager(_FSDPCheckpointManager):  # type: ignore[misc]
    """Saves and loads the checkpoints of verl's FSDP engine. Arguments and contents have the meaning of verl's class.

    A checkpoint holds the parts that save_contents names: "model", "optimizer", and "extra", which is the scheduler and
    the states of the random number generators of all ranks. It also holds the configuration and the tokenizer of the
    model, so that :func:`cairn.transformers.export` can write a folder for ``from_pretrained``. With "hf_model" in
    save_contents, which includes "model", the folder huggingface of the checkpoint is such a folder.

    With async_save, training goes on when the state is copied aside. The error of a save is raised by the next one.
    When the checkpoint is complete, and the trainer has saved the state of its data and the critic, the step is written
    to latest_checkpointed_iteration.txt, where verl looks for the newest checkpoint. The trainer for SFT writes
    that file itself as soon as a save returns, so a save waits there until the checkpoint is complete.

    max_ckpt_to_keep counts the checkpoints of this process. The old ones are removed before a save, when the last one
    is complete and latest_checkpointed_iteration.txt names it: the newest complete checkpoint always stays.

    A save replaces a checkpoint of the same path, as verl does.
    """

    previous_saved_paths: list[str]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._remover = Remover()
        self._pending: _Pending | None = None

    def save_checkpoint(self, local_path: str | None, hdfs_path: str | None = None, global_step: int = 0,
                        max_ckpt_to_keep: int | None = None) -> None:
        """Saves a checkpoint, without a copy at hdfs_path, as in verl. All ranks call it."""
        if local_path is None:
            return
        self._settle()
        self.previous_global_step = global_step
        path = address_of(local_path)
        place = _Place(path)
        state: StateDict = {}
        with Caught() as caught:
            if self.rank == 0:
                self._make_room(path, max_ckpt_to_keep)
                state["files"] = _files(self.model, self.processing_class)
            contents = {*self.checkpoint_save_contents} | ({"model"} if self.should_save_hf_model else set())
            adapters = self.should_save_lora_only and self._has_lora() and not self.should_save_hf_model
            state.update(self._state(contents, adapters))
            if self.should_save_extra:
                state["extra"] = {"lr_scheduler": self.lr_scheduler and self.lr_scheduler.state_dict()}
                state["random"] = RandomState()
        agree("verl", caught.error)
        buffers = any(True for _ in self.model.buffers())  # in a dict, nothing tells them from parameters
        handle = async_save(state, path, step=global_step, overwrite=True, may_differ=buffers)
        self._pending = _Pending(handle, place, self.should_save_hf_model)
        if place.part and self.checkpoint_config and self.checkpoint_config.get("async_save", False):
            if self.rank == 0:
                self._pending.follow()
        else:
            self._settle()

    def load_checkpoint(self, local_path: str | None, hdfs_path: str | None = None,
                        del_local_after_load: bool = False) -> None:
        """Loads a checkpoint, of cairn or of verl itself, saved by any number of ranks. All ranks call it.

        del_local_after_load removes nothing: verl removes only copies of files that it has downloaded.
        """
        if local_path is None:
            return
        self._settle()
        path = address_of(local_path)
        own, adapters = broadcast("verl", lambda: _look(path))
        state: StateDict = {}
        with Caught() as caught:
            state = self._state(self.checkpoint_load_contents, adapters)
            if self.should_load_extra:
                state["extra"] = _Extra()
                if own:
                    state["random"] = RandomState()
        agree("verl", caught.error)
        load(state, path)
        with Caught() as caught:
            if self.should_load_model:
                set_model_state_dict(self.model, state["model"], options=StateDictOptions(strict=not adapters))
            if self.should_load_optimizer:
                set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
            if self.should_load_extra:
                self._take(state["extra"].found, path)
        agree("verl", caught.error)

    def _state(self, contents: Collection[str], adapters: bool) -> StateDict:
        """Returns the model, or its adapters only, and the optimizer, as far as they belong to the contents."""
        wants = [k for k, v in (("model", self.model), ("optimizer", self.optimizer)) if k in contents and v is None]
        if wants:
            raise errors.OptionsError(f"the contents of the checkpoint include the {wants[0]}, but there is no "
                                      f"{wants[0]}", ("storage.options",))
        weights, moments = get_state_dict(self.model, self.optimizer if "optimizer" in contents else ())
        if adapters:
            weights = {name: v for name, v in weights.items() if _is_adapter(name)}
        return {k: v for k, v in (("model", weights), ("optimizer", moments)) if k in contents}

    def _take(self, extra: StateDict, path: str) -> None:
        """Sets the scheduler and, if verl itself has saved them, the random number generators."""
        if not extra:
            raise errors.MissingError(f"{path} was saved without \"extra\"", ("plan.missing",))
        if self.lr_scheduler is not None and extra.get("lr_scheduler"):
            self.lr_scheduler.load_state_dict(extra["lr_scheduler"])
        if "rng" in extra:
            _set_random(extra, self.rank, self.world_size)

    def _settle(self) -> None:
        """Waits for the save that is under way, and raises its error on all ranks."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        pending.handle.result()
        broadcast("verl", pending.finish)
        path = pending.handle.path
        self.previous_saved_paths = [p for p in self.previous_saved_paths if p != path] + [path]

    def _make_room(self, path: str, keep: int | None) -> None:
        """Removes old checkpoints of this process before a save to a path. At least one stays."""
        if not isinstance(keep, int) or keep < 1:
            return
        old = [p for p in self.previous_saved_paths if p != path][:-max(keep - 1, 1)]
        for p in old:
            if not _Place(p).is_latest():
                self._remover.add(p)
                self.previous_saved_paths.remove(p)
        self._remover.begin(None)
        self._remover.settle()


class CheckpointCallback(checkpoint_callback.CheckpointCallback):  # type: ignore[misc]
    """Waits for the last save of a training with async_save: Ray ends the workers when the trainer returns.

    It is in place of verl's class of that name, which does nothing. A class that trainer.checkpoint_callback_class
    names should be derived from this one.
    """

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False,
                **kwargs: Any) -> None:
        """Returns when verl would go on with the last step. IncompleteError: its save has failed."""
        if not async_save or global_step < trainer.total_training_steps:
            return
        folder = address_of(checkpoint_dir)
        place, busy = _Place(os.path.join(folder, "actor")), time.monotonic()
        while not place.is_latest():
            found = [c for c in Run(folder).checkpoints() if c.name in _PARTS]
            if any(c.local is not None and c.local.state == "under way" for c in found):
                busy = time.monotonic()
            if time.monotonic() > busy + _PATIENCE:
                states = [f"{c.name} is {c.local.state}" for c in found if c.local is not None]
                raise errors.IncompleteError(f"the save of the last step to {folder} has failed: "
                                             f"{', '.join(states) or 'nothing is there'}", ("storage.incomplete",))
            time.sleep(0.5)


class _Extra:
    """Takes all that a checkpoint has below a name."""

    def __init__(self) -> None:
        self.found: StateDict = {}

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        self.found = state


def _is_adapter(name: str) -> bool:
    return "lora_" in name or ".adapter_" in name


def _look(path: str) -> tuple[bool, bool]:
    """Reports whether this module saved a checkpoint with "extra", and whether it has only the adapters of a model."""
    with cairn.open(path) as c:
        weights = [name for name in c if name.startswith("model.")]
        return "random.ranks" in c, bool(weights) and all(map(_is_adapter, weights))


def _set_random(extra: StateDict, rank: int, ranks: int) -> None:
    """Sets the generators of this rank to the states that the ranks of verl have saved.

    The state of rank 0 is extra["rng"]["cpu"], for example. If the state of rank 1 differs, it is
    extra["rng.cpu#rank1"].
    """
    others = [int(m[1]) for name in extra if (m := re.fullmatch(r"rng\..*#rank(\d+)", name))]
    saved = max(others, default=ranks - 1) + 1  # without other states, all ranks had the same one

    def states(of: int) -> tuple[StateDict]:
        held = {name: extra.get(f"rng.{name}#rank{of}", v) for name, v in extra["rng"].items()}
        return ({**held, "python": held["random"]},)

    RandomState().load_state_dict({"ranks": saved, **{str(r): states(r) for r in (0, rank) if r < saved}})


class _Place:
    """The folder of a checkpoint in the folders of verl's trainers.

    The trainer for PPO saves to global_step_N/actor and global_step_N/critic, the one for SFT to global_step_N. root is
    the folder above, which is empty for other paths, and part is "actor", for example, or empty.
    """

    def __init__(self, path: str) -> None:
        m = re.fullmatch(r"(.*)/global_step_(\d+)(?:/([^/]+))?", path)
        self.root, self.step, self.part = (m[1], int(m[2]), m[3] or "") if m else ("", 0, "")
        self._data = self._stamp()

    def is_latest(self) -> bool:
        """Reports whether a run would go on with this checkpoint."""
        try:
            with open(get_checkpoint_tracker_filename(self.root), encoding="utf-8") as f:
                return bool(self.root) and int(f.read()) == self.step
        except (OSError, ValueError):
            return False

    def note(self) -> bool:
        """Makes this step the one with which a run goes on, if all of it is there. Otherwise, it returns False.

        The trainer saves the state of its data when the saves of the actor and of the critic have begun.
        """
        folder = os.path.join(self.root, f"global_step_{self.step}")
        if self._stamp() in (None, self._data) or not zipfile.is_zipfile(os.path.join(folder, "data.pt")):
            return False
        if not all(c.complete for c in Run(folder).checkpoints() if c.name in _PARTS):
            return False
        tracker = get_checkpoint_tracker_filename(self.root)
        with open(f"{tracker}.{self.part}", "w", encoding="utf-8") as f:
            f.write(str(self.step))
            f.flush()
            os.fsync(f.fileno())
        os.replace(f.name, tracker)
        return True

    def _stamp(self) -> tuple[int, int] | None:
        """Tells apart the files of the data of two saves of a step."""
        try:
            found = os.stat(os.path.join(self.root, f"global_step_{self.step}", "data.pt"))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


class _Pending:
    """A save, and what follows it on rank 0."""

    def __init__(self, handle: Handle, place: _Place, hf_model: bool) -> None:
        self.handle, self._place, self._hf_model = handle, place, hf_model
        self._thread: threading.Thread | None = None
        self._last = threading.Event()  # the trainer has gone on
        self._caught = Caught()

    def follow(self) -> None:
        """Waits in the background until the checkpoint is complete, and makes it the latest one."""
        self._thread = threading.Thread(target=self._follow, name="cairn-verl", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits for what follows the save, and raises its error. Rank 0 calls it, after the save."""
        if self._thread is None:
            self._export()
            return
        self._last.set()
        self._thread.join()
        if self._caught.error is not None:
            raise self._caught.error

    def _follow(self) -> None:
        if failure(self.handle) is not None:
            return
        with self._caught:
            over, pause = self._place.note(), 0.2
            while not over:
                # If the critic is not complete when the trainer goes on, the manager of the critic notes the step.
                gone_on = self._last.wait(pause)
                over, pause = self._place.note() or gone_on, min(pause * 1.5, 5)
            self._export()

    def _export(self) -> None:
        if not self._hf_model:
            return
        folder = os.path.join(self.handle.path, _HF)
        above, name = os.path.split(self.handle.path)
        made = os.path.join(above, f".{name}-{_HF}")  # a checkpoint cannot be converted into its own folder
        for old in (made, folder):
            shutil.rmtree(old, ignore_errors=True)
        export(self.handle.path, made)
        os.rename(made, folder)
