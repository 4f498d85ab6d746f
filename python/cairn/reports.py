"""The reports of saves, loads, uploads and conversions, and of what was done for a run: bytes, files and times.

    >>> report = SaveReport(step=100, bytes=2_000_000_000, write_seconds=0.8)
    >>> f"{report.bytes / report.write_seconds / 1e9:.1f} GB/s"
    '2.5 GB/s'

Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ConvertReport", "Copy", "LoadReport", "Phase", "PruneReport", "Pruned", "RunCheckpoint", "SaveReport",
           "SyncReport", "Synced", "Traffic", "UpdateReport", "UploadReport"]


# Each class reads the JSON of a message of the saver process, or of a command, with from_message. A field that the
# message lacks has its default. Fields that a newer program adds are ignored.


@dataclass(frozen=True)
class Phase:
    """A phase of a save on this rank, such as "plan" or "write". docs/telemetry.md lists them.

    >>> Phase("write", start=0.25, end=1.0, bytes=4096).seconds
    0.75
    """

    name: str
    start: float = 0.0
    """Seconds since the save began."""
    end: float = 0.0
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long the phase took."""
        return self.end - self.start

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> Phase:
        return cls(m.get("name") or "", _seconds(m, "start_ns"), _seconds(m, "end_ns"), _number(m, "bytes"))


@dataclass(frozen=True)
class Traffic:
    """What a store did for this rank. Folders do not count it.

    >>> Traffic(requests=6, bytes_sent=1144)
    Traffic(requests=6, retries=0, hedges=0, bytes_sent=1144, bytes_received=0, bytes_cached=0)
    """

    requests: int = 0
    retries: int = 0
    hedges: int = 0
    """Reads that were made twice, because the first answer was late."""
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_cached: int = 0
    """Bytes that came from a cache of this host."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> Traffic:
        return cls(*(_number(m, name) for name in cls.__dataclass_fields__))

    @classmethod
    def total(cls, parts: Iterable[Traffic]) -> Traffic:
        """Returns the sum of parts."""
        rows = list(parts)
        return cls(*(sum(getattr(row, name) for row in rows) for name in cls.__dataclass_fields__))


@dataclass(frozen=True)
class SaveReport:
    """A save that is complete.

    >>> report = SaveReport(bytes=4096, phases=(Phase("plan", 0, 0.5), Phase("write", 0.5, 2)))
    >>> {p.name: p.seconds for p in report.phases}
    {'plan': 0.5, 'write': 1.5}
    """

    save_id: str = ""
    step: int | None = None
    bytes: int = 0
    """Bytes that all ranks wrote."""
    rank_bytes: int = 0
    """Bytes that this rank wrote."""
    files: int = 0
    """Files that all ranks wrote."""
    plan_reused: bool = False
    """The plan of the previous save was used again."""
    plan_seconds: float = 0.0
    write_seconds: float = 0.0
    phases: tuple[Phase, ...] = field(default=(), repr=False)
    """The phases of this rank."""
    traffic: Traffic | None = field(default=None, repr=False)
    folder: str = ""
    """The name of the folder of the checkpoint in its run; empty for a save to a path."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> SaveReport:
        return cls(m.get("save_id") or "", m.get("step"), _number(m, "bytes"), _number(m, "local_bytes"),
                   _number(m, "files"), bool(m.get("plan_reused")), _seconds(m, "plan_ns"), _seconds(m, "write_ns"),
                   tuple(Phase.from_message(p) for p in m.get("phases") or ()), _traffic(m), m.get("folder") or "")


@dataclass(frozen=True)
class UploadReport:
    """An upload that is complete.

    >>> UploadReport(bytes=512, rank_bytes=400, seconds=3.0).direct
    False
    """

    save_id: str = ""
    bytes: int = 0
    """Bytes of the data files, of all ranks."""
    rank_bytes: int = 0
    """Bytes that this rank uploaded, the index included."""
    files: int = 0
    """Data files, of all ranks."""
    seconds: float = 0.0
    direct: bool = False
    """The local disk had no room, so the save went to the remote store at once."""
    traffic: Traffic | None = field(default=None, repr=False)

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> UploadReport:
        return cls(m.get("save_id") or "", _number(m, "bytes"), _number(m, "local_bytes"), _number(m, "files"),
                   _seconds(m, "upload_ns"), bool(m.get("direct")), _traffic(m))


