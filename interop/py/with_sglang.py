"""SGLang with the loader of cairn: on a CPU, without its kernels, so the weights are only loaded."""

import importlib.machinery
import os
import sys
from unittest import mock

import torch.distributed as dist
import transformers

for name in ("AutoProcessor", "PretrainedConfig", "ProcessorMixin"):
    getattr(transformers, name)  # before they see a torchvision
register_config = transformers.AutoConfig.register
# This transformers is newer than SGLang wants, and knows some of its models.
transformers.AutoConfig.register = lambda *args, **kwargs: register_config(*args, **{**kwargs, "exist_ok": True})
# torchvision is not installed. SGLang imports it, and does not use it here.
for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = mock.MagicMock(__spec__=importlib.machinery.ModuleSpec(name, None), __path__=[])

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES  # noqa: E402
from sglang.srt.configs.device_config import DeviceConfig  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.distributed import parallel_state  # noqa: E402
from sglang.srt.layers.dp_attention import initialize_dp_attention  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater  # noqa: E402
from sglang.srt.model_loader.loader import get_model_loader  # noqa: E402
from sglang.srt.models import llama  # noqa: E402, F401 -- imported before the forks
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

import cairn  # noqa: E402
import cairn.sglang  # noqa: E402
from with_weights import all_ranks, differences, first_makes, model_folder, params, published  # noqa: E402

cairn.sglang.register()
cairn.sglang.register()  # it is repeatable
HookRegistry.apply_hooks()


def start(folder):
    """Makes the parallel groups of all ranks, once."""
    if parallel_state._WORLD is not None:
        return
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    args = ServerArgs(model_path=folder, device="cpu", skip_tokenizer_init=True, tp_size=ranks)
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=rank))
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.init_distributed_environment(ranks, rank, local_rank=rank, backend="gloo")
    parallel_state.initialize_model_parallel()
    initialize_dp_attention(server_args=args)


def built(folder, load_format, extra=None):
    """Builds the model and loads its weights."""
    start(folder)
    config = ModelConfig(folder, dtype="bfloat16")
    loader = get_model_loader(LoadConfig(load_format=load_format, model_loader_extra_config=extra or {}), config)
    return loader, loader.load_model(model_config=config, device_config=DeviceConfig("cpu")), config


@all_ranks
def loaded(folder):
    """Compares the parameters of a model with those that SGLang's own loader gives, from two formats."""
    hf, native = os.path.join(folder, "hf"), os.path.join(folder, "native")
    first_makes(lambda: (model_folder(hf, 1), cairn.convert(hf, native, format="native")))
    want = params(built(hf, "safetensors")[1])
    found = [] if "cairn" in LOAD_FORMAT_CHOICES else ["the command does not know the load format"]
    for load_format, extra in ((cairn.sglang.Loader, {}), ("cairn", {"path": native})):
        loader, model, _ = built(hf, load_format, extra)
        if not isinstance(loader, cairn.sglang.Loader):
            found.append(f"the loader is {loader}")
        found += differences(want, params(model))
        own = sum(p.nbytes for p in model.parameters())
        if loader.weights.bytes > 1.05 * own:
            found.append(f"{loader.weights.bytes} bytes were read for {own} bytes of parameters")
    try:
        built(hf, "cairn", {"pth": 1})
        found.append("an unknown option is accepted")
    except cairn.OptionsError:
        pass
    return found


@all_ranks
def updated(folder):
    """Loads published versions into a model by SGLang's update from a disk."""
    hf, run = os.path.join(folder, "hf"), os.path.join(folder, "run")
    folders = {v: os.path.join(folder, f"v{v}") for v in (1, 2)}

    first_makes(lambda: (model_folder(hf, 0), *(model_folder(path, v) for v, path in folders.items())))
    published(run, 2)
    want = {v: params(built(path, "safetensors")[1]) for v, path in folders.items()}
    _, model, config = built(hf, "cairn")
    updater = WeightUpdater(
        tp_rank=0, device="cpu", gpu_id=0, model_config=config, custom_weight_loaders={}, get_model=lambda: model,
        update_model_fields=mock.Mock(), recapture_cuda_graph=mock.Mock(), get_model_runner=mock.Mock())
    found = []
    for v in (1, 2, 1):
        ok, said = updater.update_weights_from_disk(cairn.Run(run).path_of(v), "cairn")
        if not ok:
            found.append(f"version {v}: {said}")
        found += [f"version {v}: {d}" for d in differences(want[v], params(model))]
    ok, said = updater.update_weights_from_disk(os.path.join(run, "step-000000007"), "cairn")
    if ok or "does not exist" not in said:
        found.append(f"a version that does not exist: {said}")
    return found
