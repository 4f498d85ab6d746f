"""The backend "cairn" of vLLM's weight transfer: workers load versions that a trainer published."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from cairn._arena import default_ceiling
from cairn.errors import MismatchError, OptionsError
from cairn.runs import Run
from cairn.torch._job import Caught, agree, distributed
from cairn.torch._lazy import LazyWeights
from cairn.torch._serving import Source, each

_log = logging.getLogger("vllm.cairn")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The run that a trainer publishes versions to, and the recipe that gives them the names of the model."""

    run: str
    recipe: str | None = None
    config: Any = None
    reverse: bool = False
    variables: dict[str, Any] | None = None
    cache_bytes: int | None = None
    """Bytes of a version that each worker keeps in memory, so that it reads only the changes of the next one. None:
    what :func:`cairn.torch.follow` does."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The number of a published version."""

    version: int


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads published versions into the model of a worker, through the model's own weight loaders.

    The workers verify a version together before the model changes. If it is damaged or missing, the model keeps
    its weights, and all workers raise the error. Every version is loaded whole, so it can follow any other.

    ``version`` is the version that the model has, or None before the first update.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.run: Run | None = None
        self.options: dict[str, Any] = {}
        self.keep = 0
        self.version: int | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.run = Run(init_info.run)
        self.options = {} if init_info.recipe is None else {
            "recipe": init_info.recipe, "config": init_info.config, "reverse": init_info.reverse,
            "variables": init_info.variables}
        self.keep = default_ceiling() if init_info.cache_bytes is None else init_info.cache_bytes

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Verifies and loads a version."""
        begun = time.perf_counter()
        with contextlib.ExitStack() as undo:
            undo.callback(self.finish_weight_update)  # nothing is loaded, so the model gets its weights back
            weights = self._verified(update_info.version)
            undo.pop_all()
        self.version = None  # if the load fails, the model has parts of both versions
        self.model.load_weights(each(weights))
        self.version = update_info.version
        _log.info("cairn loaded version %d: read %.3f GB, in %.2f seconds", self.version, weights.bytes_read / 1e9,
                  time.perf_counter() - begun)

    def _verified(self, version: int) -> LazyWeights:
        """Opens a version and verifies it with the other workers. If that fails on any of them, it raises on all."""
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed() else (0, 1)
        weights = None
        with Caught() as caught:
            weights = self._open(version)
            weights.verify(rank, ranks)
        with contextlib.ExitStack() as undo:
            if weights is not None:
                undo.callback(weights.close)
            agree("transfer", caught.error)
            undo.pop_all()
        assert weights is not None
        return weights

    def _open(self, version: int) -> LazyWeights:
        if self.run is None:
            raise OptionsError("the run is not known: call init_weight_transfer_engine first", ("storage.options",))
        weights = Source(self.run.path_of(version), self.options).open(self.model_config.model, keep=self.keep)
        if weights.step != version:
            weights.close()
            raise MismatchError(f"{weights.path} has the step {weights.step}; want {version}", ("plan.mismatch",))
        return weights

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self.run = None
