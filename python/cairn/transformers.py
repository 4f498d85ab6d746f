"""Checkpoints of the Trainer of Hugging Face, through cairn.

    from cairn.transformers import CheckpointCallback
    checkpoints = CheckpointCallback()
    trainer = Trainer(model, args, train_dataset=data, callbacks=[checkpoints])
    trainer.train(resume_from_checkpoint=checkpoints.resume(trainer))

It needs the package ``transformers``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import tempfile
from typing import Any, Optional

import numpy
import torch
import transformers

import cairn
import cairn.torch
from cairn import errors
from cairn.saver import address_of
from cairn.torch._job import agree, distributed
from cairn.torch._whole import async_save_whole, load_whole


class CheckpointCallback(transformers.TrainerCallback):
    """Saves in the background when the Trainer would save, in place of the Trainer.

    The checkpoints are folders ``checkpoint-STEP`` of a folder, which is the Trainer's
    output_dir if it is not named. They hold the model, the optimizer, the scheduler, the
    state of the Trainer and the random number generators of all ranks. The arguments of the
    Trainer say when to save (save_strategy, save_steps) and how many checkpoints to keep
    (save_total_limit). The error of a save is raised by the next one, or at the end of the
    training.
    """

    def __init__(self, folder: "str | os.PathLike[str] | None" = None):
        self.folder = None if folder is None else os.fspath(folder)
        self._due = False  # the Trainer wants to save
        self._handle: Optional[cairn.torch.Handle] = None
        self._saving = 0  # its step
        self._resumed: Optional[str] = None  # the checkpoint that the next training begins with
        self._random: Optional[dict[str, Any]] = None  # what it has of the random number generators of this rank

    def resume(self, trainer: transformers.Trainer) -> Optional[str]:
        """Prepares to go on with the newest complete checkpoint. All ranks call it.

        Give what it returns to ``trainer.train(resume_from_checkpoint=…)``, and nothing else:
        it is None if there is no checkpoint yet, or else a folder for this call alone. It
        waits for saver processes that have outlived their trainers.
        """
        path = error = None
        if _rank() == 0:
            try:
                path = cairn.latest(self._run(trainer.args), wait=True)
            except BaseException as e:  # the other ranks must know
                error = e
        agree("latest", error)
        if distributed():
            chosen = [path]
            torch.distributed.broadcast_object_list(chosen)
            path = chosen[0]
        self._resumed = path
        if path is None:
            return None
        with cairn.open(path) as c:
            state = c["trainer"]
        # The Trainer reads its state from a file. The rest is loaded by on_train_begin, when there is an optimizer.
        self._folder = tempfile.TemporaryDirectory(prefix="cairn-resume-")
        with open(os.path.join(self._folder.name, "trainer_state.json"), "w", encoding="utf-8") as f:
            f.write(state)
        self._trainer = trainer
        trainer._load_from_checkpoint = lambda *_, **__: None
        trainer._load_rng_state = lambda *_, **__: self._set_random()  # the Trainer calls it after it has skipped the data
        return self._folder.name

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _check(args, self._run(args), kwargs["model"], kwargs["optimizer"])
        if self._resumed is None:
            return
        path, self._resumed = self._resumed, None
        self._folder.cleanup()
        del self._trainer._load_from_checkpoint
        if not state.global_step:
            raise errors.OptionsError("what CheckpointCallback.resume returns is for trainer.train(resume_from_checkpoint=…)",
                                      ("storage.options",))
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        cairn.torch.load({"model": model, "optimizer": _bare(optimizer)}, path)
        rest = load_whole(path, keys=("scheduler", "scaler", "random"))
        kwargs["lr_scheduler"].load_state_dict(rest["scheduler"])
        if rest["scaler"] is not None and (scaler := getattr(optimizer, "scaler", None)) is not None:
            scaler.load_state_dict(rest["scaler"])
        self._random = rest["random"].get(str(_rank()))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer has the data of this step already, as it has when _set_random is called.
        self._save(args, state, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        return self._claim(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._claim(control)
        self._save(args, state, kwargs)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save(args, state, kwargs)
        self._settle(args)

    def _set_random(self) -> None:
        del self._trainer._load_rng_state
        found, self._random = self._random, None
        if found is None:  # fewer ranks saved
            return
        random.setstate(found["python"])
        numpy.random.set_state(found["numpy"])
        torch.set_rng_state(found["cpu"])
        if "cuda" in found and len(found["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(found["cuda"])

    def _claim(self, control: Any) -> Any:
        """Takes over a save of the Trainer. It takes place later, when the Trainer has noted the results of the step."""
        self._due = self._due or control.should_save
        control.should_save = False
        return control

    def _save(self, args: Any, state: Any, kwargs: dict[str, Any]) -> None:
        if not self._due:
            return
        self._due = False
        self._settle(args)
        optimizer, rank = kwargs["optimizer"], _rank()
        whole: dict[str, Any] = {
            "model": kwargs["model"], "optimizer": _bare(optimizer), "random": {str(rank): _random()},
        }
        if rank == 0:
            scaler = getattr(optimizer, "scaler", None)
            whole["scheduler"] = kwargs["lr_scheduler"].state_dict()
            whole["scaler"] = None if scaler is None else scaler.state_dict()
            whole["trainer"] = json.dumps(dataclasses.asdict(state))
        path = os.path.join(self._run(args), f"checkpoint-{state.global_step}")
        self._saving = state.global_step
        self._handle = async_save_whole(whole, path, state.global_step, alone=False)

    def _settle(self, args: Any) -> None:
        """Waits for the save that is under way, raises its error, and removes old checkpoints."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        handle.result()
        if _rank() != 0 or not args.save_total_limit or args.save_total_limit < 0:
            return
        run = self._run(args)
        steps = [int(m[1]) for name in os.listdir(run) if (m := re.fullmatch(r"checkpoint-(\d+)", name))]
        # Folders of later steps belong to a run before this one, which may not have completed them.
        for step in sorted(s for s in steps if s <= self._saving)[:-args.save_total_limit]:
            shutil.rmtree(os.path.join(run, f"checkpoint-{step}"), ignore_errors=True)

    def _run(self, args: Any) -> str:
        return address_of(self.folder or args.output_dir)


