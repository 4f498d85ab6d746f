"""vLLM with the loader of cairn: on a CPU, without its kernels, so the weights are only loaded."""

import contextlib
import os
import subprocess
import sys

import tomllib
import torch
import torch.distributed as dist
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()  # before anything asks which platform this is

from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.config.load import LoadConfig  # noqa: E402
from vllm.config.weight_transfer import WeightTransferConfig  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader import base_loader, get_model_loader  # noqa: E402
from vllm.model_executor.model_loader.reload.inplace import reload_weights  # noqa: E402
from vllm.model_executor.models import llama  # noqa: E402, F401 -- imported before the forks

import cairn  # noqa: E402
from cairn.vllm import register  # noqa: E402
from with_weights import (  # noqa: E402
    all_ranks,
    differences,
    experts_folder,
    first_makes,
    model_folder,
    params,
    published,
    save_weights,
    weights,
)

# The wheel is for GPUs. Without one it builds models if no code asks for an accelerator or for kernels.
torch.accelerator.empty_cache = lambda: None
torch.accelerator.synchronize = lambda *_: None
base_loader.process_weights_after_loading = lambda *_: None
register()
register()  # it is repeatable

@contextlib.contextmanager
def engine(folder, load_format, extra=None, **more):
    """Yields the configuration of an engine, with the parallel groups of all ranks."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    args = EngineArgs(model=folder, tokenizer=folder, skip_tokenizer_init=True, load_format=load_format,
                      model_loader_extra_config=extra or {}, tensor_parallel_size=ranks, enforce_eager=True,
                      dtype="bfloat16", distributed_executor_backend="external_launcher" if ranks > 1 else None, **more)
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        if parallel_state._WORLD is None:
            parallel_state.init_distributed_environment(ranks, rank, backend="gloo", local_rank=rank)
            parallel_state.initialize_model_parallel(ranks)
        yield config


def built(config):
    """Builds the model and loads its weights."""
    loader = get_model_loader(config.load_config)
    return loader, loader.load_model(vllm_config=config, model_config=config.model_config)


def stock(folder):
    """Returns the parameters that vLLM's own loader gives."""
    with engine(folder, "safetensors") as config:
        return params(built(config)[1])


@all_ranks
def loaded(folder):
    """Compares the parameters of a model with those that vLLM's own loader gives, from two formats."""
    hf, native = os.path.join(folder, "hf"), os.path.join(folder, "native")
    first_makes(lambda: (model_folder(hf, 1), cairn.convert(hf, native, format="native")))
    want = stock(hf)
    found = []
    for extra in ({}, {"path": native}):
        with engine(hf, "cairn", extra) as config:
            loader, model = built(config)
        found += differences(want, params(model))
        own = sum(p.nbytes for p in model.parameters())
        if loader.weights.bytes > 1.05 * own:
            found.append(f"{loader.weights.bytes} bytes were read for {own} bytes of parameters")
    return found


@all_ranks
def experts(folder):
    """Loads a mixture of experts. Each rank has some of the experts, and does not read the others."""
    path = os.path.join(folder, "experts")
    first_makes(lambda: experts_folder(path, 1))
    with engine(path, "safetensors", enable_expert_parallel=True) as config:
        want = params(built(config)[1])
    with engine(path, "cairn", enable_expert_parallel=True, enable_ep_weight_filter=True) as config:
        loader, model = built(config)
    found = differences(want, params(model))
    numbers = {int(n.split(".experts.")[1].split(".")[0]) for n in loader.weights.names() if ".experts." in n}
    if numbers != set(range(4 * dist.get_rank(), 4 * dist.get_rank() + 4)):
        found.append(f"the experts {sorted(numbers)} are read")
    return found


