"""Runs: the checkpoints of one training, and which of them are kept.

    >>> run = cairn.Run("run", keep="last 3, every 5000 steps, tagged")
    >>> [(c.step, c.copies) for c in run.checkpoints()]
    [(100, 'local')]

A policy is a text, or the rules of this module, which make the same text. The program cairn decides what a policy
keeps: docs/runs.md describes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cairn import _command, _ours, checkpoint as _checkpoint, errors
from cairn._address import address_of, join_address, memory_run, split_address
from cairn._messages import InRun
from cairn.reports import Copy, Exported, Pruned, PruneReport, RunCheckpoint, SyncReport

if TYPE_CHECKING:
    from cairn.torch import Handle

_T = TypeVar("_T")
_Copy = TypeVar("_Copy", Copy, Pruned)
__all__ = ["Member", "Policy", "Rule", "Run", "at_most", "best", "every", "last", "left", "loaded", "remove_one",
           "tagged", "within"]


@dataclass(frozen=True)
class Rule:
    """A rule of a policy. ``str`` returns its text.

    >>> cairn.Rule("last 3") == cairn.last(3)
    True
    """

    text: str

    def __str__(self) -> str:
        return self.text


Policy = str | Rule | Iterable[str | Rule]


def last(n: int) -> Rule:
    """Keeps the n newest checkpoints.

    >>> str(cairn.last(3))
    'last 3'
    """
    return Rule(f"last {operator.index(n)}")


def every(*, steps: int | None = None, weeks: int | None = None, days: int | None = None, hours: int | None = None,
          minutes: int | None = None, seconds: int | None = None) -> Rule:
    """Keeps the first checkpoint of each period: of a number of steps, or of a time.

    >>> str(cairn.every(steps=5000)), str(cairn.every(hours=6))
    ('every 5000 steps', 'every 6 hours')
    """
    return Rule(f"every {_amount(step=steps, week=weeks, day=days, hour=hours, minute=minutes, second=seconds)}")


def best(n: int, metric: str, *, highest: bool = False) -> Rule:
    """Keeps the n checkpoints with the lowest values of a metric or, with highest, with the highest ones.

    >>> str(cairn.best(2, "loss")), str(cairn.best(1, "accuracy", highest=True))
    ('best 2 by loss', 'best 1 by highest accuracy')
    """
    order = "highest " if highest else "lowest " if metric.lower() in ("highest", "lowest") else ""
    return Rule(f"best {operator.index(n)} by {order}{_word(metric)}")


def tagged(tag: str | None = None) -> Rule:
    """Keeps the checkpoints that have a tag, or that have any tag.

    >>> str(cairn.tagged()), str(cairn.tagged("release"))
    ('tagged', 'tagged release')
    """
    return Rule("tagged" if tag is None else f"tagged {_word(tag)}")


def within(*, weeks: int | None = None, days: int | None = None, hours: int | None = None,
           minutes: int | None = None, seconds: int | None = None) -> Rule:
    """Keeps the checkpoints that are not older than a time.

    >>> str(cairn.within(hours=12))
    'within 12 hours'
    """
    return Rule(f"within {_amount(week=weeks, day=days, hour=hours, minute=minutes, second=seconds)}")


def left(*, weeks: int | None = None, days: int | None = None, hours: int | None = None,
         minutes: int | None = None, seconds: int | None = None) -> Rule:
    """Keeps the checkpoints on lines that the run has left, for a time. Policies without it keep them for 2 days.

    >>> str(cairn.left(days=7))
    'left within 7 days'
    """
    return Rule(f"left within {_amount(week=weeks, day=days, hour=hours, minute=minutes, second=seconds)}")


def at_most(size: str | int) -> Rule:
    """Removes the oldest of the checkpoints that the other rules keep, until the rest has at most this size.

    >>> str(cairn.at_most("2TB")), str(cairn.at_most(10**9))
    ('at most 2TB', 'at most 1000000000 B')
    """
    return Rule(f"at most {size}" if isinstance(size, str) else f"at most {operator.index(size)} B")


def _amount(**units: int | None) -> str:
    """Returns a number of the one unit that is given, such as "6 hours"."""
    given = [(name, n) for name, n in units.items() if n is not None]
    if len(given) != 1:
        raise errors.OptionsError(f"want one of {', '.join(name + 's' for name in units)}", ("storage.options",))
    name, n = given[0]
    n = operator.index(n)
    return f"{n} {name}{'' if n == 1 else 's'}"


def _word(text: str) -> str:
    """Refuses a tag or a metric that would become several words or rules of a text."""
    if not text or "," in text or text.split() != [text]:
        raise errors.OptionsError(f"{text!r} is not a tag or the name of a metric: want one word without commas",
                                  ("storage.options",))
    return text


def policy_text(policy: Policy | None) -> str:
    """Returns the text of a policy. It is empty if there is none."""
    if policy is None:
        return ""
    parts = [policy] if isinstance(policy, (str, Rule)) or not isinstance(policy, Iterable) else list(policy)
    if not all(isinstance(part, (str, Rule)) for part in parts):
        raise errors.OptionsError(f"the policy is {policy!r}; want a text such as 'last 3, best 2 by loss', or rules "
                                  "such as cairn.last(3)", ("storage.options",))
    return ", ".join(map(str, parts))


def export_text(export: str) -> str:
    """Returns the text of an export. The saver process checks the rest."""
    if not isinstance(export, str) or " to " not in export:
        raise errors.OptionsError(f"the export is {export!r}; want a form and an address, such as "
                                  "'hf/llama to s3://bucket/models'", ("storage.options",))
    return export


def _every(which: int | Policy) -> Policy:
    return every(steps=which) if isinstance(which, int) else which


def positive(name: str, n: int | None) -> int | None:
    """Returns an argument that is a positive integer or None."""
    if n is not None and (n := operator.index(n)) < 1:
        raise errors.OptionsError(f"{name} is {n}; want a positive number", ("storage.options",))
    return n


def _normal(text: str) -> str:
    """Returns the text of a policy as the program cairn writes it, such as "every day" for "every 1 day"."""
    with tempfile.TemporaryDirectory(prefix="cairn-") as empty:
        try:
            return str(_command.run("settings", [f"--keep={text}"], empty)["keep"])
        except errors.OptionsError as e:  # without the name of the flag
            raise errors.OptionsError(str(e).removeprefix("--keep: "), e.codes) from None


def _checked(policy: Policy | None, run: str = "", remote: str | None = None) -> str:
    """Returns the text of a policy, and raises OptionsError if the program cairn does not understand it.

    It also raises the error if the run is a folder in which no checkpoint has a metric of the policy, unless the run
    has this policy already: then the first save with the metric may be still to come. A policy of remote asks for
    the metrics of both.
    """
    if not (text := policy_text(policy)):
        return text
    normal = _normal(text)
    if "best" not in normal or any("://" in place for place in (run, remote or "")) or not os.path.isdir(run):
        return text
    # NotFoundError: there are no checkpoints. Saves warn of the others.
    with contextlib.suppress(errors.NotFoundError, errors.IncompleteError, errors.CorruptError, errors.VersionError):
        if normal != _command.run("settings", [], run)["keep" if remote is None else "keep_remote"]:
            policies = [f"--keep={text}"] if remote is None else ["--keep=", f"--keep-remote={text}"]
            _command.run("prune", ["--dry-run", *policies, f"--remote={remote or ''}"], run)
    return text


# The options of a save that do not hold for saves to memory, which are in the native format.
_ONLY_DURABLE = frozenset({"format", "format_options", "files_per_rank", "local_bytes"})


class Due:
    """When save_if_due saves, and what it remembers from call to call. text is a policy as _normal returns it.

    It is run.Due of Go. Both are tested with run/testdata/due.json.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps: list[int] = []
        seconds: list[int] = []
        for rule in text.split(", "):
            words = rule.split()
            unit = words[-1].removesuffix("s")
            if words[0] != "every" or (unit != "step" and unit not in _SECONDS):
                raise errors.OptionsError(f'unusable policy: "{rule}" does not say when to save: want rules '
                                          'such as "every 500 steps" and "every 30 minutes"', ("storage.options",))
            n = int(words[1]) if len(words) == 3 else 1
            if unit == "step":
                self.steps.append(n)
            else:
                seconds.append(n * _SECONDS[unit])
        self.period = min(seconds, default=None)
        self.last: int | None = None  # the step of the last call
        self.saved: float | None = None  # the time of the last save or of the first call
        self.asked, self.since, self.skip = 0.0, 0, 0  # when rank 0 was asked, the calls since, and the calls to skip


