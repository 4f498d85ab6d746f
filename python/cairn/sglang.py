"""A loader for SGLang.

In Python, the class is the load format::

    engine = sglang.Engine(model_path="./Llama-3.1-8B", load_format=cairn.sglang.Loader)

If this package and an SGLang with plugins are installed together, SGLang calls :func:`register` in each of its
processes. Then ``--load-format cairn`` loads any checkpoint that cairn reads::

    python -m sglang.launch_server --model-path ./Llama-3.1-8B --load-format cairn
    python -m sglang.launch_server --model-path ./Llama-3.1-8B --load-format cairn \\
        --model-loader-extra-config '{"path": "run/step-1000", "recipe": "titan-to-hf/llama"}'

and a server takes published versions::

    POST /update_weights_from_disk {"model_path": "run/weights/step-000000017", "load_format": "cairn"}

Each rank reads its own part of each tensor, verified. docs/serving.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader

from cairn._arena import default_ceiling
from cairn.torch._serving import Source, each

if TYPE_CHECKING:
    from cairn.torch import LazyWeights

_first: Source | None = None  # of the first loader of this process
_registered = False


class Loader(DefaultModelLoader):
    """Loads the weights of a model of SGLang. SGLang's option model_loader_extra_config has the options.

    ``weights`` are the weights of the last load, whose ``bytes_read`` counts what this rank has read.
    """

    def __init__(self, load_config: Any):
        global _first
        self.source, own = Source.from_config(load_config, "SGLang")
        super().__init__(own)
        self.keep = 0
        if not load_config.model_loader_extra_config and _first is not None:
            # An update of SGLang's weights has no options, and means those of the model. More may follow.
            self.source, self.keep = _first, default_ceiling()
        _first = _first or self.source
        self.weights: LazyWeights | None = None

    def download_model(self, model_config: Any) -> None:
        """Opens the checkpoint, and downloads nothing: weights are read from where they are."""
        self.source.open(model_config.model_path).close()

    def _get_weights_iterator(self, source: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the names and tensors of a source of SGLang. The tensors are read as they are copied."""
        if source.model_config is None:  # weights beside those of the model
            return each(Source(None, {}).open(source.model_or_path), source.prefix)
        self.weights = self.source.open(source.model_or_path, keep=self.keep)
        pairs = each(self.weights)
        if (draft := self.load_config.draft_model_idx) is not None:
            return self._filter_mtp_weights(pairs, source.prefix, draft)
        return ((source.prefix + name, tensor) for name, tensor in pairs)


def register() -> None:
    """Registers the load format "cairn". SGLang calls it, perhaps several times."""
    global _registered
    if _registered:
        return
    _registered = True
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig.__post_init__", _resolve, HookType.BEFORE)
    from sglang.srt import server_args

    server_args.add_load_format_choices(["cairn"])


def _resolve(config: Any) -> None:
    """Makes the load format "cairn" of a LoadConfig the class of the loader, which SGLang knows what to do with."""
    if config.load_format == "cairn":
        config.load_format = Loader
