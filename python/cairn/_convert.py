"""Conversions of checkpoints."""

from __future__ import annotations

import json
import os
import re
import tempfile
from typing import Any

from cairn import _command, _recipe
from cairn._address import address_of
from cairn._messages import RecipeMessage
from cairn.errors import CairnError, OptionsError
from cairn.reports import ConvertReport


def convert(src: str | os.PathLike[str], dst: str | os.PathLike[str], recipe: str | os.PathLike[str] | None = None, *,
            config: _recipe.Config = None, reverse: bool = False, format: str | None = None, dtype: str | None = None,
            overwrite: bool = False, adapter: str | os.PathLike[str] | None = None, dequantize: bool = False,
            **variables: Any) -> ConvertReport:
    """Writes a checkpoint again: in another format or, with a recipe, in the form of another framework.

    >>> report = cairn.convert("run/step-100", "weights.pt", dtype="bfloat16")
    >>> report.tensors, report.format
    (2, 'torch')

    recipe is a name of ``cairn recipes``, such as "hf-to-titan/llama"; without the family ("hf-to-titan") if
    the configuration of the model names it; "auto"; or the path of a file. reverse uses it backwards. config
    is the model's config.json, as a path or as a dict, such as ``model.config.to_dict()``; without it, the
    one in the folder of src is used. Other keyword arguments are values of variables of the recipe::

        cairn.convert("Llama-3.1-8B", "run/step-0", "hf-to-titan/llama", format="torchdcp")
        cairn.convert("old", "new", "mine.toml", heads=32)

    format is the format of dst. Without it, the suffix of dst (.safetensors, .pt) or the recipe decides: "hf"
    for a recipe to Hugging Face, and "torchdcp" for a recipe to a framework of PyTorch. dtype casts all
    tensors. adapter is a folder with a LoRA adapter, which is merged into src; dequantize makes numbers of
    quantised weights. Nothing is written unless the recipe uses all of src and gives all of dst; otherwise it is a
    MismatchError. A conversion that was interrupted continues when it is called again. ExistsError: there is
    a checkpoint at dst; overwrite replaces it when the new one is complete.
    """
    chosen = _recipe.message(recipe, config, reverse, variables)
    if chosen is None and variables:
        raise OptionsError(f"convert has no option {next(iter(variables))!r}", ("storage.options",))
    flags = [f"--to={format}"] if format else []
    if dtype:
        flags.append(f"--dtype={dtype}")
    if overwrite:
        flags.append("--overwrite")
    if adapter is not None:
        flags.append(f"--adapter={address_of(adapter)}")
    if dequantize:
        flags.append("--dequantize")
    with tempfile.TemporaryDirectory(prefix="cairn-") as folder:
        flags += _flags(chosen, os.path.join(folder, "config.json"))
        try:
            return ConvertReport.from_message(_command.run("convert", flags, address_of(src), address_of(dst)))
        except CairnError as e:  # here variables are arguments themselves
            raise type(e)(re.sub(r"variables={'(\w+)': (\w+)}", r"\1=\2", str(e)), e.codes) from None


def _flags(recipe: RecipeMessage | None, config: str) -> list[str]:
    """Returns the flags for a recipe. Contents of a configuration are written to the file config."""
    if recipe is None:
        return []
    flags = [f"--recipe={recipe['name']}"]
    if recipe.get("reverse"):
        flags.append("--reverse")
    given = recipe.get("config")
    if isinstance(given, dict):
        with open(config, "w", encoding="utf-8") as f:
            json.dump(given, f)
        given = config
    if given is not None:
        flags.append(f"--config={given}")
    for name, value in (recipe.get("set") or {}).items():
        flags.append(f"--set={name}={value if isinstance(value, str) else json.dumps(value)}")
    return flags
