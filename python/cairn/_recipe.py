"""Recipes, which show a checkpoint in another form: what messages and commands say of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from cairn._address import address_of
from cairn._messages import RecipeMessage
from cairn.errors import OptionsError

Config = str | os.PathLike[str] | Mapping[str, Any] | None

# A name of a recipe of cairn. Everything else is the path of a file.
_NAME = re.compile(r"auto|megatron-optimizer|([A-Za-z_]\w*-)?to-[A-Za-z_]\w*(/[^/.]*)?", re.ASCII)


def message(recipe: str | os.PathLike[str] | None, config: Config, reverse: bool,
            variables: Mapping[str, Any] | None) -> RecipeMessage | None:
    """Returns the field "recipe" of a message to a saver process, or None for a checkpoint as it is."""
    if recipe is None:
        if config is not None or reverse or variables:
            raise OptionsError("config, reverse and variables are for a recipe: name it, such as "
                               "recipe='hf-to-titan/llama'", ("storage.options",))
        return None
    out: RecipeMessage = {"name": name_of(recipe)}
    if reverse:
        out["reverse"] = True
    if isinstance(config, Mapping):
        out["config"] = contents(config)
    elif config is not None:
        out["config"] = address_of(config)
    if variables:
        out["set"] = {name: json.loads(value_of(name, v)) for name, v in variables.items()}
    return out


def name_of(recipe: str | os.PathLike[str]) -> str:
    """Returns the name of a recipe of cairn, or the absolute path of a file."""
    if isinstance(recipe, str) and _NAME.fullmatch(recipe):
        return recipe
    return address_of(recipe)


def checked(recipe: RecipeMessage | None) -> RecipeMessage | None:
    """Returns a recipe whose assumptions about the contents of the checkpoint are checked too."""
    return None if recipe is None else {**recipe, "check": True}


def contents(config: Mapping[str, Any]) -> dict[str, object]:
    """Returns a configuration without what JSON lacks: transformers may have dtypes and infinities in it."""
    try:
        text = json.dumps(dict(config), default=str)
    except (TypeError, ValueError) as e:  # keys that are tuples, or a dict that contains itself
        raise OptionsError(f"config is not a configuration that JSON can hold: {e}", ("storage.options",)) from None
    parsed: dict[str, object] = json.loads(text, parse_constant=lambda _: None)
    return parsed


def value_of(name: str, value: Any) -> str:
    """Returns the JSON text of the value of a variable."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise OptionsError(f"the variable {name} of the recipe is {value!r}; want a number, a boolean, a string or a "
                           "list of them", ("recipe.variable",)) from None
