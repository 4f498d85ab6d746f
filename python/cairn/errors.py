"""The errors of cairn. They have the names of the Go library's errors."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cairn._messages import ErrorMessage


class CairnError(Exception):
    """An error of cairn. ``codes`` tell errors apart that have no class, such as "syscall.ENOSPC" for a full disk."""

    def __init__(self, text: str = "", codes: tuple[str, ...] = ()):
        super().__init__(text)
        self.codes = tuple(codes)


class SaverError(CairnError):
    """The saver process of this rank or of another one has ended or did not start. The next call starts new ones."""

    def __init__(self, text: str = "", codes: tuple[str, ...] = ("saver.ended",)):
        super().__init__(text, codes)  # the code makes it the same error on the other ranks


class GoneError(CairnError):
    """Another rank has left the job."""


class IncompleteError(CairnError):
    """A save to this place did not finish."""


class UnderWayError(IncompleteError):
    """There is no checkpoint yet, but a process is saving to this place."""


class InUseError(CairnError):
    """The checkpoint is not removed, because a process reads it, or another process is removing it."""


class NotFoundError(CairnError, FileNotFoundError):
    """There is no checkpoint at this place."""


class ExistsError(CairnError, FileExistsError):
    """There is a checkpoint at this place, and the save may not replace it."""


class CorruptError(CairnError):
    """Bytes differ from the bytes that were written, or a file is missing."""


class VersionError(CairnError):
    """A newer program wrote the checkpoint."""


class ChangedError(CairnError):
    """The checkpoint was replaced while it was being read."""


class UncertainError(CairnError):
    """It is unknown whether the checkpoint was published."""


class RoomError(CairnError):
    """A host has too little memory for the checkpoints of a run in memory: see docs/memory.md."""


class OptionsError(CairnError, ValueError):
    """An option does not exist, contradicts another one, or has a wrong value."""


class RepresentError(CairnError):
    """A tensor or a value cannot be saved in the format, or not be made again from the checkpoint."""


class StateError(CairnError, ValueError):
    """The state cannot be saved or loaded, or the states of the ranks contradict each other."""


class MismatchError(CairnError, ValueError):
    """What is wanted does not match the checkpoint."""


class MissingError(MismatchError, KeyError):
    """The checkpoint does not have a name that is wanted."""

    def __str__(self) -> str:  # KeyError would quote it
        return Exception.__str__(self)


class CastError(MismatchError):
    """Elements cannot be converted to the type that is wanted."""


class ReplacedError(CairnError):
    """The save was withdrawn before it began, because a newer one took its place."""


class SaveWarning(UserWarning):
    """A save in the background has failed, and its result was not asked for. ``warnings.simplefilter("error",
    SaveWarning)`` makes the next save raise it."""


class PickleWarning(UserWarning):
    """A value is saved as a pickle, or was: it is made again only with allow_pickle."""


# The first code that an error has decides its class, so the more specific codes come first.
_CLASSES: dict[str, type[CairnError]] = {
    "saver.replaced": ReplacedError,
    "saver.ended": SaverError,
    "group.ErrGone": GoneError,
    "recipe.unknown": OptionsError,
    "recipe.syntax": OptionsError,
    "recipe.variable": OptionsError,
    "recipe.incomplete": MismatchError,
    "recipe.check": MismatchError,
    "plan.missing": MissingError,
    "tensor.cast": CastError,
    "plan.mismatch": MismatchError,
    "plan.state": StateError,
    "storage.underway": UnderWayError,
    "storage.incomplete": IncompleteError,
    "storage.notfound": NotFoundError,
    "storage.inuse": InUseError,
    "storage.exists": ExistsError,
    "storage.changed": ChangedError,
    "storage.uncertain": UncertainError,
    "storage.version": VersionError,
    "storage.corrupt": CorruptError,
    "memory.room": RoomError,
    "storage.options": OptionsError,
    "formats.unknown": OptionsError,
    "storage.represent": RepresentError,
    "fs.ErrNotExist": NotFoundError,
}


# Flags of the command in the errors of recipes, and the arguments that stand for them here.
_ARGUMENTS = (
    (r"--set (\w+)=true\b", r"variables={'\1': True}"), (r"--set (\w+)=false\b", r"variables={'\1': False}"),
    (r"--set (\w+)=(\w+)", r"variables={'\1': \2}"), (r" \(--set\)", ""), (r"--config\b", "config"),
    (r"--reverse\b", "reverse=True"), (r"--recipe auto\b", "recipe='auto'"),
)


def from_message(error: ErrorMessage) -> CairnError:
    """Returns the error of a message of the saver process or of a command."""
    codes, text = tuple(error.get("codes") or ()), error.get("text", "")
    if any(code.startswith("recipe.") for code in codes):
        for flag, argument in _ARGUMENTS:
            text = re.sub(flag, argument, text)
    for code, kind in _CLASSES.items():
        if code in codes:
            return kind(text, codes)
    return CairnError(text, codes)


def outside() -> int:
    """Returns the stacklevel with which a warning of the caller names the line that called cairn."""
    here, frame, level = os.path.dirname(__file__) + os.sep, sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(here):
        frame, level = frame.f_back, level + 1
    return level