@dataclass(frozen=True)
class CopyReport:
    """Copies of a checkpoint in memory that are complete.

    >>> CopyReport(bytes=512, rank_bytes=256, files=2, seconds=0.1).alone
    False
    """

    save_id: str = ""
    bytes: int = 0
    """Bytes of the copies of data files, on all hosts."""
    rank_bytes: int = 0
    """Bytes that this rank has copied to its host."""
    files: int = 0
    """Copies of data files, on all hosts."""
    seconds: float = 0.0
    alone: bool = False
    """There is only one host, so there are no copies."""
    rank_held_bytes: int = 0
    """How many of rank_bytes this rank has not received: its own state has them, as in data-parallel training."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> CopyReport:
        return cls(m.get("save_id") or "", _number(m, "bytes"), _number(m, "local_bytes"), _number(m, "files"),
                   _seconds(m, "copy_ns"), bool(m.get("alone")), _number(m, "local_held_bytes"))


@dataclass(frozen=True)
class LoadReport:
    """A load of this rank.

    >>> LoadReport(step=100, missing=("scale",)).missing
    ('scale',)
    """

    save_id: str = ""
    """The save that was loaded; empty if the format does not record it."""
    step: int | None = None
    missing: tuple[str, ...] = ()
    """Names that the checkpoint lacks, after a load without strict."""
    bytes: int = 0
    """Bytes of the tensors and values."""
    bytes_read: int = 0
    """Bytes that were read, which may be more: checksums cover whole blocks."""
    requests: int = 0
    """The number of reads."""
    seconds: float = 0.0
    traffic: Traffic | None = field(default=None, repr=False)
    bytes_received: int = 0
    """Bytes that other ranks of the host read for this one."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> LoadReport:
        local = m.get("local") or {}
        return cls(m.get("save_id") or "", m.get("step"), tuple(m.get("missing") or ()), _number(local, "bytes_needed"),
                   _number(local, "bytes_read"), _number(local, "requests"),
                   _seconds(m, "plan_ns") + _seconds(m, "read_ns"), _traffic(m), _number(local, "bytes_received"))

    @classmethod
    def total(cls, parts: Iterable[LoadReport], seconds: float) -> LoadReport:
        """Returns the report of a load that was made in parts and took seconds."""
        rows = list(parts)
        traffic = [r.traffic for r in rows if r.traffic is not None]
        return cls(rows[0].save_id if rows else "", rows[0].step if rows else None,
                   tuple(name for r in rows for name in r.missing),
                   sum(r.bytes for r in rows), sum(r.bytes_read for r in rows), sum(r.requests for r in rows), seconds,
                   Traffic.total(traffic) if traffic else None, sum(r.bytes_received for r in rows))


@dataclass(frozen=True)
class UpdateReport:
    """An update of tensors in use to a version of their weights, on this rank; see :func:`cairn.torch.follow`.

    >>> report = UpdateReport(version=17, from_version=16, elements=1_000_000, elements_changed=12_000)
    >>> f"{report.elements_changed / report.elements:.1%}"
    '1.2%'
    """

    version: int = 0
    """The version that the tensors have now."""
    from_version: int | None = None
    """The version of the update before it, or None if it is the first."""
    save_id: str = ""
    """The save of the version; empty if the format does not record it."""
    bytes: int = 0
    """Bytes of the tensors."""
    bytes_read: int = 0
    """Bytes that were read from the store."""
    bytes_changed: int = 0
    """Bytes of the elements that differed."""
    elements: int = 0
    """Elements of the tensors."""
    elements_changed: int = 0
    """Elements that differed from the version."""
    seconds: float = 0.0
    """How long the update took, without the time between prepare and commit."""
    pause_seconds: float = 0.0
    """The part of it in which the tensors changed."""
    full: bool = False
    """The saver process had no bytes of earlier versions in memory, so everything was read: it is the first update, an
    earlier attempt failed, the saver process is a new one, or cache_bytes is 0."""
    tried: tuple[str, ...] = ()
    """What went wrong before: versions that could not be loaded, and newer versions that cannot be opened."""


@dataclass(frozen=True)
class ConvertReport:
    """A conversion that is complete.

    >>> ConvertReport(format="hf", tensors=291, bytes=16_060_522_496, seconds=8.0).kept_files
    0
    """

    format: str = ""
    """The format of the result."""
    save_id: str = ""
    step: int | None = None
    tensors: int = 0
    values: int = 0
    bytes: int = 0
    """Bytes of the tensors and values."""
    skipped: tuple[str, ...] = ()
    """Values that the format cannot hold."""
    files: int = 0
    """Data files."""
    file_bytes: int = 0
    """Bytes of the data files."""
    kept_files: int = 0
    """Data files that an interrupted conversion had finished."""
    seconds: float = 0.0

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> ConvertReport:
        return cls(m.get("to") or "", m.get("save_id") or "", m.get("step"), _number(m, "tensors"),
                   _number(m, "objects"), _number(m, "bytes"), tuple(m.get("skipped") or ()), _number(m, "files"),
                   _number(m, "file_bytes"), _number(m, "kept_files"), float(m.get("seconds") or 0))


