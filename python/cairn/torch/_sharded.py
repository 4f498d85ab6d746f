"""States of trainings with FSDP, for frameworks that keep the files of ranks, in the names of the format "fsdp"."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import cairn
from cairn import errors
from cairn.torch._handle import Handle
from cairn.torch._job import Caught, agree, broadcast, distributed
from cairn.torch._load import load
from cairn.torch._perrank import RandomState
from cairn.torch._save import async_save
from cairn.torch._state import StateDict


@dataclasses.dataclass
class Training:
    """A model of FSDP 1 or 2, with its optimizer and scheduler.

    contents says which parts are saved and loaded: "model", "optimizer" and "extra". The last one is the scheduler, the
    random number generators of each rank, and what the framework adds.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    contents: Collection[str]

    def async_save(self, path: str, step: int | None, *, only: Callable[[str], bool] | None = None,
                   more: Mapping[str, Any] | None = None) -> Handle:
        """Saves in the background. All ranks call it.

        only says which names of the model are saved. more is saved beside them: its "extra" is what the framework adds
        to the scheduler. The save replaces another one of the same path, as the frameworks do.
        """
        state: StateDict = {}
        with Caught() as caught:
            state = self._state()
            if "model" in state and only is not None:
                state["model"] = {name: v for name, v in state["model"].items() if only(name)}
            state.update(more or {})
            if "extra" in self.contents:
                scheduler = None if self.scheduler is None else self.scheduler.state_dict()
                state["extra"] = {"lr_scheduler": scheduler, **state.get("extra", {})}
                state["random"] = RandomState()
        agree("sharded", caught.error)
        # In the dict of a model, nothing tells buffers, which may differ, from parameters.
        return async_save(state, path, step=step, overwrite=True,
                          may_differ=any(True for _ in self.model.buffers()))

    def load(self, path: str, *, strict: bool = True) -> StateDict:
        """Loads a checkpoint of async_save, or of the framework itself, saved by any number of ranks.

        All ranks call it. It returns what was saved as "extra".
        """
        own, adapters = broadcast("sharded", lambda: _look(path))
        state: StateDict = {}
        extra = _Extra()
        with Caught() as caught:
            state = self._state()
            if "model" in state and adapters:
                state["model"] = {name: v for name, v in state["model"].items() if is_adapter(name)}
            if "extra" in self.contents:
                state["extra"] = extra
                if own:
                    state["random"] = RandomState()
        agree("sharded", caught.error)
        load(state, path, strict=strict)
        if "model" in state:
            options = StateDictOptions(strict=strict and not adapters)
            set_model_state_dict(self.model, state["model"], options=options)
        if "optimizer" in state:
            set_optimizer_state_dict(self.model, self._optimizers(), state["optimizer"])
        if "extra" in self.contents:
            if self.scheduler is not None and extra.found.get("lr_scheduler"):
                self.scheduler.load_state_dict(extra.found["lr_scheduler"])
            if not own and "rng" in extra.found:
                _set_random(extra.found)
        return extra.found

    def _state(self) -> StateDict:
        """Returns the model and the optimizer, by the names of parameters."""
        weights, moments = get_state_dict(self.model, self._optimizers())
        return {k: v for k, v in (("model", weights), ("optimizer", moments)) if k in self.contents}

    def _optimizers(self) -> Any:
        if "optimizer" not in self.contents:
            return ()
        if self.optimizer is None:
            raise errors.OptionsError("the contents of the checkpoint include the optimizer, but there is no optimizer",
                                      ("storage.options",))
        return self.optimizer


class _Extra:
    """Takes all that a checkpoint has below a name."""

    def __init__(self) -> None:
        self.found: StateDict = {}

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        self.found = state


def is_adapter(name: str) -> bool:
    """Reports whether a name of a model belongs to an adapter of PEFT."""
    return "lora_" in name or ".adapter_" in name


def _look(path: str) -> tuple[bool, bool]:
    """Reports whether cairn saved a checkpoint, and whether it has only the adapters of a model."""
    with cairn.open(path) as c:
        own, weights = "random.ranks" in c, [name for name in c if name.startswith("model.")]
    return own, bool(weights) and all(map(is_adapter, weights))


def _set_random(extra: StateDict) -> None:
    """Sets the generators of this rank from the states that the ranks of a framework have saved.

    The state of rank 0 is extra["rng"]["cpu"], and another state of rank 1 is extra["rng.cpu#rank1"].
    """
    shared: StateDict = extra["rng"]
    others = [int(m[1]) for name in extra if (m := re.fullmatch(r"rng\..*#rank(\d+)", name))]
    here = dist.get_rank() if distributed() else 0
    # Without states of other ranks, all of them had the same one.
    ranks = max(others, default=dist.get_world_size() - 1 if distributed() else 0) + 1

    def of(rank: int) -> tuple[StateDict]:
        held = {name: extra.get(f"rng.{name}#rank{rank}", v) for name, v in shared.items()}
        return ({**held, "python": held["random"]},)

    RandomState().load_state_dict({"ranks": ranks, **{str(rank): of(rank) for rank in (0, here) if rank < ranks}})
