"""What a caller asks of a save, and the message about it for the saver process."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import operator
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from cairn import _ours, errors
from cairn._address import address_of, join_address, memory_run
from cairn._messages import FormatOptions, SaveMessage
from cairn.runs import Member, Run, export_text, positive


@dataclass(frozen=True, kw_only=True)
class SaveRequest:
    """A save. The fields have the names of those of the message, except path, overwrite and export."""

    path: str | os.PathLike[str] | Run | Member
    """It becomes store and, in a run, remote and run."""
    overwrite: bool | None = None
    """It becomes fail_if_exists or, for saves to a path, replaces and replaces_remote."""
    step: int | None = None
    tags: Mapping[str, str] | None = None
    metrics: Mapping[str, object] | None = None
    format: str = "native"
    format_options: FormatOptions | None = None
    files_per_rank: int = 0
    remote: str | os.PathLike[str] | None = None
    local_bytes: int = 0
    copies: int | None = None
    copy_rate: int | None = None
    tensors_may_differ: bool = False
    export: str | None = None
    """It becomes exports."""
    save_id: str = ""
    """A new one, if it is empty. The one of rank 0 counts."""

    def checked(self) -> SaveRequest:
        """Returns the request with addresses, numbers and an id, or raises what is wrong with it."""
        path, remote = self.path, self.remote
        if not isinstance(path, (Run, Member)) and memory_run(address := address_of(path)) == address[len("memory://"):]:
            path = Run(address, keep="last 1")  # the run itself: the step names the folder
        copies, copy_rate = positive("copies", self.copies), positive("copy_rate", self.copy_rate)
        if isinstance(path, Run):
            path = path.member(self.step)
        if isinstance(path, Member):
            if remote is not None:
                raise _wrong("remote is set, but the run has the address of the remote run")
            remote = path.remote
        metrics = numbers(self.metrics)
        store = above = address_of(path.path if isinstance(path, Member) else path)
        while "://" not in store and not os.path.exists(above):
            above = os.path.dirname(above)
        if os.path.isfile(above):
            raise _wrong(f"{above} is a file: a checkpoint is saved to a folder")
        step = None if self.step is None else operator.index(self.step)
        if step is not None and not -1 << 63 <= step < 1 << 63:
            raise _wrong(f"the step is {step}; it has 64 bits")
        files_per_rank, local_bytes = operator.index(self.files_per_rank), operator.index(self.local_bytes)
        if local_bytes and remote is None:
            raise _wrong("local_bytes is set without remote: nothing could be removed")
        remote = None if remote is None else address_of(remote)
        if isinstance(path, Member):
            copies, copy_rate = copies or path.run.copies, copy_rate or path.run.copy_rate
        if (copies or copy_rate) and memory_run(store) is None:
            raise _wrong(f"copies and copy_rate are for saves to memory, and {store} is not in memory")
        if self.export is not None:
            export_text(self.export)
            if memory_run(store) is not None:
                raise _wrong("checkpoints in memory are not exported")
        json.dumps(self.format_options, allow_nan=False)
        if not isinstance(self.overwrite, bool | None):
            raise _wrong(f"overwrite is {self.overwrite!r}; want True, False or None")
        if not all(isinstance(s, str) for tag in (self.tags or {}).items() for s in tag):
            raise _wrong(f"tags are {self.tags!r}; want strings")
        return dataclasses.replace(self, path=path if isinstance(path, Member) else store, step=step, metrics=metrics,
                                   files_per_rank=files_per_rank, local_bytes=local_bytes, remote=remote,
                                   copies=copies, copy_rate=copy_rate, save_id=self.save_id or new_id())

    @property
    def store(self) -> str:
        """The address of the folder."""
        assert not isinstance(self.path, Run)
        return address_of(self.path.path if isinstance(self.path, Member) else self.path)

    @property
    def in_memory(self) -> bool:
        """Whether the checkpoint is in the memory of the hosts."""
        return memory_run(self.store) is not None

    @property
    def upload(self) -> str | None:
        """The address in another store, or None."""
        return None if self.remote is None else address_of(self.remote)

    def place(self, address: str) -> str:
        """Returns the address of the checkpoint in a folder: of its file, if other checkpoints may be beside it."""
        file = (self.format_options or {}).get("file")
        return join_address(address, file) if self.format == "torch" and isinstance(file, str) else address

    def title(self) -> str:
        """Describes the save. The ranks of other hosts may have other paths to the folder, or to the run."""
        end = (self.upload or self.store).rstrip("/").split("/")[-2 if isinstance(self.path, Member) else -1:]
        return f"save to {'/'.join(end)!r}, step {self.step}"

    def message(self) -> SaveMessage:
        """Returns the message of a checked request, without what describes the state.

        It forgets the checkpoint of the run that was loaded: the save after this one goes on from this one.
        """
        message: SaveMessage = {
            "store": self.store, "format": self.format, "save_id": self.save_id,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z"),
            "writer": "cairn.torch", "fail_if_exists": self.overwrite is False, "cache": True,
            "files_per_rank": self.files_per_rank,
        }
        if self.format_options:
            message["format_options"] = self.format_options
        if self.step is not None:
            message["step"] = self.step
        if self.tags:
            message["tags"] = self.tags
        if metrics := numbers(self.metrics):
            message["metrics"] = metrics
        if self.export:
            message["exports"] = [self.export]
        if isinstance(self.path, Member):
            message["run"] = self.path.message()
        elif self.overwrite is None:
            message["replaces"] = _ours.ids_at(self.store, self.place(self.store))
            if self.upload is not None:  # a save is uploaded after those before it, whose uploads may have failed
                message["replaces_remote"] = [*_ours.ids_at(self.upload, self.place(self.upload)),
                                              *filter(None, message["replaces"])]
        if self.tensors_may_differ:
            message["tensors_may_differ"] = True
        if self.upload is not None:
            message["remote"], message["local_bytes"] = self.upload, self.local_bytes
        if self.copies:
            message["copies"] = self.copies
        if self.copy_rate:
            message["copy_rate"] = self.copy_rate
        return message


def numbers(metrics: Mapping[str, object] | None) -> dict[str, float | str]:
    """Returns metrics as a message has them. What float accepts is a number, such as a tensor with one element."""
    out: dict[str, float | str] = {}
    for name, v in (metrics or {}).items():
        if not isinstance(name, str):
            raise _wrong(f"a metric is called {name!r}; want a string")
        try:
            n = float(v)  # type: ignore[arg-type]  # it may be of any class
        except (TypeError, ValueError, RuntimeError) as e:
            raise errors.OptionsError(f"the metric {name!r} is {v!r}; want a number: {e}",
                                      ("storage.options",)) from None
        out[name] = n if math.isfinite(n) else "NaN" if math.isnan(n) else "+Inf" if n > 0 else "-Inf"
    return out


def new_id() -> str:
    """Returns the id of a new save, or of a load: the names of newer files come after those of older ones."""
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dt%H%M%S}-{secrets.token_hex(6)}"


def _wrong(text: str) -> errors.OptionsError:
    return errors.OptionsError(text, ("storage.options",))
