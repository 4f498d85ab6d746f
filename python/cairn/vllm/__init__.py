"""A plugin for vLLM: a load format, and a backend of its weight transfer.

If this package and vLLM are installed together, vLLM calls :func:`register` in each of its processes. Then
``--load-format cairn`` loads any checkpoint that cairn reads::

    vllm serve ./Llama-3.1-8B --load-format cairn
    vllm serve ./Llama-3.1-8B --load-format cairn \\
        --model-loader-extra-config '{"path": "run/step-1000", "recipe": "titan-to-hf/llama"}'

The second reads the weights of a training from its checkpoint, and only the configuration and the tokenizer from the
folder of the model. Each rank reads its own part of each tensor, verified. docs/serving.md describes it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

from cairn.torch._serving import Source, each

if TYPE_CHECKING:
    from cairn.torch import LazyWeights

_log = logging.getLogger("vllm.cairn")
_registered = False


def register() -> None:
    """Registers the load format and the backend of the weight transfer. vLLM calls it, perhaps several times."""
    global _registered
    if _registered:
        return
    _registered = True
    register_model_loader("cairn")(Loader)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine("cairn", "cairn.vllm._transfer", "Engine")


class Loader(DefaultModelLoader):
    """The load format "cairn" of vLLM.

    ``weights`` are the weights of the last load, whose ``bytes_read`` counts what this rank has read.
    """

    def __init__(self, load_config: Any):
        self.source, own = Source.from_config(load_config, "vLLM", theirs=("enable_weights_track",))
        super().__init__(own)
        self.weights: LazyWeights | None = None

    def download_model(self, model_config: Any) -> None:
        """Opens the checkpoint, and downloads nothing: weights are read from where they are."""
        self.source.open(_model(model_config)).close()

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the weights of a model. ValueError: the checkpoint lacks some of them."""
        begun = time.perf_counter()
        super().load_weights(model, model_config)
        assert self.weights is not None
        _log.info("cairn read %.2f GB for %.2f GB of weights of %s, in %.1f seconds", self.weights.bytes_read / 1e9,
                  self.weights.bytes / 1e9, self.weights.path, time.perf_counter() - begun)

    def get_all_weights(self, model_config: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the names and tensors of the checkpoint. The tensors are read as they are copied."""
        self.counter_before_loading_weights = time.perf_counter()
        self._init_ep_weight_filter(model_config)  # also in a reload, which does not call load_weights
        self._init_mm_encoder_only_weight_filter(model, model_config)
        self.weights = self.source.open(_model(model_config),
                                        self._wanted(getattr(model, "is_unused_checkpoint_weight", None)))
        yield from each(self.weights)
        for other in getattr(model, "secondary_weights", ()):
            path = os.path.join(other.model_or_path, other.subfolder or "")
            yield from each(Source(None, {}).open(path, self._wanted(other.is_unused_weight)), other.prefix)

    def _wanted(self, is_unused: Callable[[str], bool] | None) -> Callable[[str], bool]:
        """Returns a function that says whether this rank loads a tensor.

        vLLM's rules leave out experts of other ranks, the language model of an encoder, and what the model does not
        use. For files, vLLM applies the last two to whole files. The names of a checkpoint are known before they are
        read, so they apply to each tensor here.
        """
        prefixes, mapper = self._encoder_only_lm_prefixes, self._encoder_only_weights_mapper

        def wanted(name: str) -> bool:
            if should_skip_weight(name, self.local_expert_ids) or (is_unused is not None and is_unused(name)):
                return False
            if prefixes is None:
                return True
            mapped = name if mapper is None else mapper.map_name(name)
            return mapped is None or not mapped.startswith(prefixes)

        return wanted


def _model(model_config: Any) -> str:
    """Returns where vLLM expects the weights of a model."""
    return getattr(model_config, "model_weights", None) or model_config.model