_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


class Run:
    """The run in a folder, or at a URL: the checkpoints below it, and which of them are kept.

    >>> run = cairn.Run("run", keep=[cairn.last(3), cairn.tagged()])
    >>> for c in run.checkpoints():
    ...     print(c.name, c.step, c.copies)
    step-100 100 local
    >>> run.prune(dry_run=True).removed
    0

    ``cairn.torch.save`` and ``async_save`` accept a Run in place of a path::

        run = cairn.Run("/nvme/run", keep="last 3", remote="s3://bucket/run", keep_remote="every 5000 steps")
        handle = cairn.torch.async_save(state, run, step=step, metrics={"loss": 2.3})

    keep is the policy of path, and keep_remote that of remote, the same run in another store, to which checkpoints
    are uploaded. After each save and its upload, the saver process uploads what remote lacks, and removes what the
    policies do not keep. Without a policy, nothing is removed. The newest complete checkpoint, and one that a
    program reads, always stay. A checkpoint that is not uploaded yet stays if keep_remote would keep it.
    OptionsError: a policy is wrong, or it is new to the run in folders and no checkpoint there has the metric of
    a rule such as "best 2 by loss".

    A save to a folder without remote stores only what has changed since the one before it, as long as that pays:
    the checkpoint refers to others of the run, which stay. Only cairn opens such a checkpoint. Copy it with ``cairn
    cp``, not with ``cp -r``; ``cairn flatten`` makes it stand alone. With alone=True, all checkpoints do. With
    remember=True, the saver processes keep the bytes of the last save in memory, and compare with these instead of
    reading the checkpoint; a run in object storage then stores only what has changed, too.

    A run is a history. A save goes on from the checkpoint that this job has loaded or saved last. After a load of step
    500 of a run that has step 600, the checkpoints of the steps after 500 are on a line that was left: ``latest``
    returns the save after step 500, and policies keep the old line for 2 days, or as :func:`cairn.left` says. A save
    never replaces a checkpoint of another line: a second save of step 600 goes to a folder such as
    step-000000600~2; see ``Handle.path``.

    save says when :meth:`save_if_due` saves, in the words of keep: "every 500 steps, every 30 minutes".

    export says what checkpoints are converted into after their saves, such as "hf/llama to s3://bucket/models with
    /models/Llama-3.1-8B": the form of Hugging Face, with the configuration and the tokenizer of that folder, in folders
    such as s3://bucket/models/step-000005000. every says which saves: each 5000 steps, or a text in the words of save;
    without it, all. A process of low priority does so, while the training goes on. An export that fails does not harm
    the checkpoint, and is repeated after the next save. See :meth:`export_all` and docs/runs.md.

    memory says when it saves to the memory of the hosts of the job, such as "every 10 steps", for restarts that lose
    few steps; see docs/memory.md. ``latest`` and ``cairn.torch.load`` then find the newest checkpoint in memory or at
    path. The attribute ``memory`` is the run in memory, or None. A save to memory replaces the last one. Before it,
    keep_if, such as ``lambda: math.isfinite(loss)``, is called on all ranks: if it returns False on any of them, there
    is no save, and the last one stays. copies is how many other hosts keep a copy of each file, 1 by default, and
    copy_rate bounds the bytes per second of copies that each host receives.

    A run remembers its settings in a file of its folder when it is saved to. Without keep, remote and
    keep_remote, ``checkpoints``, ``prune``, ``sync`` and ``tag`` use these.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: Policy | None = None,
                 remote: str | os.PathLike[str] | None = None, keep_remote: Policy | None = None, alone: bool = False,
                 remember: bool = False, save: Policy | None = None, memory: Policy | None = None,
                 keep_if: Callable[[], bool] | None = None, copies: int | None = None, copy_rate: int | None = None,
                 export: str | None = None, every: int | Policy | None = None):
        self.path: str = address_of(path)
        """The absolute path, or the URL."""
        self.remote: str | None = None if remote is None else address_of(remote)
        """The address of the same run in another store."""
        if self.remote is None and keep_remote is not None:
            raise errors.OptionsError("keep_remote is set without remote", ("storage.options",))
        self.keep: str = _checked(keep, self.path)
        """The text of the policy; empty if there is none."""
        self.keep_remote: str = _checked(keep_remote, self.path, self.remote)
        """The text of the policy of remote; empty if there is none."""
        self.alone: bool = alone
        """Whether no checkpoint refers to another one."""
        self.remember: bool = remember
        """Whether the saver processes keep the bytes of the last save in memory."""
        if remember and (alone or remote is not None):
            raise errors.OptionsError("remember has no effect with alone or remote", ("storage.options",))
        self._due: Due | None = None if save is None else Due(_normal(policy_text(save)))
        self.export: str = "" if export is None else export_text(export)
        """What checkpoints are converted into; empty if they are not."""
        if every is not None and export is None:
            raise errors.OptionsError("every is set without export", ("storage.options",))
        self.every: str = "" if every is None else Due(_normal(policy_text(_every(every)))).text
        """The policy of the saves whose checkpoints are converted; empty for all saves."""
        if export is not None and memory_run(self.path) is not None:
            raise errors.OptionsError("checkpoints in memory are not exported", ("storage.options",))
        self.memory: Run | None = None
        """The run in the memory of the hosts."""
        self._keep_if = keep_if
        if keep_if is not None and memory is None:
            raise errors.OptionsError("keep_if is set without memory", ("storage.options",))
        self.copies: int | None = positive("copies", copies)
        """How many other hosts keep a copy of each file in memory; None means one."""
        self.copy_rate: int | None = positive("copy_rate", copy_rate)
        """The most bytes per second that a host receives for the copies; None means no bound."""
        if memory is not None:
            address = _command.run("memory", ["name"], self.path)["memory"]
            self.memory = Run(address, keep="last 1", alone=True, save=memory, copies=copies, copy_rate=copy_rate)
            self.copies = self.copy_rate = None
        elif (copies or copy_rate) and memory_run(self.path) is None:
            raise errors.OptionsError("copies and copy_rate are set without memory", ("storage.options",))

    def __repr__(self) -> str:
        more = {"keep": self.keep, "remote": self.remote, "keep_remote": self.keep_remote, "alone": self.alone,
                "remember": self.remember, "memory": self.memory and self.memory.path, "copies": self.copies,
                "copy_rate": self.copy_rate, "export": self.export, "every": self.every}
        return f"cairn.Run({', '.join([repr(self.path), *(f'{k}={v!r}' for k, v in more.items() if v)])})"

    def checkpoints(self) -> list[RunCheckpoint]:
        """Returns the checkpoints of the run, in any format, the oldest save first, also incomplete ones.

        >>> c = cairn.Run("run").checkpoints()[-1]
        >>> c.step, c.copies, c.not_uploaded, c.metrics
        (100, 'local', False, {})
        """
        try:
            found = _command.run("log", self._flags(), self.path)["checkpoints"]
        except errors.NotFoundError:
            return []
        return [self._addressed(RunCheckpoint.from_message(c)) for c in found]

    def latest(self, *, wait: bool = False, timeout: float | None = None) -> str | None:
        """Returns the path or the URL of the newest complete checkpoint, or None if there is none.

        It is the last one of the current line: the last save or, if the run was rewound since, that checkpoint.

        >>> cairn.Run("run").latest()                    # doctest: +ELLIPSIS
        '/.../run/step-100'

        See :func:`cairn.latest`.
        """
        if self.memory is not None:
            # Checkpoints in memory are commits of the same history, so a rewind of the run counts after them.
            found = _checkpoint.latest(self.memory.path, wait=wait, timeout=timeout, remote=self.path)
            if found is not None or self.remote is None:
                return found
        return _checkpoint.latest(self.path, wait=wait, timeout=timeout, remote=self.remote)

    def prune(self, *, dry_run: bool = False, force: bool = False) -> PruneReport:
        """Removes the checkpoints that the policies do not keep, each in one atomic step.

        >>> report = cairn.Run("run", keep="last 1").prune(dry_run=True)
        >>> for p in report.local:
        ...     print(p.name, p.outcome, *p.reasons, sep=", ")
        step-100, kept, last 1, newest

        Saves to a run do so too. With dry_run, nothing is removed. With force, checkpoints are removed even if they
        are not uploaded yet. OptionsError: the run has no policy.
        """
        # These are the policies of the run, so they decide about checkpoints with tags too.
        flags = [*self._flags(), "--tagged-too", *(["--dry-run"] if dry_run else []), *(["--force"] if force else [])]
        if self.keep:
            flags.append(f"--keep={self.keep}")
        try:
            done = _command.run("prune", flags, self.path)
        except errors.NotFoundError:  # there are no checkpoints
            return PruneReport()
        report = PruneReport.from_message(done)
        return dataclasses.replace(report, local=tuple(_addressed(p, p.name, self.path) for p in report.local),
                                   remote=tuple(_addressed(p, p.name, self.remote) for p in report.remote))

    def rewind(self, checkpoint: int | str | os.PathLike[str] | RunCheckpoint) -> RunCheckpoint:
        """Makes the run go on from an older checkpoint, and returns it. No checkpoint is removed by this.

        >>> cairn.Run("run").rewind(100).head
        True

        ``latest`` and ``cairn.torch.load(state, run)`` return it from now on, in all processes, until a later save.
        Policies count the later checkpoints as left. The next save of this process goes on from the checkpoint that it
        has loaded or saved last, also after a rewind, so load the checkpoint before it::

            run.rewind(500)
            cairn.torch.load(state, run)

        A checkpoint is a step, the name of a folder, a path or a RunCheckpoint. Of several checkpoints of a step, it is
        the newest one of the current line. NotFoundError: the run has no such checkpoint.
        """
        if isinstance(checkpoint, (str, os.PathLike, RunCheckpoint)):
            to = self._name(checkpoint)
        else:
            to = str(operator.index(checkpoint))  # the program finds the checkpoint of the current line
        name = _command.run("rewind", [f"--remote={self.remote}"] if self.remote else [], self.path, to)["name"]
        return next(c for c in self.checkpoints() if c.name == name)

    def sync(self, *, dry_run: bool = False) -> SyncReport:
        """Uploads at once the checkpoints that remote lacks, for example because an upload was interrupted.

        >>> cairn.Run("run", remote="copies").sync().copied
        ('step-100',)

        What keep_remote would not keep is not uploaded. If remote has another save of a checkpoint, the local one
        replaces it if it is newer, and ``checkpoints`` says which save it has replaced; otherwise CairnError says what
        to do, and nothing is overwritten. A save to the run does the same in the background. It also
        carries out the exports that are not done; see :meth:`export_all`. OptionsError: the run has no remote place,
        and no export that is not done.
        """
        flags = [*self._flags(), *(["--dry-run"] if dry_run else [])]
        return SyncReport.from_message(_command.run("sync", flags, self.path))

    def export_all(self) -> tuple[Exported, ...]:
        """Carries out the exports of the run that are not done, waits for those under way, and returns them.

        >>> cairn.Run("run").export_all()
        ()

        The end of a training may call it on one rank, before the job's processes are stopped. The error is that of the
        exports that fail: the others are done.
        """
        out = _command.run("export", self._flags(), self.path)["exports"]
        return tuple(Exported.from_message(x) for x in out)

    def tag(self, checkpoint: int | str | os.PathLike[str] | RunCheckpoint, *tags: str, remove: Iterable[str] = (),
            metrics: Mapping[str, float] | None = None) -> tuple[str, ...]:
        """Adds tags to a checkpoint, removes tags, sets metrics, and returns all tags that it has then.

        >>> cairn.Run("run").tag(100, "release", "best", metrics={"loss": 2.3})
        ('best', 'release')
        >>> cairn.Run("run").tag("step-100", remove=["best"])
        ('release',)

        A checkpoint is a step, the name of a folder, a path or a RunCheckpoint. NotFoundError: the run has no such
        checkpoint.
        """
        flags = [*(f"--remove={t}" for t in remove),
                 *(f"--metric={name}={float(v)!r}" for name, v in (metrics or {}).items())]
        done = self._everywhere(checkpoint, lambda address: _command.run("tag", flags, address, *tags))
        return tuple(sorted({t for answer in done for t in answer["tags"]}))

    def remove(self, checkpoint: int | str | os.PathLike[str] | RunCheckpoint, *, force: bool = False,
               tagged_too: bool = False) -> None:
        """Removes a checkpoint from path and from remote, in one atomic step each.

        >>> report = cairn.convert("run/step-100", "old/step-50", format="native")
        >>> cairn.Run("old").remove("step-50", force=True)

        A checkpoint is a step, the name of a folder, a path or a RunCheckpoint. The newest complete one is removed
        only with force, and one with tags only with tagged_too. If one copy is refused, the other one stays too.
        NotFoundError: the run has no such checkpoint. InUseError: a living process reads it.
        """
        remove = functools.partial(remove_one, force=force, tagged_too=tagged_too)
        if self.remote is not None:
            self._everywhere(checkpoint, functools.partial(remove, dry_run=True))
        self._everywhere(checkpoint, remove)

    def step(self, step: int) -> RunCheckpoint:
        """Returns the newest complete checkpoint of a step, on the current line if that has one.

        >>> cairn.Run("run").step(100).name
        'step-100'

        NotFoundError: there is none.
        """
        found = [c for c in self.checkpoints() if c.step == operator.index(step) and c.complete]
        if not found:
            raise errors.NotFoundError(f"{self.path} has no complete checkpoint of step {step}; run.checkpoints() "
                                       "lists the others", ("storage.notfound",))
        return ([c for c in found if not c.left] or found)[-1]

    def best(self, metric: str, *, highest: bool = False) -> RunCheckpoint:
        """Returns the complete checkpoint with the lowest value of a metric or, with highest, with the highest one.

        >>> report, run = cairn.convert("run/step-100", "scores/step-100", format="native"), cairn.Run("scores")
        >>> tags = run.tag(100, metrics={"loss": 2.5})
        >>> run.best("loss").name
        'step-100'

        It is the one that the rule "best 1 by loss" keeps: NaN is never the best, and checkpoints on lines that were
        left count only if the current line has no other. NotFoundError: no checkpoint has the metric. CorruptError,
        VersionError: the tags and metrics of a checkpoint cannot be read, so it may be the best one.
        """
        return self.best_by(str(best(1, metric, highest=highest)).removeprefix("best 1 by "))

    def best_by(self, text: str) -> RunCheckpoint:
        """Is best for the words of a policy: "loss" or "highest accuracy"."""
        remote = [f"--remote={self.remote}"] if self.remote else []
        try:
            found = _command.run("log", [*remote, f"--best={text}"], self.path)["checkpoints"]
        except errors.OptionsError as e:  # without the name of the flag
            raise errors.OptionsError(str(e).removeprefix("--best: "), e.codes) from None
        return self._addressed(RunCheckpoint.from_message(found[0]))

    def save_if_due(self, state: Mapping[Any, Any], step: int, **options: Any) -> Handle | None:
        """Saves a state in the background if the policy ``save`` of the run says so. All ranks call it in each step.

        ::

            run = cairn.Run("run", save="every 500 steps, every 30 minutes")
            for step in range(1, 10_001):
                train(step)
                run.save_if_due({"model": model}, step)

        It returns the handle of the save, or None. The options are those of :func:`cairn.torch.async_save`. If both
        a save and a save to memory are due, the state is saved to path only.

        "every 500 steps" saves in the first call at or after each multiple of 500, and in step 0 if that is the first
        call. "every 30 minutes" saves when so much time is over since the first call or the last save. The clock of
        rank 0 decides for all ranks. They ask it through the store of the job, and rarely if the time is still long:
        not at all if the policy has only steps.
        """
        from cairn.torch._due import all_agree, is_due
        from cairn.torch._save import async_save

        if self._due is None and self.memory is None:
            raise errors.OptionsError('save_if_due needs a policy: cairn.Run(…, save="every 500 steps")',
                                      ("storage.options",))
        here, in_memory = [r is not None and r._due is not None and is_due(r._due, operator.index(step))
                           for r in (self, self.memory)]
        if here:
            return async_save(state, self, step=step, **options)
        if in_memory and all_agree(self._keep_if):
            options = {k: v for k, v in options.items() if k not in _ONLY_DURABLE}
            return async_save(state, self.memory, step=step, **options)  # type: ignore[arg-type]  # it is not None
        return None

    def _everywhere(self, checkpoint: int | str | os.PathLike[str] | RunCheckpoint,
                    call: Callable[[str], _T]) -> list[_T]:
        """Calls a function with the address of each copy of a checkpoint. One copy may be missing."""
        member = Member(self, self._name(checkpoint))
        out, missing = [], None
        for address in (member.path, member.remote):
            try:
                if address is not None:
                    out.append(call(address))
            except errors.NotFoundError as e:
                missing = missing or e
        if missing is not None and not out:
            raise missing
        return out

    def _name(self, checkpoint: int | str | os.PathLike[str] | RunCheckpoint) -> str:
        """Returns the name of the folder of a checkpoint."""
        if isinstance(checkpoint, RunCheckpoint):
            return checkpoint.name
        if isinstance(checkpoint, (str, os.PathLike)):
            return split_address(os.fspath(checkpoint))[1]
        step = operator.index(checkpoint)
        found = [c for c in self.checkpoints() if c.step == step]
        if not found:
            raise errors.NotFoundError(f"{self.path} has no checkpoint of step {step}", ("storage.notfound",))
        return ([c for c in found if not c.left] or found)[-1].name

    def path_of(self, step: int) -> str:
        """Returns the address to which a save of a step would go, whether there is a checkpoint or not.

        It is the address of a save of a step, unless that folder has a checkpoint that the save must not replace.

        If a step was saved on several lines, this is the folder of the first save. ``step(step)`` returns the
        checkpoint of the current line.

        >>> cairn.Run("run").path_of(100)                # doctest: +ELLIPSIS
        '/.../run/step-000000100'
        """
        return self.member(step).path

    def member(self, step: int | None) -> Member:
        """Returns the place of a save of a step."""
        if step is None or operator.index(step) < 0:
            raise errors.OptionsError(f"the step is {step}; a save to a run needs one, which names its folder",
                                      ("storage.options",))
        return Member(self, f"step-{operator.index(step):09}")

    def find(self, path: str | os.PathLike[str]) -> Member | None:
        """Returns the place of a path directly in the run, or None for other paths."""
        above, name = split_address(address_of(path))
        return Member(self, name) if name and above == self.path.rstrip("/") else None

    def _flags(self) -> list[str]:
        """Returns the flags about the remote run."""
        flags = [f"--remote={self.remote}"] if self.remote else []
        return [*flags, f"--keep-remote={self.keep_remote}"] if self.keep_remote else flags

    def _addressed(self, c: RunCheckpoint) -> RunCheckpoint:
        """Returns a checkpoint with the addresses of its copies."""
        local, remote = (None if copy is None else _addressed(copy, c.name, root)
                         for copy, root in ((c.local, self.path), (c.remote, self.remote)))
        return dataclasses.replace(c, local=local, remote=remote)


def _addressed(copy: _Copy, name: str, root: str | None) -> _Copy:
    """Returns a copy with its address. Messages leave out the query of a URL, which may be secret."""
    return copy if root is None else dataclasses.replace(copy, path=join_address(root, name))


def remove_one(address: str, force: bool = False, tagged_too: bool = False, dry_run: bool = False) -> None:
    """Removes the checkpoint at an address in one atomic step. force: also the newest one of its run.

    tagged_too: also one with tags. dry_run: raises the error of a refusal, and removes nothing.
    """
    _command.run("rm", ["--force"] * force + ["--tagged-too"] * tagged_too + ["--dry-run"] * dry_run, address)


@dataclass(frozen=True)
class Member:
    """The place of a checkpoint in a run."""

    run: Run
    name: str

    @property
    def path(self) -> str:
        """The address in the run."""
        return join_address(self.run.path, self.name)

    @property
    def remote(self) -> str | None:
        """The address in the remote run, if there is one."""
        return None if self.run.remote is None else join_address(self.run.remote, self.name)

    def message(self) -> InRun:
        """Returns the field "run" of the message of a save, with the checkpoint that was loaded since the last save.

        It forgets that checkpoint: the save after this one goes on from this one.
        """
        message: InRun = {}
        if self.run.keep:
            message["keep"] = self.run.keep
        if self.run.keep_remote:
            message["keep_remote"] = self.run.keep_remote
        if not self.run.alone and self.run.remote is None:
            message["refer"] = True
            if self.run.remember:
                message["remember"] = True
        if self.run.export:
            message["export"] = self.run.export
            if self.run.every:
                message["export_every"] = self.run.every
        for place in (self.run.path, self.run.remote):
            if place is not None and (found := _loaded.pop(split_address(join_address(place, "x"))[0], None)):
                message["loaded"] = found
        return message


_loaded: dict[str, dict[str, str]] = {}  # checkpoints since the last save to their run, by the address of the run


def loaded(address: str, save_id: str) -> None:
    """Notes that this process goes on from a checkpoint. A later load from the same run replaces it."""
    _ours.note_loaded(address, save_id)
    above, name = split_address(address)
    if name:
        _loaded[above] = {"folder": name, "save_id": save_id}