def plugged(folder):
    """Has vLLM find the plugin by itself, as in an installed package."""
    with open(os.path.join("py", "pyproject.toml"), "rb") as f:
        groups = tomllib.load(f)["project"]["entry-points"]
    info = os.path.join(folder, "cairn_ckpt-1.dist-info")
    os.makedirs(info)
    with open(os.path.join(info, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: cairn-ckpt\nVersion: 1\n")
    with open(os.path.join(info, "entry_points.txt"), "w") as f:
        f.writelines(f"[{group}]\n{name} = {value}\n" for group, some in groups.items() for name, value in some.items())
    code = """if True:
        import vllm.platforms
        from vllm.platforms.cpu import CpuPlatform
        vllm.platforms._current_platform = CpuPlatform()
        import vllm
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        from vllm.config.load import LoadConfig
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
        print(type(get_model_loader(LoadConfig(load_format="cairn"))).__module__)
        print(WeightTransferEngineFactory._registry["cairn"]().__module__)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.abspath(folder), *sys.path])}
    said = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True, timeout=300)
    want = ["cairn.vllm", "cairn.vllm._transfer"]
    return [] if said.stdout.split()[-2:] == want else [f"{said.stdout}\n{said.stderr}"]


@all_ranks
def with_recipe(folder):
    """Loads a checkpoint with the names of torchtitan."""
    hf, titan = os.path.join(folder, "hf"), os.path.join(folder, "titan")
    first_makes(lambda: (model_folder(hf, 1), cairn.convert(hf, titan, "hf-to-titan/llama", format="native")))
    want = stock(hf)
    extra = {"path": titan, "recipe": "titan-to-hf/llama"}
    with engine(hf, "cairn", extra) as config:
        return differences(want, params(built(config)[1]))


@all_ranks
def reloaded(folder):
    """Reloads a model from another folder."""
    a, b = os.path.join(folder, "a"), os.path.join(folder, "b")
    first_makes(lambda: (model_folder(a, 1), model_folder(b, 2)))
    want = stock(b)
    with engine(a, "cairn", {"path": a}) as config:
        _, model = built(config)
        before = params(model)
        reload_weights(config, model, None, b, True)
    found = differences(want, params(model))
    if not differences(want, before):
        found.append("both folders have the same weights")
    return found


@all_ranks
def transferred(folder):
    """Loads published versions into a running model."""
    hf, run = os.path.join(folder, "hf"), os.path.join(folder, "run")
    folders = {v: os.path.join(folder, f"v{v}") for v in (1, 2)}

    first_makes(lambda: (model_folder(hf, 0), *(model_folder(path, v) for v, path in folders.items())))
    published(run, 3)
    first_makes(lambda: damage(cairn.Run(run).path_of(3)))
    want = {v: stock(path) for v, path in folders.items()}
    found = []
    with engine(hf, "cairn") as config:
        _, model = built(config)
        transfer = WeightTransferEngineFactory.create_engine(WeightTransferConfig(backend="cairn"), config,
                                                             torch.device("cpu"), model)
        transfer.init_transfer_engine(transfer.parse_init_info({"run": run}))
        for v in (1, 2, 1):
            transfer.start_weight_update()
            transfer.update_weights({"version": v})
            transfer.finish_weight_update()
            found += [f"version {v}: {d}" for d in differences(want[v], params(model))]
        if transfer.version != 1:
            found.append(f"the version is {transfer.version}")
        for v, error in ((3, cairn.CorruptError), (7, cairn.NotFoundError)):
            transfer.start_weight_update()
            try:
                transfer.update_weights({"version": v})
                found.append(f"version {v} is loaded")
            except error:
                pass
            if transfer.version != 1:
                found.append(f"after version {v}, the version is {transfer.version}")
            found += [f"after version {v}: {d}" for d in differences(want[1], params(model))]
        transfer.start_weight_update()
        transfer.update_weights({"version": 2})
        transfer.finish_weight_update()
        found += [f"after errors: {d}" for d in differences(want[2], params(model))]
        try:
            transfer.parse_update_info({"number": 7})
            found.append("a wrong name is accepted")
        except ValueError:
            pass
        transfer.shutdown()
    return found


def damage(path):
    """Changes bytes in the middle of the largest file of a checkpoint."""
    file = max((os.path.join(path, name) for name in os.listdir(path)), key=os.path.getsize)
    with open(file, "r+b") as f:
        f.seek(os.path.getsize(file) // 2)
        f.write(b"damage" * 100)


def refused(folder):
    """Returns the errors of options and paths that are wrong."""
    model_folder(folder, 1)
    found = []
    with engine(folder, "cairn"):
        try:
            get_model_loader(LoadConfig(load_format="cairn", model_loader_extra_config={"pth": "x"}))
            found.append("an unknown option is accepted")
        except cairn.OptionsError as e:
            if "'pth'" not in str(e):
                found.append(f"the error does not name the option: {e}")
    with engine(folder, "cairn", {"path": "/nowhere/model"}) as config:
        try:
            built(config)
            found.append("a path that does not exist is accepted")
        except cairn.NotFoundError:
            pass
    some = weights(1)
    del some["model.norm.weight"]
    save_weights(folder, some)
    with engine(folder, "cairn") as config:
        try:
            built(config)
            found.append("a checkpoint that lacks a parameter is accepted")
        except ValueError as e:
            if "model.norm.weight" not in str(e):
                found.append(f"the error does not name the parameter: {e}")
    return found
