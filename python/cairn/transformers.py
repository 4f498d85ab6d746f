"""Checkpoints of the Trainer of Hugging Face, through cairn.

    from cairn.transformers import Trainer            # in place of: from transformers import Trainer
    trainer = Trainer(model, args, train_dataset=data)
    trainer.train(resume_from_checkpoint=trainer.checkpoints.resume(trainer))

or, with a Trainer of another class::

    from cairn.transformers import CheckpointCallback
    checkpoints = CheckpointCallback()
    trainer = Trainer(model, args, train_dataset=data, callbacks=[checkpoints])
    trainer.train(resume_from_checkpoint=checkpoints.resume(trainer))

With a run, its policy decides which checkpoints are kept, and they are uploaded if it has a remote place::

    run = cairn.Run("run", keep="last 3, best 2 by eval_loss", remote="s3://bucket/run")
    checkpoints = CheckpointCallback(run)

``export`` writes the model of a checkpoint for ``from_pretrained``, and ``from_checkpoint`` builds the model without a
folder in between. It needs the package ``transformers``.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import datetime
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
import transformers

import cairn
import cairn.torch
from cairn import errors, names as _names
from cairn._address import address_of, join_address, split_address
from cairn._messages import FormatOptions
from cairn._saver import binary
from cairn.runs import Member, Run
from cairn.torch._handle import failure
from cairn.torch._job import broadcast, distributed
from cairn.torch._load import newest
from cairn.torch._models import has_buffers, load_into, load_model, state_of
from cairn.torch._perrank import RandomState, random_states
from cairn.torch._removal import Remover, Target, older
from cairn.torch._state import StateDict
from cairn.torch._whole import async_save_whole, load_whole

_STATE_FILE = "trainer_state.json"  # that the Trainer reads
_CONFIG_FILE = "config.json"  # of a model


class CheckpointCallback(transformers.TrainerCallback):
    """Saves in the background when the Trainer would save, in place of the Trainer.

    The checkpoints are folders ``checkpoint-STEP`` of a folder, which is the Trainer's output_dir if it is
    not named. They hold the model, the optimizer, the scheduler, the state of the Trainer and the random
    number generators of all ranks. The arguments of the Trainer say when to save (save_strategy, save_steps)
    and how many checkpoints to keep (save_total_limit). The error of a save is raised by the next one, or at
    the end of the training.

    folder may be a URL, or a :class:`cairn.Run`, whose policy decides which checkpoints are kept, in place of
    save_total_limit. What the Trainer has logged in the step of a save are the metrics of the checkpoint.

    A save replaces a checkpoint that this training has saved or loaded. If an earlier training has left another one of
    the same step, the save fails with ExistsError, unless overwrite is set.

    A Trainer with this callback also resumes with ``train(resume_from_checkpoint=True)``, and
    from the path of a checkpoint, of cairn or of the Trainer itself. With auto_resume, ``train()`` goes on with the
    newest complete checkpoint, if there is one: for programs that call it themselves.
    """

    def __init__(self, folder: str | os.PathLike[str] | Run | None = None, *, overwrite: bool = False,
                 auto_resume: bool = False):
        self.run = folder if isinstance(folder, Run) else None
        self.folder = folder.path if isinstance(folder, Run) else None if folder is None else os.fspath(folder)
        self.overwrite, self.auto_resume = overwrite, auto_resume
        self._remover = Remover()
        self._owner: Trainer | None = None  # the Trainer of this module, which says itself when to save
        self._due = False  # the Trainer wants to save
        self._handle: cairn.torch.Handle | None = None
        self._resumed: str | None = None  # the checkpoint that the next training begins with
        self._paths: dict[int | None, str] = {}  # of the checkpoints of this training, by step
        self._best: str | None = None  # the checkpoint of the best model up to now
        self._answer: str | None = None  # what resume has returned
        self._random: dict[str, StateDict] = {}  # its states of the random number generators, by rank
        self._files: dict[str, bytes] | None = None  # what from_pretrained needs beside the weights
        if not hasattr(transformers.Trainer.train, "_cairn"):
            transformers.Trainer.train = _resuming(transformers.Trainer.train)

    def resume(self, trainer: transformers.Trainer) -> str | None:
        """Prepares to go on with the newest complete checkpoint. All ranks call it.

        Give its result to ``trainer.train(resume_from_checkpoint=…)``, and nothing else: it is None if there
        is no checkpoint yet, a folder for this call alone, or a checkpoint that the Trainer itself has saved,
        if that is newer. It waits for saver processes that have outlived their trainers, and prints which
        checkpoint it is.
        """
        found = broadcast("latest", lambda: _newest(self.run or Run(self._run(trainer.args))))
        self._answer = None if found is None else self._prepare(trainer, found)
        return self._answer

    def _prepare(self, trainer: transformers.Trainer, path: str) -> str:
        """Prepares to go on with a checkpoint. It returns the argument for the Trainer."""
        if _rank() == 0:
            print(f"cairn: the training goes on with {path}", file=sys.stderr, flush=True)
        if _is_stock(path):
            self._resumed = None
            return path
        with cairn.open(path) as c:
            if "trainer" not in c:
                raise errors.MissingError(f"{path} is not a checkpoint of cairn.transformers", ("plan.missing",))
            state = c["trainer"]
            self._best = c.get("best")
        self._resumed = path
        if self._best is None and (step := json.loads(state).get("best_global_step")):  # an older release has saved it
            self._best = join_address(split_address(path)[0], f"checkpoint-{step}")
        # The Trainer reads its state from a file. The rest is loaded by on_train_begin, when there is an optimizer.
        self._folder = tempfile.TemporaryDirectory(prefix="cairn-resume-")
        with open(os.path.join(self._folder.name, _STATE_FILE), "w", encoding="utf-8") as f:
            f.write(state)
        self._trainer = trainer
        trainer._load_from_checkpoint = lambda *_, **__: None
        trainer._load_optimizer_and_scheduler = lambda *_, **__: None
        # the Trainer calls it after it has skipped the data
        trainer._load_rng_state = lambda *_, **__: self._set_random()
        return self._folder.name

    def _chosen(self, trainer: transformers.Trainer, wanted: Any) -> Any:
        """Returns the argument for a Trainer that is asked to resume from wanted."""
        if wanted is True:
            if (folder := self.resume(trainer)) is None:
                raise errors.NotFoundError(f"{self._run(trainer.args)} has no complete checkpoint yet. To begin "
                                           "then, use resume_from_checkpoint=checkpoints.resume(trainer)",
                                           ("storage.notfound",))
            return folder
        if not wanted and self.auto_resume:
            return self.resume(trainer)
        if not wanted or wanted == self._answer:
            return wanted
        return self._prepare(trainer, address_of(wanted))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _check(args, self.run, kwargs["optimizer"])
        if self._owner is None and getattr(args.save_strategy, "value", args.save_strategy) == "best":
            raise errors.OptionsError("cairn.transformers.CheckpointCallback: with save_strategy='best' the Trainer "
                                      "saves the model itself: use cairn.transformers.Trainer, or 'steps' or 'epoch' "
                                      "with load_best_model_at_end", ("storage.options",))
        if self._resumed is None:
            return
        path, self._resumed = self._resumed, None
        self._folder.cleanup()
        del self._trainer._load_from_checkpoint, self._trainer._load_optimizer_and_scheduler
        if not state.global_step:
            raise errors.OptionsError("what CheckpointCallback.resume returns is for "
                                      "trainer.train(resume_from_checkpoint=…)",
                                      ("storage.options",))
        if args.load_best_model_at_end:
            state.best_model_checkpoint = self._best  # which the Trainer has forgotten if it is a URL
        optimizer = kwargs["optimizer"]
        load_into([kwargs["model"]], [_bare(optimizer)], path)
        rest = load_whole(path, keys=("scheduler", "scaler", "random"))
        kwargs["lr_scheduler"].load_state_dict(rest["scheduler"])
        if rest["scaler"] is not None and (scaler := getattr(optimizer, "scaler", None)) is not None:
            scaler.load_state_dict(rest["scaler"])
        self._random = rest["random"]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer has the data of this step already, as it has when _set_random is called.
        self._save(args, state, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self._owner is not None:
            self._owner._push_exported(wait=False)
        return self._claim(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._claim(control)
        self._save(args, state, kwargs)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save(args, state, kwargs)
        self._settle(last=True)
        if self._owner is not None:
            self._owner._push_exported(wait=True)

    def _set_random(self) -> None:
        del self._trainer._load_rng_state
        found, self._random = self._random, {}
        RandomState().load_state_dict({"ranks": len(found), **{rank: (states,) for rank, states in found.items()}})

    def _claim(self, control: Any) -> Any:
        """Takes over a save of the Trainer, which begins when the Trainer has noted the results of the step."""
        if self._owner is None:
            self._due = self._due or control.should_save
            control.should_save = False
        return control

    def _save(self, args: Any, state: Any, kwargs: dict[str, Any]) -> None:
        if not self._due:
            return
        self._due = False
        self._settle()
        optimizer, rank = kwargs["optimizer"], _rank()
        name = f"checkpoint-{state.global_step}"
        target = join_address(self._run(args), name) if self.run is None else Member(self.run, name)
        if (step := state.best_global_step or state.global_step) == state.global_step:
            self._best = target if isinstance(target, str) else target.path
        else:  # the step of the best model may be one without a save
            self._best = self._paths.get(step, self._best)
        if args.load_best_model_at_end:
            state.best_model_checkpoint = self._best  # at the end, the Trainer calls _load_best
        whole: StateDict = {**state_of([kwargs["model"]], [_bare(optimizer)]),
                            "random": {str(rank): random_states(every_device=True)}}
        if rank == 0:
            if self._files is None:
                self._files = _files(kwargs["model"], kwargs.get("processing_class"))
            whole["files"] = self._files
            scaler = getattr(optimizer, "scaler", None)
            whole["scheduler"] = kwargs["lr_scheduler"].state_dict()
            whole["scaler"] = None if scaler is None else scaler.state_dict()
            whole["trainer"], whole["best"] = json.dumps(dataclasses.asdict(state)), self._best
        self._handle = async_save_whole(whole, target, state.global_step, alone=False,
                                        may_differ=has_buffers([kwargs["model"]]), metrics=_metrics(state),
                                        overwrite=self.overwrite or None)
        if rank == 0 and self._files is not None and (config := self._files.get(_CONFIG_FILE)):
            self._handle.add_done_callback(functools.partial(_explain, config))
        if rank == 0 and args.save_total_limit and args.save_total_limit > 0:
            self._remover.note_save(self._handle)
            self._remover.begin(self._handle, functools.partial(self._old, self._handle, args.save_total_limit,
                                                                split_address(self._best or "")[1]))
        if self._owner is not None:
            self._owner._export(self._handle)

    def _load_best(self, trainer: transformers.Trainer) -> None:
        """Loads the model of the best checkpoint, in place of the Trainer. All ranks call it."""
        handler = trainer.callback_handler
        self._save(trainer.args, trainer.state, {k: getattr(handler, k, None) for k in (
            "model", "optimizer", "lr_scheduler", "processing_class")})
        self._settle()
        path = self._paths.get(trainer.state.best_global_step) or self._best
        if path is None:
            return  # nothing was saved: the model is the best one
        trainer.state.best_model_checkpoint = path
        try:
            load_model(trainer.model, path)
        except errors.NotFoundError as e:
            raise errors.NotFoundError(f"{path}, the best checkpoint, was removed: add a rule such as 'best 1 by "
                                       f"{trainer.args.metric_for_best_model}' to the policy of the run: {e}",
                                       e.codes) from e

    def _settle(self, last: bool = False) -> None:
        """Waits for the save and the removals that are under way, and raises the error of the save."""
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                self._paths[handle.result().step] = handle.path
        finally:
            self._remover.settle(last)

    def _old(self, saved: cairn.torch.Handle, keep: int, best: str = "") -> list[Target]:
        """Returns the checkpoints before a save that is complete, but the newest ones and the best one."""
        if self.run is None:
            return older(saved.path, keep, best)
        newest = split_address(saved.path)[1]
        names = [c.name for c in self.run.checkpoints()  # lines that were left stay
                 if re.fullmatch(r"checkpoint-\d+(~\d+)?", c.name) and not c.left]
        before = names[:names.index(newest) + 1] if newest in names else []
        return [Member(self.run, name) for name in before[:-keep] if name != best]

    def _run(self, args: Any) -> str:
        return address_of(self.folder or args.output_dir)


class Trainer(transformers.Trainer):
    """A Trainer of transformers whose checkpoints go through cairn, in the background.

    It saves as :class:`CheckpointCallback` does, after the evaluation of a step or an epoch. So it can do more:
    ``save_strategy="best"``, values of the evaluation of an epoch among the metrics of its checkpoint, the states of
    callbacks such as EarlyStoppingCallback, and ``push_to_hub``: when a save is complete, its model is written for
    ``from_pretrained``, and the Trainer pushes it.

    ``checkpoints`` is the CheckpointCallback among its callbacks, or a new one. With a Trainer of another package, it
    is the last one of the bases::

        class MyTrainer(trl.SFTTrainer, cairn.transformers.Trainer): pass
    """

    state: Any

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        found = [c for c in self.callback_handler.callbacks if isinstance(c, CheckpointCallback)]
        self.checkpoints = found[0] if found else CheckpointCallback()
        """It decides where checkpoints are, and which of them to go on with."""
        self.checkpoints._owner = self
        if not found:
            self.add_callback(self.checkpoints)
        self._exporting: _Export | None = None
        _check_hub(self)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Notes that the Trainer saves: the callback begins when the Trainer has the data of the next step."""
        if trial is not None:
            raise errors.OptionsError("cairn.transformers.Trainer does not save in a hyperparameter_search: use "
                                      "save_strategy='no'", ("storage.options",))
        self.store_flos()
        states: dict[str, list[Any]] = {}
        for c in (*self.callback_handler.callbacks, self.control):
            if isinstance(c, transformers.trainer_callback.ExportableState):
                states.setdefault(type(c).__name__, []).append(c.state())
        self.state.stateful_callbacks = {name: s if len(s) > 1 else s[0] for name, s in states.items()}
        self.checkpoints._due = True

    def _export(self, handle: cairn.torch.Handle) -> None:
        """Begins to write the model of a save for the hub, if it is to be pushed. Rank 0 does."""
        if not self.args.push_to_hub or self.args.hub_strategy == "end" or not self.is_world_process_zero():
            return
        if self._exporting is not None and not self.args.hub_always_push:
            return  # the last one is not pushed yet
        self._push_exported(wait=True)
        self._exporting = _Export(handle, copy.copy(self.state))

    def _push_exported(self, wait: bool) -> None:
        """Pushes the model that was written for the hub, if it is complete."""
        if (done := self._exporting) is None or (done.is_alive() and not wait):
            return
        done.join()
        self._exporting, state = None, self.state
        with done.folder:
            if done.error is not None:
                # The training of the other ranks goes on, too.
                warnings.warn(f"the model of {done.handle.path} is not pushed: {done.error}",
                              stacklevel=errors.outside())
                return
            self.state = done.state  # of the step that is pushed
            try:
                self._push_from_checkpoint(os.path.join(done.folder.name, "model"))
            finally:
                self.state = state


