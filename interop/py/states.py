"""The states that are saved. Each call of a function makes the same one."""

import collections
import datetime
import io
import pathlib
import pickle
import zlib

import numpy
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict


def make(kind, dtypes):
    return {"tensors": tensors, "nested": nested, "objects": objects, "training": training, "all": everything,
            "safe": safe, "flat": flat}[kind](dtypes)


def everything(dtypes):
    return {name: make(name, dtypes) for name in ("tensors", "nested", "objects", "training")}


def safe(dtypes):
    """Everything that PyTorch itself loads with weights_only=True."""
    return everything(dtypes) | {"objects": {k: v for k, v in objects(dtypes).items() if loads_safely(v)}}


def loads_safely(v):
    file = io.BytesIO()
    torch.save(v, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True


def tensor(name, shape, dtype="float32"):
    """Returns a tensor of random bits that depend on the name alone."""
    dtype = getattr(torch, dtype)
    bits = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    n = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype == torch.bool else 256
    return torch.randint(0, high, (n,), dtype=torch.uint8, generator=bits).view(dtype).reshape(shape)


def flat(dtypes):
    """Tensors alone, without shared memory, so that safetensors can hold them."""
    state = {f"model.{d}.weight": tensor(d, (5, 7), d) for d in dtypes}
    state |= {f"model.{d}.scalar": tensor(d + "0", (), d) for d in dtypes}
    state["model.empty"] = torch.empty(3, 0, 2)
    state["model.large"] = tensor("large", (300, 1000))
    return state


def tensors(dtypes):
    state = {"of": {d: tensor(d, (3, 5), d) for d in dtypes}, "scalar": {d: tensor(d, (), d) for d in dtypes}}
    base = tensor("base", (6, 8))
    image = tensor("image", (2, 3, 4, 5), "float32")
    state["view"] = {
        "transposed": base.t(),
        "sliced": base[1:5:2, 2:6],
        "expanded": tensor("row", (8,)).expand(3, 8),
        "part": base[4:],
        "channels_last": image.contiguous(memory_format=torch.channels_last),
        "shared": base,
    }
    state["empty"] = {"none": torch.empty(0), "within": torch.empty(3, 0, 2, dtype=torch.bfloat16)}
    state["large"] = tensor("large", (300, 1000))
    state["six"] = tensor("six", (2, 1, 3, 1, 2, 2), "float16")
    state["parameter"] = torch.nn.Parameter(tensor("parameter", (4,)).nan_to_num())
    return state


def lazy_views():
    z = torch.view_as_complex(tensor("pairs", (4, 3, 2), "float64").nan_to_num())
    return {"conjugated": z.conj(), "negative": z.conj().imag, "both": z.t().conj()}


def nested(dtypes):
    return {
        "list": [tensor("a", (2,)), {"c": tensor("c", (3,)), "d": 7}, [tensor("e", ()), "text"]],
        "by_number": {0: tensor("f", (2,)), 17: {"x": tensor("g", (1, 2))}},
        "dotted.name": {"and.more": tensor("h", (2, 2))},
        "ordered": collections.OrderedDict(z=tensor("i", (1,)), a=collections.OrderedDict(b=1)),
        "plain_list": [1, [2, "three", None]],
        "tuple": (1, "two", (3.0, None), [True]),
        "deep": {"a": {"b": {"c": {"d": {"e": tensor("j", (2,))}}}}},
        "größe / mit Leerzeichen": tensor("k", (2,)),
        "nothing": {},
        "empty_list": [],
    }


def objects(dtypes):
    """Everything that this PyTorch saves: not every Python pickles a memory format."""
    return {k: v for k, v in known_objects().items() if saves(v)}


def saves(v):
    try:
        torch.save(v, io.BytesIO())
    except TypeError:
        return False
    return True


def known_objects():
    return {
        "none": None, "true": True, "false": False,
        "zero": 0, "negative": -7, "int31": 2**31, "int63": 2**63 - 1, "int64": 2**64, "big": -(2**200) + 1,
        "float": 3.25e-4, "tenth": 0.1, "tiny": 5e-324, "huge": 1e300, "minus_zero": -0.0,
        "inf": float("inf"), "nan": float("nan"), "complex": complex(1.5, -2),
        "text": "run-ü-7 \U0001f5ff 'quoted' \"twice\"\n\t\\", "empty": "", "long": "x" * 3000, "number_in_text": "12",
        "bytes": b"\x00\x01\xff'", "bytearray": bytearray(b"abc\x80"),
        "list": [1, -2.5, "three", None, [True, []]], "tuple": (1, ("two",), ()), "pair": (1, 2),
        "set": {3}, "frozenset": frozenset({"one"}), "empty_set": set(),
        "betas": (0.9, 0.999),
        "dtype": torch.bfloat16, "size": torch.Size([3, 4]), "device": torch.device("cpu"),
        "cuda": torch.device("cuda", 1),
        "layout": torch.strided, "memory_format": torch.channels_last,
        "path": pathlib.PurePosixPath("/data/run 7"),
        "datetime": datetime.datetime(2026, 5, 11, 7, 26, 1, 250), "date": datetime.date(2026, 5, 11),
        "delta": datetime.timedelta(days=1, seconds=3),
        "utc": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        "numpy_float": numpy.float64(0.25), "numpy_int": numpy.int32(-3), "numpy_bool": numpy.bool_(True),
        "numpy_array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        "list_of_dtypes": [torch.float32, torch.int8],
    }


def with_tensors_inside():
    """Objects that hold tensors: DCP opens no tuples."""
    return {
        "pair": (tensor("a", (2, 3)), 1),
        "in_tuple": ({"m": tensor("b", (4,), "bfloat16")}, [tensor("c", (), "int64")]),
        "shared": (lambda x: (x, x[1:]))(tensor("d", (5,)).nan_to_num()),
    }


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Embedding(37, 24), torch.nn.Linear(24, 48), torch.nn.LayerNorm(48), torch.nn.Linear(48, 5, bias=False)
    )


def optimizer(net):
    groups = [{"params": net[:2].parameters(), "lr": 1e-2}, {"params": net[2:].parameters(), "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.8, 0.95), amsgrad=True)


def step(net, opt, seed):
    pick = torch.Generator().manual_seed(seed)
    net(torch.randint(0, 37, (8,), generator=pick)).square().mean().backward()
    opt.step()
    opt.zero_grad()


def trained():
    net = model()
    opt = optimizer(net)
    for seed in range(3):
        step(net, opt, seed)
    return net, opt


def training(dtypes):
    net, opt = trained()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer(model()), 100)
    weights, moments = get_state_dict(net, opt)
    return {
        "model": weights,
        "optim": moments,
        "raw_optim": opt.state_dict(),
        "schedule": schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "epoch": 3,
    }


class Own:
    """A class that only this module has."""

    def __init__(self, x):
        self.x = x


def with_own_class():
    return {"own": Own(3), "w": tensor("w", (3, 4))}