@dataclass(frozen=True)
class Copy:
    """A copy of a checkpoint, in one of the two places of a run.

    >>> Copy("/run/step-100", "incomplete", problem="a file is missing").complete
    False
    """

    path: str = ""
    """The path or the URL of its folder."""
    state: str = ""
    """"complete", "incomplete", or "under way" if a living process is saving it."""
    problem: str = ""
    """Why the copy is not complete."""
    save_id: str = ""
    bytes: int = 0
    """Bytes of all files in the folder."""

    @property
    def complete(self) -> bool:
        """Whether all files of the copy exist."""
        return self.state == "complete"

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> Copy:
        return cls(m.get("path") or "", m.get("state") or "", m.get("problem") or "", m.get("save_id") or "",
                   _number(m, "bytes"))


@dataclass(frozen=True)
class Exported:
    """What a checkpoint is converted into after its save, and what has become of it; see :class:`cairn.Run`.

    >>> Exported("hf/llama to /models", "failed", tries=1, problem="no space left").done
    False
    """

    export: str = ""
    """What was asked for: a form and an address."""
    state: str = ""
    """ "waiting", "done" or "failed"."""
    tries: int = 0
    problem: str = ""
    """Why the last try has failed."""
    name: str = ""
    """The folder of the checkpoint, if :meth:`cairn.Run.export_all` returns it."""

    @property
    def done(self) -> bool:
        """Whether the result is complete."""
        return self.state == "done"

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> Exported:
        return cls(m.get("export") or "", m.get("state") or "", _number(m, "tries"), m.get("problem") or "",
                   m.get("name") or "")


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run; see :meth:`cairn.Run.checkpoints`.

    >>> c = RunCheckpoint("step-100", 100, metrics={"loss": 2.5}, local=Copy("/run/step-100", "complete", bytes=512))
    >>> c.copies, c.uploaded, c.path
    ('local', False, '/run/step-100')
    """

    name: str = ""
    """The name of its folder."""
    step: int | None = None
    time: str | None = None
    """When its save began, as ISO 8601."""
    bytes: int = 0
    """Bytes of all files of a copy."""
    save_id: str = ""
    format: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    """Names of the checkpoints of the run to whose bytes it refers."""
    local: Copy | None = None
    """The copy in the run itself, or None."""
    remote: Copy | None = None
    """The copy in the remote run, or None."""
    not_uploaded: bool = False
    """The remote run lacks it, and should have it."""
    problem: str = ""
    """Why no policy removes it: its tags and metrics cannot be read, or its place in the history is unknown."""
    commit: int = 0
    """Orders the saves of the run: a later save has a larger number. 0: the save does not record it."""
    parent: str = ""
    """The checkpoint that was loaded or saved before it: the id of its save, or its folder if that has no id."""
    head: bool = False
    """It is the newest checkpoint of the current line, which :meth:`cairn.Run.latest` returns."""
    left: bool = False
    """It is on a line that the run has left: a job has gone on from an older checkpoint."""
    left_since: str | None = None
    """When the run has left it, as ISO 8601. None: it is on the current line, or the time is unknown."""
    exports: tuple[Exported, ...] = ()
    """What it is converted into."""

    @property
    def complete(self) -> bool:
        """Whether a copy is complete."""
        return self.copies != ""

    @property
    def copies(self) -> str:
        """Where complete copies are: "local", "remote", "both" or "". Copies of different saves are "differ"."""
        local = self.local is not None and self.local.complete
        remote = self.remote is not None and self.remote.complete
        if local and remote:
            assert self.local is not None and self.remote is not None
            return "both" if self.local.save_id == self.remote.save_id else "differ"
        return "local" if local else "remote" if remote else ""

    @property
    def uploaded(self) -> bool:
        """Whether the remote copy is complete, and of the same save as the local one."""
        return self.copies in ("both", "remote")

    @property
    def path(self) -> str | None:
        """The address of a complete copy of this save, of two the local one, or None if there is none."""
        return next((c.path for c in (self.local, self.remote)
                     if c is not None and c.complete and c.save_id == self.save_id), None)

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> RunCheckpoint:
        local, remote = (None if m.get(name) is None else Copy.from_message(m[name]) for name in ("local", "remote"))
        return cls(m.get("name") or "", m.get("step"), m.get("time"), _number(m, "bytes"), m.get("save_id") or "",
                   m.get("format") or "", {name: float(v) for name, v in (m.get("metrics") or {}).items()},
                   tuple(m.get("tags") or ()), tuple(m.get("bases") or ()), local, remote,
                   bool(m.get("not_uploaded")), m.get("problem") or "", _number(m, "commit"), m.get("parent") or "",
                   bool(m.get("head")), bool(m.get("left")), m.get("left_since"),
                   tuple(Exported.from_message(x) for x in m.get("exports") or ()))


@dataclass(frozen=True)
class Pruned:
    """What became of a copy of a checkpoint.

    >>> Pruned("step-100", 100, "/run/step-100", 512, "kept", ("last 3", "newest")).reasons
    ('last 3', 'newest')
    """

    name: str = ""
    step: int | None = None
    path: str = ""
    bytes: int = 0
    outcome: str = ""
    """"kept", "removed", "would remove" in a dry run, "not uploaded" yet, "in use" by a living process, or "failed"."""
    reasons: tuple[str, ...] = ()
    """The rules that keep the copy, or why no rule does."""
    problem: str = ""
    """Why a copy stays that the policy does not keep."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> Pruned:
        return cls(m.get("name") or "", m.get("step"), m.get("path") or "", _number(m, "bytes"),
                   m.get("outcome") or "", tuple(m.get("reasons") or ()), m.get("problem") or "")