class _Export(threading.Thread):
    """Writes the model of a save for from_pretrained, in a folder that is removed when it is not needed any more."""

    def __init__(self, handle: cairn.torch.Handle, state: Any):
        super().__init__(name="cairn-export", daemon=True)
        self.handle, self.state = handle, state
        self.error: BaseException | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="cairn-push-")
        self.start()

    def run(self) -> None:
        self.error = failure(self.handle)
        if self.error is None:
            try:
                export(self.handle.path, os.path.join(self.folder.name, "model"))
            except Exception as e:
                self.error = e


def export(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Writes the model of a checkpoint as ``from_pretrained(folder)`` reads it.

    The folder has the weights in safetensors files, config.json and, if the Trainer had one,
    the files of the tokenizer or processor. It must not exist, or be empty.
    """
    source = address_of(path)
    if os.path.isdir(folder) and os.listdir(folder):
        raise errors.ExistsError(f"{os.fspath(folder)} is not empty: a model is exported to a new folder",
                                 ("storage.exists",))
    with cairn.open(source) as c:
        files = {name.removeprefix("files."): c[name] for name in c if name.startswith("files.")}
    if _CONFIG_FILE not in files:
        raise errors.MissingError(f"{source} has no config.json of a model: "
                                  "cairn.transformers.CheckpointCallback did not save it", ("plan.missing",))
    command = [binary(), "convert", "--json", "--to=hf", "--select=model.*", "--rename=model.*=*", "--", source,
               address_of(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        try:
            text = json.loads(done.stderr)["error"]
        except ValueError:  # the program was killed, or is another one
            text = f"exit code {done.returncode} {done.stderr.strip()}"
        raise errors.CairnError(text)
    for name, data in files.items():
        with open(os.path.join(folder, os.path.basename(name)), "wb") as f:
            f.write(data)


def from_checkpoint(path: str | os.PathLike[str] | Run, model_class: Any = None, config: Any = None, *,
                    dtype: torch.dtype | str | None = None, device: torch.device | str | int | None = None,
                    prefix: str | None = None, strict: bool = True, recipe: str | os.PathLike[str] | None = None,
                    reverse: bool = False, variables: Mapping[str, Any] | None = None, format: str | None = None,
                    format_options: FormatOptions | None = None, share: bool | None = None, alone: bool = False,
                    **kwargs: Any) -> Any:
    """Builds a model from a checkpoint of any format that cairn reads, as ``from_pretrained`` builds it from a folder.

    ::

        model = cairn.transformers.from_checkpoint("run/checkpoint-500", device="cuda")
        model = cairn.transformers.from_checkpoint("titan/step-1000", config="Llama-3.1-8B", recipe="titan-to-hf/llama")

    model_class is a class of transformers, such as ``AutoModelForSequenceClassification``; without it,
    ``AutoModelForCausalLM``. config is a configuration, the path of its folder or file, or a dict. Without it, it is
    config.json beside the checkpoint, or the one that CheckpointCallback saved with it. dtype is the type of the
    weights, as of from_pretrained. The weights are read straight to device, which is the CPU if it is None, and are
    verified as far as the format has checksums.

    Names are those of from_pretrained, with what it maps: the prefix of the base model, tied weights, weights that it
    merges. A checkpoint of a training may have more: the model is below the prefix, such as "model.", that most of
    its names have. Name the prefix if the checkpoint has several models. With recipe, the names are those into which
    the recipe changes the checkpoint; reverse and variables are described at :func:`cairn.convert`, and
    format, share and alone at :func:`cairn.torch.weights`. Other arguments go to from_pretrained.

    MissingError: the checkpoint lacks weights of the model. MismatchError: the model lacks names of the checkpoint, or
    has other shapes. Without strict, missing weights are initialized, and other names left out.
    """
    if isinstance(path, Run):
        path = newest(path, alone)
    settings = _config_of(path, config)
    vars(settings).pop("transformers_weights", None)  # the file that from_pretrained would read
    source: dict[str, Any] = {"recipe": recipe, "reverse": reverse, "variables": variables, "format": format,
                              "format_options": format_options}
    if recipe is not None:
        source["config"] = settings.to_dict()
    with torch.device("meta"):
        built = (model_class or transformers.AutoModelForCausalLM)
        built = built.from_config(settings) if hasattr(built, "from_config") else built(settings)
    with cairn.open(path, **source) as c:
        names = list(c.shapes())
    found = _model_names(names, built, prefix, os.fspath(path))
    if device is not None and torch.device(device).type != "cpu":
        kwargs["device_map"] = {"": device}
    weights = {found[name]: t for name, t in cairn.torch.weights(path, "cpu" if device is None else device, list(found),
                                                                share=share, alone=alone, **source)}
    model, info = type(built).from_pretrained(None, config=settings, state_dict=weights, dtype=dtype or "auto",
                                              output_loading_info=True, ignore_mismatched_sizes=True, **kwargs)
    if strict:
        _refuse(info, os.fspath(path), type(built).__name__)
    return model


def _config_of(path: str | os.PathLike[str], config: Any) -> Any:
    """Returns the configuration of a model, a new one."""
    if isinstance(config, transformers.PretrainedConfig):
        return copy.deepcopy(config)
    if isinstance(config, Mapping):
        return transformers.AutoConfig.for_model(**config)
    if config is None:
        address = address_of(path)
        folder = os.path.dirname(address) if os.path.isfile(address) else address
        if os.path.isfile(os.path.join(folder, _CONFIG_FILE)):
            config = folder
    if config is not None:
        return transformers.AutoConfig.from_pretrained(config)
    with cairn.open(path) as c:
        if f"files.{_CONFIG_FILE}" in c:
            return transformers.AutoConfig.for_model(**json.loads(c[f"files.{_CONFIG_FILE}"]))
    raise errors.OptionsError(f"{os.fspath(path)} has no config.json: name the configuration of the model by config=…",
                              ("storage.options",))


def _model_names(names: list[str], model: Any, prefix: str | None, path: str) -> dict[str, str]:
    """Returns the names of a checkpoint that are below the model's prefix, with the names without it."""
    expected = set(model.state_dict())
    base = f"{model.base_model_prefix}."
    known = expected | {name[len(base):] for name in expected if name.startswith(base)}
    bare = {name: name if name in known else _names.bare(name) for name in names}
    if prefix is None:
        prefix = _prefix(bare.values(), known, path)
    found = {name: b[len(prefix):] for name, b in bare.items() if b.startswith(prefix)}
    if not found:
        raise errors.MissingError(f"{path} has no names that begin with {prefix!r}", ("plan.missing",))
    return found


def _prefix(names: Iterable[str], known: set[str], path: str) -> str:
    """Returns what names have before the names of the model. The shorter of two counts."""
    count: collections.Counter[str] = collections.Counter()
    for name in names:
        parts = name.split(".")
        for i in range(len(parts)):
            if ".".join(parts[i:]) in known:
                count["".join(f"{part}." for part in parts[:i])] += 1
    if not count:
        return ""
    most = max(count.values())
    best = sorted((p for p, n in count.items() if n == most), key=len)
    if others := [p for p in best if not p.startswith(best[0])]:
        raise errors.OptionsError(f"{path} has a model below {best[0]!r} and one below {others[0]!r}: choose one by "
                                  "prefix=…", ("storage.options",))
    return best[0]


def _refuse(info: Mapping[str, Collection[Any]], path: str, model: str) -> None:
    """Raises an error if a model was not filled, or not with all."""
    def some(names: Iterable[Any]) -> str:
        names = sorted(names)
        return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    hint = ". from_checkpoint(…, strict=False) goes on"
    if missing := info["missing_keys"]:
        raise errors.MissingError(f"{path} lacks {len(missing)} weights of {model}: {some(missing)}{hint}",
                                  ("plan.missing", "plan.mismatch"))
    if other := info["mismatched_keys"]:
        raise errors.MismatchError(f"{path} has other shapes than {model}: {some(m[0] for m in other)}{hint}",
                                   ("plan.mismatch",))
    if extra := info["unexpected_keys"]:
        raise errors.MismatchError(f"{path} has {len(extra)} weights that {model} lacks: {some(extra)}{hint}",
                                   ("plan.mismatch",))
    if info.get("error_msgs"):
        raise errors.MismatchError(f"{path}: {'; '.join(map(str, info['error_msgs']))}", ("plan.mismatch",))


def _resuming(train: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Trainer.train for Trainers that may have a CheckpointCallback."""
    @functools.wraps(train)
    def resuming(self: transformers.Trainer, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        callbacks = [c for c in self.callback_handler.callbacks if isinstance(c, CheckpointCallback)]
        if len(callbacks) > 1:
            raise errors.OptionsError("the Trainer has several callbacks of cairn.transformers.CheckpointCallback",
                                      ("storage.options",))
        for callback in callbacks:
            resume_from_checkpoint = callback._chosen(self, resume_from_checkpoint)
            self._load_best_model = functools.partial(callback._load_best, self)
        return train(self, resume_from_checkpoint, *args, **kwargs)

    resuming._cairn = True  # type: ignore[attr-defined]
    return resuming


def _is_stock(path: str) -> bool:
    """Reports whether the Trainer itself saved a checkpoint."""
    return os.path.isfile(os.path.join(path, _STATE_FILE))


def _newest(run: Run) -> str | None:
    """Returns the newest complete checkpoint of a run, of cairn or of the Trainer itself."""
    found, stock = run.latest(wait=True), {}
    if os.path.isdir(run.path):  # sharded checkpoints of the Trainer are folders that cairn does not take for one
        stock = {int(m[1]): p for name in os.listdir(run.path) if (m := re.fullmatch(r"checkpoint-(\d+)", name))
                 and _is_stock(p := os.path.join(run.path, name))}
    if not stock:
        return found
    last = stock[max(stock)]
    if found is None:
        return last

    # A checkpoint of the Trainer is newer only if it has a higher step and was saved later: a job of cairn may have
    # gone on from an older checkpoint since.
    head = next((c for c in run.checkpoints() if c.head), None)
    if head is None or head.step is None or max(stock) <= head.step:
        return found
    saved = os.path.getmtime(os.path.join(last, _STATE_FILE))
    return last if head.time is None or saved > _seconds(head.time) else found


def _seconds(time: str) -> float:
    """Returns a time of a report in seconds since 1970."""
    whole, _, fraction = time.removesuffix("Z").partition(".")  # Python reads at most 6 digits after the point
    return datetime.datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _metrics(state: Any) -> dict[str, float]:
    """Returns what the Trainer has logged in this step, such as loss and eval_loss."""
    out: dict[str, float] = {}
    for entry in state.log_history:
        if entry.get("step") == state.global_step:
            out.update((name, float(v)) for name, v in entry.items()
                       if name != "step" and isinstance(v, (int, float)) and name.split() == [name] and "," not in name)
    return out


def _check(args: Any, run: Run | None, optimizer: Any) -> None:
    """Refuses arguments that this callback does not support."""
    if args.save_total_limit and run is not None and (run.keep or run.keep_remote):
        raise errors.OptionsError(f"cairn.transformers.CheckpointCallback: the run keeps {run.keep or 'all'!r}; "
                                  "save_total_limit must be None", ("storage.options",))
    if "deepspeed" in type(optimizer).__name__.lower():
        raise errors.OptionsError("cairn.transformers.CheckpointCallback cannot save what DeepSpeed has cut: let the "
                                  "Trainer save it, "
                                  "or use FSDP", ("storage.options",))


def _check_hub(trainer: Trainer) -> None:
    """Refuses pushes of what is not in a model that was exported."""
    args = trainer.args
    if not args.push_to_hub or args.hub_strategy == "end":
        return
    if args.hub_strategy != "every_save":
        raise errors.OptionsError("cairn.transformers.Trainer pushes models, not checkpoints: use "
                                  "hub_strategy='every_save', and cairn.Run(…, remote=…) for checkpoints",
                                  ("storage.options",))
    if hasattr(trainer.model, "peft_config"):
        raise errors.OptionsError("cairn.transformers.Trainer does not push adapters while it trains: use "
                                  "hub_strategy='end'", ("storage.options",))


def _files(model: Any, processor: Any) -> dict[str, bytes]:
    """Returns the files that from_pretrained reads beside the weights."""
    with tempfile.TemporaryDirectory(prefix="cairn-files-") as folder:
        part: Any
        for part in (getattr(model, "config", None), getattr(model, "generation_config", None), processor):
            if hasattr(part, "save_pretrained"):
                part.save_pretrained(folder)
        out = {}
        for entry in os.scandir(folder):
            if entry.is_file():
                with open(entry.path, "rb") as f:
                    out[entry.name] = f.read()
        return out


def _explain(config: bytes, handle: cairn.torch.Handle) -> None:
    """Writes config.json beside a complete checkpoint, which makes from_pretrained say how to load it.

    A removal of the checkpoint removes the file too. A config.json of another program stays as it is.
    """
    if failure(handle) is not None or "://" in handle.path:
        return
    text = {**json.loads(config), "transformers_weights": "cairn.transformers.from_checkpoint loads this checkpoint, "
            "and cairn.transformers.export writes a copy of its model for from_pretrained"}
    path = os.path.join(handle.path, _CONFIG_FILE)
    with contextlib.suppress(OSError):  # the checkpoint was removed meanwhile, or the file only explains less
        if os.path.exists(path):
            with open(path, "rb") as f:
                if b"cairn.transformers.from_checkpoint" not in f.read():
                    return  # another program wrote it
        with open(path, "w", encoding="utf-8") as f:
            json.dump(text, f, indent=2)


def _rank() -> int:
    return torch.distributed.get_rank() if distributed() else 0


def _bare(optimizer: Any) -> Any:
    """Returns the optimizer of PyTorch that accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)
