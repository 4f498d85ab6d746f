"""Models and their optimizers, sharded or not, as states that any number of ranks can load."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cairn import checkpoint
from cairn.torch._load import load
from cairn.torch._state import StateDict


def is_sharded(model: torch.nn.Module) -> bool:
    """Reports whether parameters of a model are DTensors, or the model is wrapped by FSDP 1."""
    return any(hasattr(p, "device_mesh") for p in model.parameters()) \
        or any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())


def has_buffers(models: Iterable[torch.nn.Module]) -> bool:
    """Reports whether a model has buffers: in the dict of a sharded model, nothing tells them from parameters."""
    return any(True for model in models for _ in model.buffers())


def state_of(models: list[Any], optimizers: list[Any]) -> StateDict:
    """Returns the state of models and optimizers to save, under the names model, optimizer, model_1 and so on.

    If a model is sharded, the optimizer of its number has names for parameters in place of numbers.
    """
    out: StateDict = {}
    for m, model, o, optimizer in _pairs(models, optimizers):
        if model is None or optimizer is None or not is_sharded(model):
            out |= {k: v for k, v in ((m, model), (o, optimizer)) if v is not None}
            continue
        from torch.distributed.checkpoint.state_dict import get_state_dict

        out[m], out[o] = get_state_dict(model, optimizer)
    return out


def load_into(models: list[Any], optimizers: list[Any], path: str) -> None:
    """Loads models and optimizers, sharded or not, from a checkpoint of models that were sharded or not.

    All ranks call it.
    """
    with checkpoint.open(path) as c:
        held = list(c)
    state: StateDict = {}
    numbers: dict[str, str] = {}  # of parameters in the checkpoint, by their names in the state
    named: list[tuple[Any, Any, str, str, list[Any]]] = []
    for m, model, o, optimizer in _pairs(models, optimizers):
        by_number = any(re.fullmatch(rf"{o}\.state\.\d+\.[^.]+", name) for name in held)  # not "0.weight.step"
        by_name = not by_number and any(name.startswith(f"{o}.state.") for name in held)
        if model is None or optimizer is None or not (is_sharded(model) or by_name):
            state |= {k: v for k, v in ((m, model), (o, optimizer)) if v is not None}
            continue
        from torch.distributed.checkpoint.state_dict import get_state_dict

        state[m], state[o] = get_state_dict(model, optimizer)
        params = [group.pop("params") for group in state[o]["param_groups"]]
        if by_number:
            order = enumerate(itertools.chain(*params))
            numbers |= {f"{o}.state.{name}": f"{o}.state.{i}" for i, name in order}
        named.append((model, optimizer, m, o, params))

    def rename(name: str) -> str:
        param, _, key = name.rpartition(".")
        return f"{numbers[param]}.{key}" if param in numbers else name

    load(state, path, rename=rename if named else None)
    for model, optimizer, m, o, params in named:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        for group, names in zip(state[o]["param_groups"], params):
            group["params"] = names
        set_state_dict(model, optimizer, model_state_dict=state[m], optim_state_dict=state[o])


def load_model(model: torch.nn.Module, path: str) -> None:
    """Loads a model, sharded or not, from a checkpoint of a training. All ranks call it."""
    if not is_sharded(model):
        load({"model": model}, path)
        return
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    weights = get_model_state_dict(model)
    load({"model": weights}, path)
    set_model_state_dict(model, weights)


def numbered(name: str, objects: Iterable[Any]) -> dict[str, Any]:
    """Returns objects by name, name_1, name_2 and so on."""
    return {f"{name}_{i}" if i else name: v for i, v in enumerate(objects)}


def _pairs(models: list[Any], optimizers: list[Any]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yields models and optimizers of the same number, with their names. One of them may be None."""
    for i, (model, optimizer) in enumerate(itertools.zip_longest(models, optimizers)):
        end = f"_{i}" if i else ""
        yield f"model{end}", model, f"optimizer{end}", optimizer
