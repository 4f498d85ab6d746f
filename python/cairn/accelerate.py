"""Checkpoints of Accelerate, through cairn.

    from cairn.accelerate import Accelerator          # in place of: from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
    accelerator.load_state("run/epoch-3")
    accelerator.save_state("run/epoch-4")             # in the background
    accelerator.end_training()                        # waits for it

It needs the package ``accelerate``.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import accelerate

import cairn
import cairn.torch
from cairn import errors
from cairn._address import address_of, join_address, split_address
from cairn.runs import Run
from cairn.torch._handle import Handle
from cairn.torch._job import Caught, agree, broadcast
from cairn.torch._models import has_buffers, load_into, numbered, state_of
from cairn.torch._perrank import PerRank, RandomState
from cairn.torch._removal import Remover, older
from cairn.torch._state import StateDict
from cairn.torch._whole import PATIENCE, async_save_whole, load_whole

_TESTED = (1, 15)
_KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")
_STOCK = "random_states_0.pkl"  # a file of each checkpoint that Accelerate itself has saved
# What Accelerate has noted about a training, in attributes of its own.
_ATTRIBUTES = ("_models", "_optimizers", "_schedulers", "_dataloaders", "_custom_objects", "_save_model_state_pre_hook",
               "_load_model_state_pre_hook", "project_configuration", "scaler", "step")


class Accelerator(accelerate.Accelerator):
    """An Accelerator of accelerate whose ``save_state`` and ``load_state`` go through cairn. All ranks call them.

    A save takes place in the background: training goes on when the state is copied aside. The error of a save is
    raised by the next save or load, or by ``end_training``.

    A checkpoint has the models, the optimizers, the schedulers, the gradient scaler, the objects of
    ``register_for_checkpointing``, the epochs of the data loaders, and for each rank the states of the random number
    generators and of stateful data loaders. A checkpoint of a training with DDP, with FSDP 2 or without can be loaded
    into one with another of them, and with any number of ranks. DeepSpeed, Megatron-LM and FSDP 1 are refused.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        _check_version()
        super().__init__(*args, **kwargs)
        _check(self)
        self._saved: Handle | None = None
        self._remover = Remover()

    def save_state(self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True,
                   **save_model_func_kwargs: Any) -> Handle:
        """Saves the state in the background, and returns the handle of the save. All ranks call it.

        output_dir may be a URL. It is not used with automatic_checkpoint_naming: then the checkpoints are
        ``checkpoint_N`` in the folder checkpoints of project_dir, and when a save is complete, all but the newest
        total_limit are removed.

        A save replaces a checkpoint that this job has saved or loaded. If there is another one, it fails with
        ExistsError. safe_serialization has no effect: cairn has one format.
        """
        self._settle()
        project = self.project_configuration
        place = functools.partial(_target, self, output_dir, save_model_func_kwargs)
        path = broadcast("accelerate", place, "save_state")
        models, optimizers = self._trained()
        state = {**state_of(models, optimizers), **self._of_ranks()}
        if self.is_main_process:
            state |= {**self._of_all(), "step": self.step}
        automatic = project.automatic_checkpoint_naming
        self._saved = async_save_whole(state, path, project.iteration if automatic else None, alone=False,
                                       may_differ=has_buffers(models), overwrite=False if automatic else None)
        self._remover.note_save(self._saved)
        if automatic and project.total_limit is not None and self.is_main_process:
            self._remover.begin(self._saved, functools.partial(older, path, max(1, project.total_limit)))
        project.iteration += 1
        return self._saved

    def load_state(self, input_dir: str | os.PathLike[str] | None = None, load_kwargs: dict[str, Any] | None = None,
                   **load_model_func_kwargs: Any) -> None:
        """Loads a checkpoint into what was prepared and registered. All ranks call it.

        Without input_dir, it is the newest complete checkpoint of project_dir, for automatic_checkpoint_naming; the
        next save gets the next number. It waits for saver processes that have outlived their trainers. A folder that
        Accelerate itself has saved is loaded by Accelerate.

        Pickled objects in the states of registered objects are made again only with
        ``load_kwargs={"weights_only": False}``: a pickle can run any code.
        """
        self._settle()
        path, stock = broadcast("accelerate", functools.partial(_found, self, input_dir), "load_state")
        if stock:
            super().load_state(path, load_kwargs, **load_model_func_kwargs)
        else:
            self._load(path, load_kwargs or {}, load_model_func_kwargs)
        above, name = split_address(path)
        if self.project_configuration.automatic_checkpoint_naming and above == _folder(self):
            self.project_configuration.iteration = _number(name) + 1

    def end_training(self) -> None:
        """Waits for the save that is under way, raises its error, and does what Accelerate does at the end."""
        try:
            self._settle(last=True)
        finally:
            super().end_training()

    def _load(self, path: str, load_kwargs: dict[str, Any], more: dict[str, Any]) -> None:
        """Loads a checkpoint of cairn."""
        models, optimizers = self._trained()
        objects, ranks = self._of_all(), self._of_ranks()
        rest: StateDict = {}
        with Caught() as caught:
            _refuse_others("load_state", self._load_model_state_pre_hook, {
                **{f"load_kwargs[{k!r}]": v for k, v in load_kwargs.items() if k != "weights_only"},
                **{k: v for k, v in more.items() if k != "map_location"}})  # tensors are filled where they are
            try:
                rest = load_whole(path, keys={*objects, "step"}, allow_pickle=load_kwargs.get("weights_only") is False,
                                  patience=PATIENCE)
            except errors.RepresentError as e:
                raise errors.RepresentError(str(e).replace("allow_pickle=True", "load_kwargs={'weights_only': False}"),
                                            e.codes) from e
            with cairn.open(path) as c:
                held = {name.partition(".")[0] for name in c}
            ranks = {k: v for k, v in ranks.items() if k in held}
            objects = {k: v for k, v in objects.items() if k in held or not k.startswith("dataloader")}
            _compare(path, {*numbered("model", models), *numbered("optimizer", optimizers), *objects, *ranks, "step"},
                     held)
        agree("accelerate", caught.error)
        load_into(models, optimizers, path)
        with Caught() as caught:
            for key, of in objects.items():
                of.load_state_dict(rest[key])
            self.step = rest["step"]
        agree("accelerate", caught.error)
        cairn.torch.load(ranks, path)  # the last one, because what is above may use random numbers

    def _trained(self) -> tuple[list[Any], list[Any]]:
        """Returns the models and the optimizers without what Accelerate has wrapped around them."""
        return ([self.unwrap_model(model, keep_torch_compile=False) for model in self._models],
                [getattr(optimizer, "optimizer", optimizer) for optimizer in self._optimizers])

    def _of_all(self) -> dict[str, Any]:
        """Returns objects whose states are the same on all ranks: rank 0 saves them."""
        return {**numbered("scheduler", self._schedulers), **numbered("custom", self._custom_objects),
                **numbered("dataloader", map(_Epochs, self._dataloaders)),
                **({} if self.scaler is None else {"scaler": self.scaler})}

    def _of_ranks(self) -> dict[str, PerRank]:
        """Returns objects whose states differ from rank to rank."""
        loaders = [PerRank(x) for x in self._dataloaders if getattr(x, "use_stateful_dataloader", False)]
        return {**numbered("batches", loaders), "random": RandomState()}

    def _settle(self, last: bool = False) -> None:
        """Waits for the save and the removals that are under way, and raises the error of the save."""
        handle, self._saved = self._saved, None
        try:
            if handle is not None:
                handle.result()
        finally:
            self._remover.settle(last)


