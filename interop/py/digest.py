"""The contents of a state, in the words of expected.json of the fixtures."""

import hashlib

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

import sharding


def of_state(state):
    """Describes every item of a nested state, under the names that DCP gives them."""
    return of_items(flatten_state_dict(state)[0])


def of_file(state):
    """Describes every item of a file of torch.save: DCP's flattening drops empty dicts, a file has them."""
    return of_state(state) | of_items(dict(empty_dicts(state)))


def empty_dicts(v, name=""):
    for key, x in v.items() if isinstance(v, dict) else ():
        at = f"{name}.{key}" if name else str(key)
        if isinstance(x, dict) and not x:
            yield at, x
        else:
            yield from empty_dicts(x, at)


def of_items(items):
    return {name: of_value(value) for name, value in items.items()}


def of_value(value):
    if isinstance(value, DTensor):
        value = sharding.join(value)
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    return {"kind": "object", "type": type(value).__name__, "repr": repr(value)[:400]}


def of_tensor(x):
    data = content(x)
    return {
        "kind": "tensor",
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "nbytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def content(x):
    """Returns the bytes of a tensor's contiguous form."""
    return x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def differences(want, got, path="state"):
    """Returns the differences of two values in type, contents and repr."""
    if type(want) is not type(got):
        return [f"{path}: {type(got).__name__}; want {type(want).__name__}"]
    if isinstance(want, torch.Tensor):
        return [] if of_tensor(want) == of_tensor(got) else [f"{path}: {of_tensor(got)}; want {of_tensor(want)}"]
    if isinstance(want, dict):
        if sorted(map(repr, want)) != sorted(map(repr, got)):
            return [f"{path}: keys {list(got)}; want {list(want)}"]
        return [d for k in want for d in differences(want[k], got[k], f"{path}[{k!r}]")]
    if isinstance(want, (list, tuple)):
        if len(want) != len(got):
            return [f"{path}: {len(got)} elements; want {len(want)}"]
        return [d for i, (a, b) in enumerate(zip(want, got)) for d in differences(a, b, f"{path}[{i}]")]
    if repr(want) != repr(got):
        return [f"{path}: {got!r}; want {want!r}"]
    if equal(want, want) and not equal(want, got):  # not so for NaN
        return [f"{path}: {got!r} is not equal to {want!r}"]
    return []


def equal(a, b):
    same = a == b
    return bool(same.all()) if hasattr(same, "all") else same
