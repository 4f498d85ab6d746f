"""Values that are not tensors, as checkpoints hold them: JSON with a rule for what JSON lacks.

An object with a single key that begins with a dollar sign is a value that JSON lacks, such
as ``{"$tuple": [1, 2]}``. docs/saver.md names the rules. Nothing here runs code of a
checkpoint: an object of a Python class becomes an :class:`Object`, which only describes it.
"""

from __future__ import annotations

import base64
import collections
import json
import math
from dataclasses import dataclass, field
from typing import Any

from cairn.errors import CorruptError


class NotPlain(TypeError):
    """A value that the encoding cannot hold."""


@dataclass
class Object:
    """An object of a Python class that was pickled. It is described, not made."""

    module: str
    name: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ref:
    """A tensor that the checkpoint holds by this name."""

    name: str


@dataclass
class RawTensor:
    """A small tensor inside of a value: its contiguous little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def decode(codec: str, data: bytes) -> Any:
    """Returns the value that data encodes. CorruptError: it encodes no value."""
    if codec == "raw":
        return bytes(data)
    if codec != "json":
        raise CorruptError(f"a value in the unknown codec {codec!r}", ("storage.corrupt",))
    try:
        return _from_json(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise CorruptError(f"a value is not encoded by the rules: {e}", ("storage.corrupt",)) from e


def encode(value: Any) -> tuple[str, bytes]:
    """Returns the codec and the bytes of a value. NotPlain: it cannot be encoded."""
    if type(value) is bytes:
        return "raw", value
    try:
        return "json", json.dumps(_to_json(value, 0), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as e:  # an integer with thousands of digits
        raise NotPlain(f"a value that cannot be encoded: {e}") from None


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_unicode(v: str) -> bool:
    try:
        v.encode()
    except UnicodeEncodeError:  # a surrogate without its other half
        return False
    return True


def _float(v: float) -> Any:
    if math.isfinite(v):
        return v
    return {"$float": "nan" if math.isnan(v) else "inf" if v > 0 else "-inf"}


def _to_json(v: Any, depth: int) -> Any:
    if depth > 250:
        raise NotPlain("a value that nests too deeply")
    kind = type(v)
    if v is None or kind is bool or kind is int:
        return v
    if kind is float:
        return _float(v)
    if kind is str:
        return v if _is_unicode(v) else {"$str": _b64(v.encode("utf-8", "surrogatepass"))}
    if kind is complex:
        return {"$complex": [_float(v.real), _float(v.imag)]}
    if kind is bytes:
        return {"$bytes": _b64(v)}
    if kind is bytearray:
        return {"$object": {"module": "builtins", "name": "bytearray", "call": True, "args": [{"$bytes": _b64(v)}]}}
    below = depth + 1
    if kind is list:
        return [_to_json(x, below) for x in v]
    if kind is tuple:
        return {"$tuple": [_to_json(x, below) for x in v]}
    if kind in (set, frozenset):
        return {"$set" if kind is set else "$frozenset": [_to_json(x, below) for x in sorted(v, key=repr)]}
    if kind is dict or kind is collections.OrderedDict:
        if kind is dict and all(type(k) is str and not k.startswith("$") and _is_unicode(k) for k in v):
            return {k: _to_json(x, below) for k, x in v.items()}
        return {"$dict" if kind is dict else "$ordered": [[_to_json(k, below), _to_json(x, below)] for k, x in v.items()]}
    raise NotPlain(f"a value of the type {kind.__module__}.{kind.__qualname__}")


def _from_json(v: Any) -> Any:
    if isinstance(v, list):
        return [_from_json(x) for x in v]
    if not isinstance(v, dict):
        return v
    if len(v) != 1 or not next(iter(v)).startswith("$"):
        return {k: _from_json(x) for k, x in v.items()}
    ((key, x),) = v.items()
    if key == "$bytes":
        return base64.b64decode(x)
    if key == "$str":
        return base64.b64decode(x).decode("utf-8", "surrogatepass")
    if key == "$float":
        return float(x)
    if key == "$complex":
        real, imag = x
        return complex(_from_json(real), _from_json(imag))
    if key == "$tuple":
        return tuple(_from_json(p) for p in x)
    if key in ("$map", "$dict", "$ordered"):
        kind = collections.OrderedDict if key == "$ordered" else dict
        return kind((_from_json(a), _from_json(b)) for a, b in x)
    if key == "$set":
        return {_from_json(p) for p in x}
    if key == "$frozenset":
        return frozenset(_from_json(p) for p in x)
    if key == "$ref":
        return Ref(x)
    if key == "$tensor":
        return RawTensor(x["dtype"], tuple(x["shape"]), base64.b64decode(x["data"]))
    if key == "$object":
        fields = {k: _from_json(p) for k, p in x.items() if k not in ("module", "name")}
        module, name = x.get("module", ""), x.get("name", "")
        args = fields.get("args") or [b""]
        if (module, name) == ("builtins", "bytearray") and len(args) == 1 and isinstance(args[0], bytes):
            return bytearray(args[0])
        return Object(module, name, fields)
    raise ValueError(f"the unknown rule {key!r}")
