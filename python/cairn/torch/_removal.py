"""Removal of checkpoints that a framework does not want any more."""

from __future__ import annotations

import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable

from cairn import errors
from cairn._address import join_address, split_address
from cairn.runs import Member, Run, remove_one
from cairn.torch._handle import Handle, failure

_OWN = ("cairn.json", "cairn-notes.json")  # the record of a save, and its tags
Target = str | Member  # an address, or a checkpoint of a run, in all of its places


class Remover:
    """Removes checkpoints in a thread, while no save of the framework is under way.

    A checkpoint that a program reads, or that is still being uploaded, is removed later. One with tags stays.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[Target] = []  # guarded by _lock
        self._tagged: list[Target] = []  # checkpoints that stay for their tags
        self._thread: threading.Thread | None = None
        self._problems: list[str] = []
        self._uploads: list[Handle] = []  # saves whose upload may be under way

    def note_save(self, handle: Handle) -> None:
        """Notes a save, whose upload a removal must not disturb."""
        self._uploads = [h for h in self._uploads if not h.uploaded.done()] + [handle]

    def _upload(self, target: Target) -> Handle | None:
        """Returns the save of a checkpoint whose upload is under way, if there is one."""
        path = target.path if isinstance(target, Member) else target
        return next((h for h in self._uploads if h.path == path and not h.uploaded.done()), None)

    def add(self, target: Target) -> None:
        """Adds a checkpoint, for the next call of begin."""
        with self._lock:
            if target not in self._wanted + self._tagged:
                self._wanted.append(target)

    def _take(self) -> list[Target]:
        with self._lock:
            wanted, self._wanted = self._wanted, []
        return wanted

    def begin(self, after: Handle | None, find: Callable[[], Iterable[Target]] = list) -> None:
        """Begins to remove what was added, and what find returns, when a save is complete.

        If the save fails, all of it stays: it may be needed.
        """
        before = self._thread

        def work() -> None:
            if before is not None:
                before.join()
            if after is not None and failure(after) is not None:
                self._take()
                return
            try:
                for target in find():
                    self.add(target)
            except errors.CairnError as e:
                self._problems.append(f"old checkpoints could not be listed: {e}")
            self._remove_all()

        self._thread = threading.Thread(target=work, name="cairn-remove", daemon=True)
        self._thread.start()

    def settle(self, last: bool = False) -> None:
        """Waits until nothing is being removed, and warns of problems. The last call also waits for uploads."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if last:
            for target in self._wanted:  # nothing else uses it now
                if (handle := self._upload(target)) is not None:
                    failure(handle.uploaded)
            self._remove_all(last)
        problems, self._problems = self._problems, []
        for text in problems:
            warnings.warn(text, stacklevel=errors.outside())

    def _remove_all(self, last: bool = False) -> None:
        for target in self._take():
            if self._upload(target) is not None:
                self.add(target)
                continue
            try:
                remove_now(target)
            except (errors.InUseError, errors.UnderWayError) as e:
                if last:
                    self._problems.append(f"a checkpoint stays: {e}")
                else:
                    self.add(target)
            except (errors.CairnError, OSError) as e:
                if isinstance(e, errors.CairnError) and "run.tagged" in e.codes:
                    self._tagged.append(target)  # and is reported once
                    self._problems.append(f"a checkpoint stays: {e}")
                else:
                    self._problems.append(f"a checkpoint could not be removed: {e}")


def older(saved: str, keep: int, best: str = "") -> list[Target]:
    """Returns the folders before that of a checkpoint, but the newest keep of them, with it, and the one named best.

    Folders are named by a number, such as checkpoint-500. Those of later numbers belong to a run before this one,
    which may not have completed them.
    """
    folder, newest = split_address(saved)
    start = newest.rstrip("0123456789")
    # Of local folders, also what is left of saves that were killed.
    names = os.listdir(folder) if "://" not in folder else [c.name for c in Run(folder).checkpoints()]
    numbers = sorted(int(m[1]) for name in names if (m := re.fullmatch(re.escape(start) + r"(\d+)", name)))
    before = [n for n in numbers if n <= int(newest[len(start):])]
    return [join_address(folder, f"{start}{n}") for n in before[:-keep] if f"{start}{n}" != best]


def remove_now(target: Target) -> None:
    """Removes a checkpoint in one atomic step, then the other files in its folder. One that is not there is no error.

    A checkpoint whose record cannot be read stays, with its folder: another one may need it, and 'cairn repair' may
    rebuild it.
    """
    path = target.path if isinstance(target, Member) else target
    if "://" not in path and os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        os.unlink(path)  # a link, or a file that Lightning's own CheckpointIO has saved
        return
    for address in [path, target.remote] if isinstance(target, Member) else [path]:
        if address is None:
            continue
        try:
            remove_one(address, force=True)
        except errors.UnderWayError:
            raise
        except (errors.NotFoundError, errors.IncompleteError):
            pass  # a part of a checkpoint
        except errors.CorruptError:
            # A part of a file of another program is a part of a checkpoint too.
            if "://" in address or any(os.path.lexists(os.path.join(address, name)) for name in _OWN):
                raise
    if "://" not in path:
        shutil.rmtree(path, ignore_errors=True)
