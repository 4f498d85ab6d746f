"""Values that are not tensors, as checkpoints hold them: JSON with a rule for what JSON lacks.

An object with a single key that begins with a dollar sign is a value that JSON lacks, such as ``{"$tuple":
[1, 2]}``. docs/saver.md names the rules. An object of a Python class becomes an :class:`Object`, which only
describes it, unless the class is one of a few that can do no harm, such as a date. Only :func:`construct` runs code
of a checkpoint.
"""

from __future__ import annotations

import argparse
import base64
import collections
import copyreg
import functools
import importlib
import io
import json
import math
import pickletools
import re
import sys
import types
import warnings
import zipfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from cairn import errors
from cairn.errors import CorruptError


class NotPlain(TypeError):
    """A value that the encoding cannot hold."""


@dataclass
class Object:
    """An object of a Python class that was pickled. It is described, not made."""

    module: str
    name: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:  # it may be a key of a dict
        return hash((self.module, self.name))


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
        return "json", json.dumps(_to_json(value, 0), ensure_ascii=False, allow_nan=False,
                                  separators=(",", ":")).encode()
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
        return {"$dict" if kind is dict
                else "$ordered": [[_to_json(k, below), _to_json(x, below)] for k, x in v.items()]}
    return {"$object": _describe(v, below)}


# Classes whose objects can do no harm: making one has no other effect. numpy and torch are not imported for it.
_KNOWN: dict[str, frozenset[str]] = {
    "argparse": frozenset({"Namespace"}),
    "builtins": frozenset({"range", "slice"}),
    "collections": frozenset({"Counter", "defaultdict", "deque"}),
    "datetime": frozenset({"date", "datetime", "time", "timedelta", "timezone"}),
    "decimal": frozenset({"Decimal"}),
    "fractions": frozenset({"Fraction"}),
    "pathlib": frozenset({"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"}),
    "types": frozenset({"SimpleNamespace"}),
    "uuid": frozenset({"UUID"}),
}
_FACTORIES = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}  # of a defaultdict
_NUMPY = frozenset({"numpy", "numpy.core.multiarray", "numpy._core.multiarray"})
_NUMBERS = re.compile(r"[<>|=]?([biufc]\d+|[SU]\d+)")  # dtypes of numpy: numbers and text
_SCALARS = frozenset({"bool", "bool_", "complex64", "complex128", "float16", "float32", "float64", "int8", "int16",
                      "int32", "int64", "uint8", "uint16", "uint32", "uint64"})


def _name(kind: Any) -> tuple[str, str]:
    return kind.__module__.removesuffix("._local"), kind.__qualname__  # pathlib._local, since Python 3.13


def _is_plain(v: Any) -> bool:
    """Reports whether v is an object that _describe may ask for a description."""
    kind = type(v)
    module, name = _name(kind)
    if name in _KNOWN.get(module, ()):
        return True
    if module == "torch" and name in ("Size", "device", "dtype"):
        return True
    if (numpy := sys.modules.get("numpy")) is None or not isinstance(v, (numpy.generic, numpy.ndarray, numpy.dtype)):
        return False
    dtype = v if isinstance(v, numpy.dtype) else v.dtype
    return (kind is numpy.ndarray
            or not isinstance(v, numpy.ndarray)) and dtype.kind in "biufcSU" and dtype.names is None


def _describe(v: Any, depth: int) -> dict[str, Any]:
    """Describes an object as a pickle would: a function, its arguments, and the state that the object receives."""
    if isinstance(v, type):
        if _FACTORIES.get(v.__name__) is not v and _name(v) != ("numpy", "ndarray"):
            raise NotPlain(f"the class {v.__module__}.{v.__qualname__}")
        return {"module": v.__module__, "name": v.__name__}
    if not _is_plain(v):
        raise NotPlain(f"a value of the type {type(v).__module__}.{type(v).__qualname__}")
    reduced = v.__reduce_ex__(4 if type(v).__module__ == "datetime" else 2)  # which alone has the fold of a time
    if isinstance(reduced, str):
        return {"module": type(v).__module__, "name": reduced}
    make, args, state, items, pairs = (*reduced, None, None, None)[:5]
    out: dict[str, Any] = {"call": True}
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]
        make, *args = args
        out["new"] = True
    module, name = _name(make)
    out = {"module": module, "name": name, **out}
    for key, x in ("args", list(args)), ("items", list(items or ())):
        if x:
            out[key] = [_to_json(a, depth) for a in x]
    if pairs is not None and (both := list(pairs)):
        out["pairs"] = [[_to_json(a, depth), _to_json(b, depth)] for a, b in both]
    if state is not None:
        out["state"] = _to_json(state, depth)
    return out


def _make(o: Object) -> Any:
    """Returns an object of a class that can do no harm, or the description of any other object."""
    try:
        if o.module in _NUMPY:
            return _make_numpy(o)
        if o.module == "builtins" and o.name in _FACTORIES and not o.fields:
            return _FACTORIES[o.name]
        kwargs = o.fields.get("kwargs") or {}
        if o.name not in _KNOWN.get(o.module, ()) or not o.fields.get("call") or (kwargs and o.module != "datetime"):
            return o
        kind = getattr(importlib.import_module(o.module), o.name)
        if any(isinstance(a, Object) for a in o.fields.get("args", ())):
            return o
        return _called(kind, o.fields)
    except Exception:  # what another program wrote; it stays described
        return o


