"""cairn saves and loads the sharded state of training jobs.

    >>> import cairn
    >>> with cairn.open("run/step-100") as c:
    ...     print(list(c))
    ...     rows = c["model.weight"][1:3]         # reads these rows and nothing else
    ['model.bias', 'model.weight', 'step']

``cairn.torch`` saves and loads the state of PyTorch jobs; ``cairn.lightning``, ``cairn.transformers`` and
``cairn.accelerate`` are for Lightning, the Trainer of Hugging Face and Accelerate. A process of the program
``cairn``, which this package contains, does the work; CAIRN_BINARY names another program. ``python -m cairn`` runs
its commands. Errors of saves and loads are a :class:`CairnError`. Importing this module imports neither torch nor
numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn.errors import (
    CairnError,
    CastError,
    ChangedError,
    CorruptError,
    ExistsError,
    GoneError,
    IncompleteError,
    InUseError,
    MismatchError,
    MissingError,
    NotFoundError,
    OptionsError,
    PickleWarning,
    ReplacedError,
    RepresentError,
    RoomError,
    SaverError,
    SaveWarning,
    StateError,
    UncertainError,
    UnderWayError,
    VersionError,
)
from cairn.reports import (
    ConvertReport,
    Copy,
    CopyReport,
    Exported,
    LoadReport,
    Phase,
    Pruned,
    PruneReport,
    RunCheckpoint,
    SaveReport,
    Synced,
    SyncReport,
    Traffic,
    UpdateReport,
    UploadReport,
)
from cairn.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from cairn._convert import convert
    from cairn.checkpoint import Checkpoint, Tensor, latest, open
    from cairn.runs import Rule, Run, at_most, best, every, last, left, tagged, within

__all__ = [
    "CairnError", "CastError", "ChangedError", "Checkpoint", "ConvertReport", "Copy", "CopyReport", "CorruptError",
    "ExistsError", "Exported", "GoneError", "InUseError", "IncompleteError", "LoadReport", "MismatchError",
    "MissingError", "NotFoundError", "OptionsError", "Phase", "PickleWarning", "PruneReport", "Pruned", "ReplacedError",
    "RepresentError", "RoomError", "Rule", "Run", "RunCheckpoint", "SaveReport", "SaveWarning", "SaverError",
    "StateError", "SyncReport", "Synced", "Tensor", "Traffic", "UncertainError", "UnderWayError", "UpdateReport",
    "UploadReport", "VersionError", "at_most", "best", "convert", "every", "last", "latest", "left", "open", "tagged",
    "within",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "values"})


def __getattr__(name: str) -> object:
    # What needs the saver process is imported when it is used, so that "import cairn" is fast.
    if name in ("Checkpoint", "Tensor", "latest", "open"):
        from cairn import checkpoint

        return getattr(checkpoint, name)
    if name in ("Rule", "Run", "at_most", "best", "every", "last", "left", "tagged", "within"):
        from cairn import runs

        return getattr(runs, name)
    if name == "convert":
        from cairn import _convert

        return _convert.convert
    if name == "values":
        import importlib

        return importlib.import_module("cairn.values")
    raise AttributeError(f"module 'cairn' has no attribute {name!r}")
