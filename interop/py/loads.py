"""Loads by PyTorch and safetensors. Each function returns the digests of the loaded state."""

import glob
import json
import os

import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import digest
import sharding
import states


def reader_of(path, huggingface):
    return dcp.HuggingFaceStorageReader(path) if huggingface else dcp.FileSystemReader(path)


def preallocated(path, huggingface=False):
    """Loads everything into tensors that are there already."""
    reader = reader_of(path, huggingface)
    state = {name: blank(m) for name, m in reader.read_metadata().state_dict_metadata.items()}
    dcp.load(state, storage_reader=reader)
    return digest.of_items(state)


def dequantized(path):
    """Loads quantised weights as the numbers they stand for."""
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

    state = {"layer.weight": torch.zeros(300, 260), "norm.weight": torch.zeros(7)}
    dcp.load(state, storage_reader=QuantizedHuggingFaceStorageReader(path))
    return digest.of_items(state)


def blank(m):
    return torch.zeros(m.size, dtype=m.properties.dtype) if isinstance(m, TensorStorageMetadata) else None


def resharded(path, huggingface=False, reader=None):
    """Loads everything into DTensors of other shardings, by all ranks."""
    reader = reader or reader_of(path, huggingface)
    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    ways = [(Shard(0),), (Shard(1),), (Replicate(),)]
    state = {}
    for i, (name, m) in enumerate(sorted(reader.read_metadata().state_dict_metadata.items())):
        x = blank(m)
        if x is not None and x.numel() > 0 and x.dim() > 1:
            x = sharding.cut(x, mesh, ways[i % 3])
        elif x is not None and x.dim() == 1 and x.numel() > 0:
            x = sharding.cut(x, mesh, ways[2 * (i % 2)])
        state[name] = x
    dcp.load(state, storage_reader=reader)
    return digest.of_items(state)


def rank_local(path):
    """Loads the items of each rank's own metadata: rows of one tensor, and all of the others."""
    reader = dcp.FileSystemReader(path)
    described = reader.read_metadata(rank=dist.get_rank()).state_dict_metadata
    state = {name: blank(m) for name, m in described.items()}
    state["rows"] = sharding.cut(state["rows"], init_device_mesh("cpu", (dist.get_world_size(),)), (Shard(0),))
    dcp.load(state, storage_reader=reader)
    return digest.of_items(state)


def properties_differ(path, want):
    """Says which tensors have another requires_grad or memory format than wanted."""
    described = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    got = {name: [m.properties.requires_grad, str(m.properties.memory_format)] for name, m in described.items()}
    want = {name: [grad, "torch." + word] for name, (grad, word) in want.items()}
    return digest.differences(want, got, "properties")


def rebuilt(path):
    """Loads a checkpoint without a state: returns the nested state that it holds."""
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(),
                     no_dist=True)
    return state


def all_of(path):
    return digest.of_state(rebuilt(path))


def same_as(path, original):
    """Says where two checkpoints differ, as PyTorch loads them."""
    return digest.differences(rebuilt(original), rebuilt(path))


def same_as_state(path, kind, dtypes):
    """Returns the differences between a file of torch.save and the state, but for details that names do not keep."""
    return digest.differences(by_names(states.make(kind, dtypes)), torch.load(path, weights_only=False))


def by_names(v):
    """Returns a state as its names make it: dicts of one kind, no parameters."""
    if isinstance(v, dict):
        return {k: by_names(x) for k, x in v.items()}
    return v.data if isinstance(v, torch.nn.Parameter) else v


def by_keys(path, keys):
    return digest.of_state(_load_state_dict_from_keys(set(keys), checkpoint_id=path))


def to_file(path, file):
    """Has PyTorch make a file of torch.save from a checkpoint."""
    dcp_to_torch_save(path, file)
    return digest.of_state(torch.load(file, weights_only=False))


def blank_model():
    net = states.model()
    for p in net.parameters():
        torch.nn.init.zeros_(p)
    return net


def into_optimizer(path):
    """Resumes a training and says where it goes on otherwise than the real one."""
    net = blank_model()
    opt = states.optimizer(net)
    weights, moments = get_state_dict(net, opt)
    state = {"model": weights, "optim": moments}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(net, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
    real, real_opt = states.trained()
    found = digest.differences(real.state_dict(), net.state_dict(), "model")
    found += digest.differences(real_opt.state_dict(), opt.state_dict(), "optim")
    for seed in (11, 12):
        states.step(real, real_opt, seed)
        states.step(net, opt, seed)
    return found + digest.differences(real.state_dict(), net.state_dict(), "model after two steps")


def into_raw_optimizer(path):
    """Loads the state_dict of an optimizer from a file of torch.save."""
    real, real_opt = states.trained()
    net = blank_model()
    opt = states.optimizer(net)
    saved = torch.load(path, weights_only=True)
    net.load_state_dict(saved["model"])
    opt.load_state_dict(saved["raw_optim"])
    return digest.differences(real.state_dict(), net.state_dict(), "model") + digest.differences(
        real_opt.state_dict(), opt.state_dict(), "optim"
    )


def file(path, mmap=False):
    return digest.of_state(torch.load(path, weights_only=True, mmap=mmap))


def not_tied(path, original):
    """Says where a file differs from the original, in which embed and head are one tensor."""
    got = torch.load(path, weights_only=True)
    found = digest.differences(torch.load(original, weights_only=True), got)
    if got["embed"].untyped_storage().data_ptr() != got["head"].untyped_storage().data_ptr():
        found.append("embed and head have storages of their own")
    return found


def metadata_lacks(path, want):
    """Says which keys of __metadata__ a folder's files do not have."""
    found = []
    for name in safe_files(path):
        with safetensors.safe_open(name, framework="pt") as f:
            has = f.metadata() or {}
        found += [f"{k} is {has.get(k)!r}; want {v!r}" for k, v in want.items() if has.get(k) != v]
    return found


def safe_files(path):
    return sorted(glob.glob(os.path.join(path, "*.safetensors")))


def safe_open(path):
    """Reads every tensor of a folder, whole and by halves."""
    got = {}
    for name in safe_files(path):
        with safetensors.safe_open(name, framework="pt") as f:
            for key in f.keys():  # noqa: SIM118 -- f is not a dict
                got[key] = f.get_tensor(key)
                cut = f.get_slice(key)
                if cut.get_shape() and cut.get_shape()[0] > 1:
                    half = cut.get_shape()[0] // 2
                    joined = torch.cat([bits(cut[:half]), bits(cut[half:])])
                    assert torch.equal(joined, bits(got[key])), f"{key}: slices are not the whole"
    return digest.of_items(got)


def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8)


def load_file(path):
    """Reads the files of a folder, which its index must describe."""
    with open(os.path.join(path, "model.safetensors.index.json"), encoding="utf-8") as f:
        index = json.load(f)["weight_map"]
    got, place = {}, {}
    for name in safe_files(path):
        state = safetensors.torch.load_file(name)
        got |= state
        place |= dict.fromkeys(state, os.path.basename(name))
    assert place == index, f"the index says {index}, the files {place}"
    return digest.of_items(got)


def into_model(path):
    """Loads a folder of safetensors into a module, by its own function."""
    net = blank_model()
    for name in safe_files(path):
        missing, unexpected = safetensors.torch.load_model(net, name)
        assert not missing and not unexpected, (missing, unexpected)
    return digest.differences(states.trained()[0].state_dict(), net.state_dict(), "model")
