"""The saves and loads of this process: which checkpoints its later saves may replace."""

from __future__ import annotations

import collections
import os
import threading

from cairn.errors import UncertainError

_MOST = 1024  # places; a job that saves each step to a folder of its own needs none of them
_lock = threading.Lock()
# The ids of the saves at an address: the last one that is complete, and later ones that are pending or uncertain.
_places: collections.OrderedDict[str, list[str]] = collections.OrderedDict()


def begun(address: str, save_id: str) -> None:
    """Notes a save that begins. A save that is asked for before this one is over may replace it."""
    with _lock:
        _places.setdefault(_real(address), []).append(save_id)
        _places.move_to_end(_real(address))
        while len(_places) > _MOST:
            _places.popitem(last=False)


def over(address: str, begun_id: str, error: BaseException | None, save_id: str = "") -> None:
    """Notes the outcome of a save that has begun with an id. save_id is the id that rank 0 has chosen."""
    with _lock:
        ids = _places.get(_real(address), [])
        if begun_id not in ids or isinstance(error, UncertainError):
            return
        at = ids.index(begun_id)
        ids[:at + 1] = ids[:at] if error is not None else [save_id]


def complete(address: str, save_id: str) -> None:
    """Notes a checkpoint that was loaded."""
    begun(address, save_id)
    over(address, save_id, None, save_id)


def at(*addresses: str | None) -> list[str]:
    """Returns the ids of the saves at some addresses, which a save there may replace."""
    with _lock:
        return [i for address in addresses if address is not None for i in _places.get(_real(address), [])]


def _real(address: str) -> str:
    return address.rstrip("/") if "://" in address else os.path.realpath(address)