@dataclass(frozen=True)
class PruneReport:
    """What :meth:`cairn.Run.prune` did, or would do.

    >>> PruneReport((Pruned("step-100", outcome="removed", bytes=512),), removed=1, removed_bytes=512).remote
    ()
    """

    local: tuple[Pruned, ...] = ()
    """The copies in the run itself, the oldest first."""
    remote: tuple[Pruned, ...] = ()
    """The copies in the remote run."""
    removed: int = 0
    """How many copies were removed, or would be in a dry run."""
    removed_bytes: int = 0
    warnings: tuple[str, ...] = ()
    """Why checkpoints stay whatever the policies say: not all is known about them."""
    flattened: tuple[str, ...] = ()
    """The names of the checkpoints that stand alone now, or would in a dry run, so that others need not stay."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> PruneReport:
        local, remote = (tuple(Pruned.from_message(p) for p in m.get(name) or ()) for name in ("local", "remote"))
        return cls(local, remote, _number(m, "removed"), _number(m, "removed_bytes"), tuple(m.get("warnings") or ()),
                   tuple(m.get("flattened") or ()))


@dataclass(frozen=True)
class Synced:
    """What :meth:`cairn.Run.sync` did with a checkpoint.

    >>> Synced("step-100", 100, "copied").problem
    ''
    """

    name: str = ""
    step: int | None = None
    state: str = ""
    """"copied", "replaced" if remote had another save of that name, "lacking" or "would replace" in a dry run,
    "present" if remote has it, "differs" if remote has another checkpoint of that name, "incomplete" or "failed"."""
    problem: str = ""
    replaces: str = ""
    """The id of the save of remote that was replaced, or would be in a dry run."""

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> Synced:
        return cls(m.get("folder") or "", m.get("step"), m.get("state") or "", m.get("problem") or "",
                   (m.get("replaces") or {}).get("save_id") or "")


@dataclass(frozen=True)
class SyncReport:
    """What :meth:`cairn.Run.sync` did.

    >>> SyncReport((Synced("step-100", 100, "copied"),)).copied
    ('step-100',)
    """

    checkpoints: tuple[Synced, ...] = ()
    seconds: float = 0.0
    exports: tuple[Exported, ...] = ()
    """The exports that were not done before."""

    @property
    def copied(self) -> tuple[str, ...]:
        """The names of the checkpoints that were uploaded."""
        return tuple(s.name for s in self.checkpoints if s.state in ("copied", "replaced"))

    @classmethod
    def from_message(cls, m: Mapping[str, Any]) -> SyncReport:
        return cls(tuple(Synced.from_message(s) for s in m.get("folders") or ()), float(m.get("seconds") or 0),
                   tuple(Exported.from_message(x) for x in m.get("exports") or ()))


def _number(m: Mapping[str, Any], name: str) -> int:
    return m.get(name) or 0


def _seconds(m: Mapping[str, Any], name: str) -> float:
    return _number(m, name) / 1e9


def _traffic(m: Mapping[str, Any]) -> Traffic | None:
    t = m.get("traffic")
    return None if t is None else Traffic.from_message(t)
