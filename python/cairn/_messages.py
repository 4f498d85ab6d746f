"""The messages between this process and its saver process, and the answers of commands: which fields they have.

docs/saver.md describes the messages. A field may be absent, unless that page says otherwise. Messages that become a
report are read by cairn.reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

encode = json.JSONEncoder(separators=(",", ":")).encode
"""Returns the JSON of a part of a message."""

FormatOptions: TypeAlias = Mapping[str, object]
"""Options of a format: booleans, integers and strings. docs/saver.md lists them, and the saver process checks them."""


class ErrorMessage(TypedDict, total=False):
    """An error."""

    text: str
    codes: Sequence[str]


class RecipeMessage(TypedDict, total=False):
    """A recipe, in which a checkpoint is shown."""

    name: str
    reverse: bool
    config: str | dict[str, object]
    set: dict[str, object]
    check: bool


class Source(TypedDict, total=False):
    """Where a checkpoint or a run is, and how it is read."""

    store: str
    format: str
    format_options: FormatOptions
    base: object
    recipe: RecipeMessage
    keep: int
    hold: bool
    cast: str
    share: bool


class Reading(TypedDict, total=False):
    """How a checkpoint is read: arguments of Saver.describe, Saver.hold and Saver.load."""

    format: str | None
    format_options: FormatOptions | None
    recipe: RecipeMessage | None
    keep: int


class Item(TypedDict, total=False):
    """A tensor, a box of one, or a value of a save."""

    name: str
    path: list[Any]
    dtype: str
    shape: list[int]
    sharded: bool
    offsets: list[int]
    sizes: list[int]
    strides: list[int]
    alias: int
    may_differ: bool
    requires_grad: bool
    pin_memory: bool
    memory_format: str
    layout: str
    codec: str
    data: str


class InRun(TypedDict, total=False):
    """The run that a save is a part of."""

    remote: str
    keep: str
    keep_remote: str
    refer: bool
    export: str
    export_every: str
    loaded: dict[str, str]
    remember: bool


class SaveMessage(TypedDict, total=False):
    """A save."""

    generation: int
    store: str
    remote: str
    local_bytes: int
    copies: int
    copy_rate: int
    format: str
    format_options: FormatOptions
    save_id: str
    time: str
    writer: str
    step: int
    tags: Mapping[str, str]
    files_per_rank: int
    buffer_bytes: int
    fail_if_exists: bool
    replaces: list[str]
    replaces_remote: list[str]
    sweep_after_ns: int
    base: dict[str, object]
    owner: str
    values_may_differ: bool
    tensors_may_differ: bool
    cache: bool
    metrics: dict[str, float | str]
    exports: list[str]
    run: InRun
    fits: bool
    items: list[Item]
    absent: list[str]


class Want(TypedDict, total=False):
    """An item of a load: a value, which has only a name, or a box of a tensor."""

    name: str
    dtype: str
    shape: list[int]
    offsets: list[int]
    sizes: list[int]
    at: int
    nbytes: int  # of the box; it is not part of the message


class Entry(TypedDict, total=False):
    """A tensor or a value of a checkpoint that is described."""

    name: str
    path: list[Any]
    dtype: str
    shape: list[int]
    requires_grad: bool
    alias: int
    order: int
    scales: str
    codec: str
    data: str
    bytes: int


class Described(TypedDict, total=False):
    """What a checkpoint holds."""

    load: int
    format: str
    save_id: str
    step: int | None
    time: str
    writer: str
    world_size: int
    tags: dict[str, str]
    notes: list[str]
    missing: list[str]
    entries: list[Entry]


class Version(TypedDict, total=False):
    """A version of a run."""

    step: int
    save_id: str
    store: str


class Known(TypedDict, total=False):
    """What is known about the versions of a run."""

    last: Version | None
    damaged: dict[str, str] | None
    unfit: Version | None


class Search(TypedDict, total=False):
    """A search for a version. Its other fields are the saver's own."""

    step: int


class Look(TypedDict, total=False):
    """A look at a run, or a step of a search."""

    known: Known
    search: Search
    outcome: ErrorMessage


class Found(TypedDict, total=False):
    """The outcome of a look at a run, or of a step of a search."""

    load: int
    version: Version
    problems: list[str]
    known: Known
    search: Search
    over: str
    why: ErrorMessage


class Body(TypedDict, total=False):
    """The fields of other messages of the saver process, about a save, a load or neither."""

    generation: int
    load: int
    error: ErrorMessage
    report: Mapping[str, Any]  # of an outcome, for a class of cairn.reports
    address: str  # of listening
    planned: int  # of progress
    moved: int
    text: str  # of warning
    items: list[int]  # of released
    fetch: int  # of fetch
    item: int  # of fetch and piece
    offset: int
    length: int
    at: int
    codec: str  # of piece
    data: str


class Message(TypedDict, total=False):
    """A message."""

    type: str
    body: Body


class Skipped(TypedDict):
    """A checkpoint that the command latest has passed over."""

    path: str
    under_way: bool
    problem: str


class Answer(TypedDict, total=False):
    """What commands answer, as far as it is read here and does not become a report."""

    error: str  # of each command that has failed
    codes: list[str]
    kind: str
    path: str  # of latest
    exports: list[Mapping[str, Any]]  # of export, for Exported
    skipped: list[Skipped]
    checkpoints: list[Mapping[str, Any]]  # of log, for RunCheckpoint
    keep: str  # of settings
    keep_remote: str
    memory: str  # of memory name
    name: str  # of rewind
    tags: list[str]  # of tag
