"""What errors mean to a process that follows checkpoints, which others replace and remove at any time."""

from __future__ import annotations

import enum

from cairn.errors import CairnError


class Verdict(enum.Enum):
    """See storage.Verdict of the Go package, which judges in the same way."""

    GONE = 1  # replaced or removed meanwhile, or not complete yet: look again which checkpoints there are
    DAMAGED = 2  # it will not become better: read another one
    FAILED = 3  # it is not about the contents of a place: the next checkpoint fails too


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
