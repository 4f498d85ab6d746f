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
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

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
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:  # before vLLM 0.17
        return
    WeightTransferEngineFactory.register_engine("cairn", "cairn.vllm._transfer", "Engine")


class Loader(DefaultModelLoader):
    """The load format "cairn" of vLLM.

    ``weights`` are the weights of the last load, whose ``bytes_read`` counts what this rank has read.
    """

    def __init__(self, load_config: Any):
        BaseModelLoader.__init__(self, load_config)
        self.source = Source.from_options(load_config.model_loader_extra_config, "model_loader_extra_config")
        self.local_expert_ids = None
        self.weights: LazyWeights | None = None

    def download_model(self, model_config: Any) -> None:
        """Opens the checkpoint, and downloads nothing: weights are read from where they are."""
        self.source.open(_model(model_config)).close()

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the weights of a model. ValueError: the checkpoint lacks some of them."""
        begun = time.perf_counter()
        loaded = model.load_weights(self.get_all_weights(model_config, model))
        if model_config.quantization is None and loaded is not None:
            self.track_weights_loading(model, loaded)
        assert self.weights is not None
        _log.info("cairn read %.2f GB for %.2f GB of weights of %s, in %.1f seconds", self.weights.bytes_read / 1e9,
                  self.weights.bytes / 1e9, self.weights.path, time.perf_counter() - begun)

    def get_all_weights(self, model_config: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the names and tensors of the checkpoint. The tensors are read as they are copied."""
        self.weights = self.source.open(_model(model_config), _wanted(model_config))
        yield from each(self.weights)
        for other in getattr(model, "secondary_weights", ()):
            yield from each(Source(None, {}).open(other.model_or_path), other.prefix)


def _model(model_config: Any) -> str:
    """Returns where vLLM expects the weights of a model."""
    return getattr(model_config, "model_weights", None) or model_config.model


def _wanted(model_config: Any) -> Callable[[str], bool] | None:
    """Returns which tensors this rank loads, or None for all: with expert parallelism, experts of other ranks are left
    out if vLLM is told to."""
    from vllm.config import get_current_vllm_config

    parallel = get_current_vllm_config().parallel_config
    if not (getattr(parallel, "enable_ep_weight_filter", False) and parallel.enable_expert_parallel and
            model_config.is_moe) or parallel.enable_eplb:
        return None
    from vllm.distributed.parallel_state import get_ep_group
    from vllm.model_executor.model_loader.ep_weight_filter import compute_local_expert_ids, should_skip_weight

    group = get_ep_group()
    local = compute_local_expert_ids(model_config.get_num_experts(), group.world_size, group.rank_in_group,
                                     placement=parallel.expert_placement_strategy)
    return lambda name: not should_skip_weight(name, local)