def _check(args: Any, run: str, model: Any, optimizer: Any) -> None:
    """Refuses what this callback cannot do."""
    if args.save_total_limit and "://" in run:
        raise errors.OptionsError("cairn.transformers.CheckpointCallback removes folders only: "
                                  "save_total_limit must be None if checkpoints go to object storage", ("storage.options",))
    if args.load_best_model_at_end or getattr(args.save_strategy, "value", args.save_strategy) == "best":
        raise errors.OptionsError("cairn.transformers.CheckpointCallback: the Trainer saves the best model itself; "
                                  "use neither save_strategy='best' nor load_best_model_at_end", ("storage.options",))
    if any(hasattr(p, "device_mesh") for p in model.parameters()) or "deepspeed" in type(optimizer).__name__.lower() \
            or any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
        raise errors.OptionsError("cairn.transformers.CheckpointCallback: a sharded model (FSDP, DeepSpeed, tensor parallelism) "
                                  "is saved with cairn.torch.save", ("storage.options",))


def _rank() -> int:
    return torch.distributed.get_rank() if distributed() else 0


def _bare(optimizer: Any) -> Any:
    """Returns the optimizer of PyTorch that accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def _random() -> dict[str, Any]:
    """Returns the states of the random number generators of this process."""
    numbers: Any = numpy.random.get_state()
    name, keys, *rest = numbers
    out: dict[str, Any] = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        out["cuda"] = torch.cuda.get_rng_state_all()
    return out
