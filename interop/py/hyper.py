"""Reads a checkpoint of hyper_parallel by its metadata, without hyper_parallel.

The classes of the metadata are stood in for by records of the same names, so
this checks that the pickle names the right ones and fills them.
"""

import functools
import os
import pickle

import safetensors.torch
import torch

import digest

PACKAGES = ("hyper_parallel.core.checkpoint.", "hyper_parallel.core.distributed_checkpoint.")
CLASSES = {
    "metadata": ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
                 "ChunkStorageMetadata", "MetadataIndex"),
    "storage": ("StorageInfo",),
    "filesystem_storage": ("StorageInfo",),
}


class Record:
    def __setstate__(self, state):
        self.__dict__.update(state)


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        for package in PACKAGES:
            if module.startswith(package):
                if name not in CLASSES.get(module.removeprefix(package), ()):
                    raise pickle.UnpicklingError(f"hyper_parallel has no {module}.{name}")
                return type(name, (Record,), {})
        if (module, name) == ("torch", "Size"):
            return torch.Size
        raise pickle.UnpicklingError(f"the metadata names {module}.{name}")


def read(path):
    with open(os.path.join(path, ".metadata"), "rb") as f:
        metadata = Unpickler(f).load()
    items = {}
    for name, m in metadata.state_dict_metadata.items():
        places = {i.offset: (i, s) for i, s in metadata.storage_data.items() if i.fqn == name}
        if type(m).__name__ == "BytesStorageMetadata":
            items[name] = value(path, places[()][1])
        else:
            items[name] = whole(path, name, m, places)
    return digest.of_items(items)


def value(path, place):
    with open(os.path.join(path, place.relative_path), "rb") as f:
        f.seek(place.offset)
        data = f.read(place.length)
    return pickle.loads(data)


@functools.cache
def tensors(file):
    """Reads a file by its content: some versions write one of torch.save under that name."""
    with open(file, "rb") as f:
        if f.read(2) == b"PK":
            f.seek(0)
            return torch.load(f, weights_only=True)  # by its name it would be taken for one of safetensors
    return safetensors.torch.load_file(file)


def whole(path, name, m, places):
    out = torch.zeros(tuple(m.size), dtype=getattr(torch, m.properties.dtype.removeprefix("torch.")))
    filled = 0
    for chunk in m.chunks:
        place = places[tuple(chunk.offsets)][1]
        part = tensors(os.path.join(path, place.relative_path))[getattr(place, "tensor_key", None) or name]
        assert part.dtype == out.dtype and part.shape == tuple(chunk.sizes), f"{name}: {part.dtype} {part.shape}"
        box = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes))
        out[box] = part
        filled += part.numel()
    assert filled == out.numel(), f"{name}: {filled} of {out.numel()} elements"
    return out
