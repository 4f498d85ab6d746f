"""Values of a state as items of a save. What cairn cannot describe is pickled."""

from __future__ import annotations

import base64
import io
import warnings
from typing import Any

import torch

from cairn import errors, values
from cairn._messages import Item, encode


class Pickled:
    """A value that is pickled already, as torch pickles it."""

    def __init__(self, data: bytes):
        self.data = data


def value_item(place: Item, v: Any) -> Item:
    """Returns a value as an item. place has its name and, if it is known, its path."""
    if not isinstance(v, Pickled):
        try:
            codec, data = values.encode(v)
            return {**place, "codec": codec, "data": base64.b64encode(data).decode()}
        except values.NotPlain as e:
            v = _pickle(place["name"], v, str(e))
    # An object of a class: marked, so that only a load that asks for it makes it again.
    data = encode({"$object": {"module": "cairn.torch", "name": "Pickled", "call": True,
                               "args": [{"$bytes": base64.b64encode(v.data).decode()}]}}).encode()
    return {**place, "codec": "json", "data": base64.b64encode(data).decode()}


def _pickle(name: str, v: Any, what: str) -> Pickled:
    """Pickles a value. It warns, once for each name and type, if a load would refuse to make it again."""
    buffer = io.BytesIO()
    try:
        torch.save(v, buffer)
    except Exception as e:  # of any class
        raise errors.StateError(f"{name!r} is {what}, which cannot be pickled: {e}", ("plan.state",)) from e
    if (name, what) not in _warned:
        _warned.add((name, what))
        try:
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except Exception:
            warnings.warn(f"{name!r} is {what}, which is saved as a pickle: a load makes it again only with "
                          "allow_pickle=True. "
                          "Save plain data in its place, such as a dict", errors.PickleWarning,
                          stacklevel=errors.outside())
    return Pickled(buffer.getvalue())


_warned: set[tuple[str, str]] = set()  # names and types of values that were saved as pickles
