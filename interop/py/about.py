"""The version and the features of this PyTorch."""

import glob
import importlib.util
import inspect
import io
import tempfile

import numpy
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict_saver


def versions():
    return {
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "numpy": numpy.__version__,
        "dtypes": [d for d in names() if saves(getattr(torch, d))],
        "safe_dtypes": [d for d in names() if getattr(torch, d) in safetensors.torch._TYPES.values()],
        "features": [name for name, there in features().items() if there],
    }


def names():
    """Returns the names of all dtypes, each by one of its names."""
    return sorted({str(v).removeprefix("torch.") for v in vars(torch).values() if isinstance(v, torch.dtype)})


def saves(dtype):
    """Reports whether this PyTorch saves and loads tensors of the dtype itself."""
    try:
        x = torch.zeros(32, dtype=torch.uint8).view(dtype)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        torch.load(file, weights_only=True).view(torch.uint8)
        with tempfile.TemporaryDirectory() as folder:
            dcp.save({"x": x}, checkpoint_id=folder)
            dcp.load({"x": torch.empty_like(x)}, checkpoint_id=folder)
        return True
    except BaseException:  # CheckpointException is no Exception
        return False


def features():
    return {
        "huggingface": hasattr(dcp, "HuggingFaceStorageReader"),
        "quantized": importlib.util.find_spec("torch.distributed.checkpoint.quantized_hf_storage") is not None,
        "zstd": has_zstd(),
        "fsdp-cpu": hasattr(torch.cpu.Stream, "record_event"),  # else FSDP2 shards on a CPU, but cannot train
        "rank-local": "use_collectives" in inspect.signature(dcp.save).parameters,
        "async-process": hasattr(state_dict_saver, "AsyncCheckpointerType"),
        "lightning": framework("lightning"),
        "transformers": framework("transformers") and framework("accelerate"),
        "torchdata": framework("torchdata"),
        "mypy": framework("mypy"),
        "vllm": framework("vllm"),
        "sglang": framework("sglang"),
        **{path.split("/")[2]: True for path in glob.glob("/opt/*/installed")},  # by ../beside
    }


def framework(name):
    """Reports whether a package is there, or where setup installs it in a Debian system."""
    beside = [*glob.glob(f"/opt/frameworks/lib/python*/site-packages/{name}"),
              *glob.glob(f"/opt/serving/lib/python*/site-packages/{name}"), *glob.glob(f"/opt/serving/{name}/{name}")]
    return bool(beside) or importlib.util.find_spec(name) is not None


def has_zstd():
    try:
        from torch.distributed.checkpoint._extension import ZStandard
    except ImportError:
        return False
    return ZStandard.is_available()