def _called(kind: Any, f: dict[str, Any]) -> Any:
    """Calls what makes an object, and gives the object its contents, in the order of pickles."""
    args, kwargs = f.get("args", ()), f.get("kwargs") or {}
    v = kind.__new__(kind, *args, **kwargs) if f.get("new") else kind(*args, **kwargs)
    for item in f.get("items", ()):
        v.append(item)
    for key, item in f.get("pairs", ()):
        v[key] = item

    state, slots = f.get("state"), None
    if state is not None and hasattr(v, "__setstate__"):
        v.__setstate__(state)
        return v
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        v.__dict__.update(state)
    for key, item in (slots or {}).items():
        setattr(v, key, item)
    return v


def construct(o: Object) -> Any:
    """Makes the object that a checkpoint describes, as unpickling does: that imports and runs whatever it names.

    RepresentError: its class cannot be imported, or refuses.
    """
    try:
        thing = importlib.import_module(o.module)
        for part in o.name.split("."):
            thing = getattr(thing, part)
        return _called(thing, o.fields) if o.fields.get("call") else thing
    except Exception as e:  # of any class
        raise errors.RepresentError(f"{o.module}.{o.name} cannot be made: {type(e).__name__}: {e}",
                                    ("storage.represent",)) from e


def replaced(v: Any, make: Callable[[Any], Any]) -> Any:
    """Returns a value with make(x) in place of each Object, Ref and RawTensor x in it, the inner ones first."""
    again = functools.partial(replaced, make=make)
    kind = type(v)
    if kind is Object:
        return make(Object(v.module, v.name, {k: again(x) for k, x in v.fields.items()}))
    if kind in (Ref, RawTensor):
        return make(v)
    if kind in (list, tuple, set, frozenset):
        return kind(map(again, v))
    if kind in (dict, collections.OrderedDict):
        return kind((again(k), again(x)) for k, x in v.items())
    if kind is collections.deque:
        return collections.deque(map(again, v), v.maxlen)
    if kind in (collections.defaultdict, collections.Counter):
        pairs = [(again(k), again(x)) for k, x in v.items()]
        v.clear()
        for key, x in pairs:
            v[key] = x
        return v
    if kind in (argparse.Namespace, types.SimpleNamespace):
        return kind(**{k: again(x) for k, x in vars(v).items()})
    return v


def refs(v: Any) -> set[str]:
    """Returns the names of the tensors that a value refers to."""
    found: set[str] = set()
    replaced(v, lambda x: found.add(x.name) if isinstance(x, Ref) else x)
    return found


def pickled(v: Any) -> bytes | None:
    """Returns the pickle of a value that cairn saved as one, or None."""
    if isinstance(v, Object) and (v.module, v.name) == ("cairn.torch", "Pickled"):
        return v.fields["args"][0]
    return None


def classes(v: Any) -> set[str]:
    """Returns the names of the classes and functions of which a value has only descriptions, without torch's dtypes."""
    found: set[str] = set()

    def see(x: Any) -> Any:
        if (data := pickled(x)) is not None:
            found.update(_named(data))
        elif isinstance(x, Object) and x.module != "torch":
            found.add(f"{x.module}.{x.name}")
        return x

    replaced(v, see)
    return found


def _named(data: bytes) -> set[str]:
    """Returns the names in a file of torch.save, without the names that torch can load with weights_only."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        pickle = next(file.read(name) for name in file.namelist() if name.endswith("/data.pkl"))
    names = {str(arg).replace(" ", ".") for op, arg, _ in pickletools.genops(pickle) if op.name == "GLOBAL"}
    return {name for name in names if name.partition(".")[0] not in ("torch", "collections", "builtins", "copyreg",
                                                                     "copy_reg", "__builtin__")}


def warn_of(path: str, classes: Collection[str]) -> None:
    """Warns that objects of these classes are only described."""
    some = ", ".join(sorted(classes)[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")
    warnings.warn(f"{path} has pickled objects of {some}: they are described, as cairn.values.Object. "
                  "allow_pickle=True makes them, which can run any code: use it if you trust the checkpoint",
                  errors.PickleWarning, stacklevel=errors.outside())


def _make_numpy(o: Object) -> Any:
    """Makes a dtype, a number or an array of numpy, if numpy is installed, from bytes, without numpy's unpickling."""
    import numpy

    f: Any = o.fields
    args, state, kwargs = f.get("args", ()), f.get("state"), f.get("kwargs")
    if o.name == "ndarray" and not f:
        return numpy.ndarray
    if o.name == "dtype":
        if not _NUMBERS.fullmatch(args[0]) or (state is not None and state[1] not in ("<", ">", "|", "=")):
            return o
        native = numpy.dtype(args[0])
        other = native if state is None else native.newbyteorder(state[1])
        return native if other == native else other
    if o.name == "ndarray" and kwargs is not None:  # as cairn describes pickles of other programs
        return _array(numpy.dtype(kwargs["dtype"]), kwargs["shape"], kwargs["order"], kwargs["data"])
    if o.name in _SCALARS and len(args) == 1 and isinstance(args[0], (bool, int, float, complex)):
        return getattr(numpy, o.name)(args[0])
    if o.name == "scalar" and isinstance(args[0], numpy.dtype):
        return _array(args[0], (), "C", args[1])[()]
    if o.name == "_reconstruct" and args[0] is numpy.ndarray and isinstance(state[2], numpy.dtype):
        return _array(state[2], state[1], "F" if state[3] else "C", state[4])
    return o


def _array(dtype: Any, shape: Any, order: Any, data: bytes) -> Any:
    import numpy

    if dtype.itemsize == 0:  # empty text
        return numpy.zeros(shape, dtype)
    if not _NUMBERS.fullmatch(dtype.str):
        raise ValueError(dtype.str)
    return numpy.frombuffer(data, dtype).reshape(shape, order=order).copy(order="K")


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
        if "pairs" in fields:
            fields["pairs"] = [tuple(p) for p in fields["pairs"]]
        return _make(Object(module, name, fields))
    raise ValueError(f"the unknown rule {key!r}")
