"""Judges errors of a process that follows checkpoints while other processes replace and remove them."""

from __future__ import annotations

import enum

from cairn.errors import CairnError


class Verdict(enum.Enum):
    """How a process goes on after an error: the same as storage.Verdict of the Go package."""

    GONE = 1  # replaced or removed meanwhile, or not complete yet: look again which checkpoints there are
    DAMAGED = 2  # it stays damaged: read another one
    FAILED = 3  # the error is not about this checkpoint: the next one fails too


def judge(error: CairnError) -> Verdict:
    """Returns the verdict for an error of reading a checkpoint, or of looking for one."""
    def has(*codes: str) -> bool:
        return any(code in error.codes for code in codes)

    if has("storage.changed", "storage.removing", "storage.underway"):  # then damage is not certain
        return Verdict.GONE
    if has("storage.corrupt"):
        return Verdict.DAMAGED
    if has("storage.notfound", "storage.incomplete", "fs.ErrNotExist"):
        return Verdict.GONE
    return Verdict.FAILED
