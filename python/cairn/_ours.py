"""The saves and loads of this process: which checkpoints its later saves may replace."""

from __future__ import annotations

import collections
import os
import threading

_MOST = 1024  # places; a job that saves each step to a folder of its own needs none of them
_MOST_IDS = 64  # of a place; more are of saves that have failed
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
# The ids of the saves at a place. If one was completed or loaded, it is the first, and "" is the second, for a
# checkpoint of an unknown save. The others are pending or have failed, which their commits may have outlived.
_places: collections.OrderedDict[str, list[str]] = collections.OrderedDict()


def note_begun(address: str, save_id: str) -> str:
    """Notes a save that begins, and returns its place. A later save may replace it, whatever becomes of it."""
    place = _real(address)
    with _lock:
        ids = _places.setdefault(place, [])
        ids.append(save_id)
        if len(ids) > _MOST_IDS:
            del ids[2]
        _places.move_to_end(place)
        while len(_places) > _MOST:
            _places.popitem(last=False)
    return place


def note_saved(place: str, begun_id: str, save_id: str) -> None:
    """Notes that a save is complete which has begun with an id. save_id is the id that rank 0 has chosen."""
    with _lock:
        ids = _places.get(place, [])
        if begun_id in ids:
            ids[:ids.index(begun_id) + 1] = [save_id, ""]


def note_loaded(address: str, save_id: str) -> None:
    """Notes a checkpoint that was loaded, maybe while saves to its place are under way."""
    place = note_begun(address, save_id)
    with _lock:
        if place in _places:
            _places[place][:] = [save_id, "", *(i for i in _places[place] if i not in (save_id, ""))]


def ids_at(*addresses: str) -> list[str]:
    """Returns the ids of the saves at some addresses, which a save there may replace."""
    with _lock:
        return [i for address in addresses for i in _places.get(_real(address), [])]


def _real(address: str) -> str:
    return address.rstrip("/") if "://" in address else os.path.realpath(address)