class _Epochs:
    """How often a data loader of Accelerate has been at its end, by which its sampler shuffles."""

    def __init__(self, loader: Any):
        self.loader = loader

    def state_dict(self) -> StateDict:
        return {"iteration": getattr(self.loader, "iteration", 0)}

    def load_state_dict(self, state: StateDict) -> None:
        if hasattr(self.loader, "iteration"):
            self.loader.iteration = state["iteration"]


def _target(of: Accelerator, output_dir: str | os.PathLike[str] | None, more: dict[str, Any]) -> str:
    """Returns the address for a save."""
    _refuse_others("save_state", of._save_model_state_pre_hook, more)
    if of.project_configuration.automatic_checkpoint_naming:
        path = join_address(_folder(of), f"checkpoint_{of.save_iteration}")
    elif output_dir is None:
        raise errors.OptionsError("save_state needs output_dir, or automatic_checkpoint_naming", ("storage.options",))
    else:
        path = address_of(os.path.expanduser(output_dir))
    if os.path.exists(os.path.join(path, _STOCK)):
        raise errors.ExistsError(f"Accelerate itself has saved to {path}: save to another folder", ("storage.exists",))
    return path


def _found(of: Accelerator, input_dir: str | os.PathLike[str] | None) -> tuple[str, bool]:
    """Returns the address of the checkpoint to load, and whether Accelerate itself has saved it."""
    if input_dir is not None:
        path = address_of(os.path.expanduser(input_dir))
        stock = os.path.exists(os.path.join(path, _STOCK))
        if stock and os.path.exists(os.path.join(path, "cairn.json")):
            raise errors.OptionsError(f"both cairn and Accelerate itself have saved to {path}: remove the files of one "
                                      "of them", ("storage.options",))
        return path, stock
    if not of.project_configuration.automatic_checkpoint_naming:
        raise errors.OptionsError("load_state needs input_dir, or automatic_checkpoint_naming", ("storage.options",))
    run, names = Run(_folder(of)), list[str]()
    if run.latest(wait=True) is not None:
        names = [c.name for c in run.checkpoints() if c.complete]
    if os.path.isdir(run.path):  # sharded checkpoints of Accelerate are folders that cairn does not take for one
        names += [name for name in os.listdir(run.path) if os.path.exists(os.path.join(run.path, name, _STOCK))]
    last = max(names, key=_number, default="")
    if _number(last) < 0:
        raise errors.NotFoundError(f"{run.path} has no complete checkpoint yet", ("storage.notfound",))
    return _found(of, join_address(run.path, last))


