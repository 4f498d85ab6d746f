"""Saves by PyTorch and safetensors. Each function returns the digests of the saved state."""

import json
import os

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import digest
import sharding
import states


def checkpoint(path, kind, dtypes, zstd=False, **options):
    """Saves with dcp.save by one process."""
    state = states.make(kind, dtypes)
    want = digest.of_state(state)
    if zstd:
        from torch.distributed.checkpoint._extension import ZStandard

        options["_extensions"] = [ZStandard()]
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **options))
    return want


def lazy_views(path):
    """Saves tensors with bytes that are not their values: PyTorch records the pending operation."""
    state = states.lazy_views()
    dcp.save(state, checkpoint_id=path)
    return digest.of_state(state)


def own_class(path):
    state = states.with_own_class()
    dcp.save(state, checkpoint_id=path)
    return digest.of_state(state)


def inside_tuples(path):
    state = states.with_tensors_inside()
    dcp.save(state, checkpoint_id=path)
    return sorted(state)


def one_dtype(path, dtype):
    dcp.save({"x": states.tensor("x", (2, 4), dtype)}, checkpoint_id=path)


def file(path, kind, dtypes, new=True, protocol=2):
    """Saves with torch.save."""
    state = states.make(kind, dtypes)
    torch.save(state, path, _use_new_zipfile_serialization=new, pickle_protocol=protocol)
    return digest.of_file(state)


def module(path, new=True):
    """Saves a module itself, not its state_dict."""
    net = states.trained()[0]
    torch.save(net, path, _use_new_zipfile_serialization=new)
    return digest.of_items({"value._modules." + name: x for name, x in net.state_dict().items()})


def tied(path):
    """Saves one tensor under two names."""
    w = states.tensor("tied", (300, 40))
    torch.save({"embed": w, "head": w, "other": states.tensor("other", (3,))}, path)


def safe_file(path, dtypes):
    """Saves one file with safetensors."""
    state = states.flat(dtypes)
    os.makedirs(path)
    safetensors.torch.save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt", "note": "ü"})
    return digest.of_items(state)


def huggingface(path, dtypes, files=1):
    """Saves whole tensors with HuggingFaceStorageWriter."""
    state = states.flat(dtypes)
    places = {name: i % files + 1 for i, name in enumerate(sorted(state))}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path, fqn_to_index_mapping=places if files > 1
                                                                else None))
    return digest.of_items(state)


def quantized(path):
    """Saves weights of 8-bit floats with a scale for each block, as they are published."""
    weight = torch.randn(300, 260, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 3, generator=torch.Generator().manual_seed(2)) + 0.01
    state = {"layer.weight": weight, "layer.weight_scale_inv": scale, "norm.weight": torch.arange(7.0)}
    os.makedirs(path)
    safetensors.torch.save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": dict.fromkeys(state, "model.safetensors")}, f)


def sharded_state(dtypes):
    """Makes a state that is cut in every way over the ranks there are."""
    n = dist.get_world_size()
    line = init_device_mesh("cpu", (n,), mesh_dim_names=("all",))
    grid = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))

    def cut(name, shape, mesh, *placements, dtype="float32"):
        return sharding.cut(states.tensor(name, shape, dtype), mesh, placements)

    state = {
        "rows": cut("rows", (8, 6), line, Shard(0)),
        "uneven_rows": cut("uneven_rows", (4 * n + 3, 5), line, Shard(0), dtype="bfloat16"),
        "too_few_rows": cut("too_few_rows", (n - 1, 4), line, Shard(0)),
        "columns": cut("columns", (6, 8), line, Shard(1), dtype="float64"),
        "uneven_columns": cut("uneven_columns", (3, 2 * n + 1, 2), line, Shard(1), dtype="int64"),
        "replicated": cut("replicated", (5, 3), line, Replicate()),
        "vector": cut("vector", (17,), line, Shard(0), dtype="uint8"),
        "boxes": cut("boxes", (9, 10), grid, Shard(0), Shard(1)),
        "dp_only": cut("dp_only", (6, 7), grid, Shard(0), Replicate()),
        "tp_only": cut("tp_only", (7, 6), grid, Replicate(), Shard(1), dtype="float16"),
        "twice": cut("twice", (13, 2), grid, Shard(0), Shard(0)),
        "large": cut("large", (512, 300), line, Shard(0)),
        "plain": states.tensor("plain", (4, 4)),
        "scalar": states.tensor("scalar", ()),
        "step": 12,
        "nested": {"list": [cut("in_list", (n + 1, 2), line, Shard(0)), "text"]},
    }
    state["of"] = {d: cut("of " + d, (2 * n + 1, 3), line, Shard(0), dtype=d) for d in dtypes}
    return state


def sharded(path, dtypes, collectives=True, **options):
    """Saves with dcp.save by several ranks."""
    state = sharded_state(dtypes)
    want = digest.of_state(state)
    more = {} if collectives else {"use_collectives": False}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **options), **more)
    return want


def huggingface_sharded(path, consolidate=False):
    """Saves shards with HuggingFaceStorageWriter by several ranks."""
    state = {k: v for k, v in sharded_state([]).items() if isinstance(v, torch.Tensor) and v.dim() > 0}
    # PyTorch itself consolidates neither integers nor, rightly, tensors of no dimension.
    state = {"model." + k: v for k, v in state.items() if v.is_floating_point()}
    want = digest.of_items(state)
    writer = dcp.HuggingFaceStorageWriter(path, save_distributed=True, enable_consolidation=consolidate)
    dcp.save(state, storage_writer=writer)
    return want
