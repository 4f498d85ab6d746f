"""What the loaders of the serving engines share: their options, and which checkpoint they read."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cairn import errors
from cairn._address import address_of
from cairn.torch._lazy import LazyWeights

_KEYS = ("path", "recipe", "config", "reverse", "variables", "format", "format_options")
_models: dict[str, str] = {}  # the model that each path was first loaded for


@dataclass(frozen=True)
class Source:
    """Where weights come from: a path, or None for the path of the engine's model, and options of LazyWeights."""

    path: str | None
    options: Mapping[str, Any]

    @classmethod
    def from_config(cls, load_config: Any, engine: str, theirs: Collection[str] = ()) -> tuple[Source, Any]:
        """Returns the source of a LoadConfig of an engine, and a copy of that with only options of the engine.

        theirs are the options of the engine's own loader that count here too. Unknown options are refused.
        """
        given = dict(load_config.model_loader_extra_config or {})
        own = copy.copy(load_config)
        own.model_loader_extra_config = {key: given.pop(key) for key in theirs if key in given}
        if unknown := sorted(set(given) - set(_KEYS)):
            raise errors.OptionsError(f"model_loader_extra_config of {engine} has for cairn the option "
                                      f"{', '.join(map(repr, unknown))}; want {', '.join([*_KEYS, *theirs])}",
                                      ("storage.options",))
        path = given.pop("path", None)
        return cls(None if path is None else address_of(path), given), own

    def open(self, model: str, names: Callable[[str], bool] | None = None, keep: int = 0) -> LazyWeights:
        """Opens the checkpoint for a model of the engine, whose configuration a recipe uses."""
        path = self._path(model)
        if "://" not in path and not os.path.exists(path):
            raise errors.NotFoundError(f"{path} does not exist: cairn loads folders, files and URLs of object storage, "
                                       "and downloads nothing from a hub", ("storage.notfound",))
        options = dict(self.options)
        own = os.path.join(model, "config.json")
        if options.get("recipe") and options.get("config") is None and os.path.isfile(own):
            options["config"] = own
        return LazyWeights(path, names=names, keep=keep, **options)

    def _path(self, model: str) -> str:
        """Returns the path of the checkpoint. If the engine changes its model later, the new path counts."""
        if self.path is None or _models.setdefault(self.path, model) != model:
            return address_of(model)
        return self.path


def each(weights: LazyWeights, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights, and closes the checkpoint at the end."""
    with weights:
        for name, tensor in weights:
            yield prefix + name, tensor