def _folder(of: Accelerator) -> str:
    """Returns the folder of automatic_checkpoint_naming."""
    return join_address(address_of(of.project_dir), "checkpoints")


def _number(name: str) -> int:
    """Returns the number of a folder of automatic_checkpoint_naming, or -1 for others."""
    return int(m[1]) if (m := re.fullmatch(r"checkpoint_(\d+)", name)) else -1


def _compare(path: str, wanted: set[str], held: set[str]) -> None:
    """Refuses a checkpoint of another set of objects."""
    if "step" not in held or "random" not in held:
        raise errors.MissingError(f"{path} is not a checkpoint of cairn.accelerate", ("plan.missing", "plan.mismatch"))
    if missing := sorted(wanted - held):
        raise errors.MissingError(f"{path} has no {', '.join(missing)}: it was saved with other objects",
                                  ("plan.missing", "plan.mismatch"))
    # A training may go on with other data loaders, or with a precision that needs no scaler.
    if extra := sorted(k for k in held - wanted if not k.startswith(("dataloader", "batches", "scaler"))):
        raise errors.MismatchError(f"{path} has {', '.join(extra)}, which was not prepared or registered here",
                                   ("plan.mismatch",))


def _refuse_others(what: str, hooks: Any, more: dict[str, Any]) -> None:
    """Refuses arguments and hooks that would have no effect."""
    if more:
        raise errors.OptionsError(f"{what} of cairn.accelerate has no {', '.join(more)}", ("storage.options",))
    if hooks:
        raise errors.OptionsError(f"hooks of register_{what}_pre_hook write files of their own, which are no part of a "
                                  "checkpoint of cairn: use register_for_checkpointing", ("storage.options",))


def _check_version() -> None:
    """Refuses releases of accelerate that may work in another way."""
    version = accelerate.__version__
    m = re.match(r"(\d+)\.(\d+)", version)
    if m is None or not _TESTED <= (int(m[1]), int(m[2])) < (_TESTED[0] + 1, 0):
        raise errors.OptionsError(f"cairn.accelerate was tested with accelerate {_TESTED[0]}.{_TESTED[1]}, and this "
                                  f"is {version}", ("storage.options",))


def _check(of: Accelerator) -> None:
    """Refuses an Accelerator whose state is not that of its models and optimizers."""
    if lacks := [name for name in _ATTRIBUTES if not hasattr(of, name)]:
        raise errors.OptionsError(f"accelerate {accelerate.__version__} has no {', '.join(lacks)}: cairn.accelerate "
                                  f"was tested with {_TESTED[0]}.{_TESTED[1]}", ("storage.options",))
    kind = of.distributed_type.value
    if kind == "FSDP" and not of.is_fsdp2:
        kind = "FSDP 1"
    if kind not in _KINDS:
        raise errors.OptionsError(f"cairn.accelerate does not save with {kind}: use FSDP 2 or DDP, or the Accelerator "
                                  "of accelerate", ("storage.options",))
