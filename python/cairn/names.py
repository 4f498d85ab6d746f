"""The names of a state and the names of a checkpoint."""

from __future__ import annotations

import collections
import difflib
import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from cairn import errors

Names = str | Sequence[str] | Callable[[str], bool] | None
Rename = Mapping[str, str] | Callable[[str], str] | str | None

# What DDP, torch.compile, FSDP1 and activation checkpoints add to the names of a module's parameters.
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_SHOWN = 3


def bare(name: str) -> str:
    """Returns a name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def renamer(rename: Rename, names: Collection[str]) -> Callable[[str], str]:
    """Returns a function from the names of a state to the names of a checkpoint.

    rename is a dict of prefixes (of the state: of the checkpoint), a function, "wrappers", or
    None for the same names.
    """
    if rename is None:
        return lambda name: name
    if callable(rename):

        def called(name: str) -> str:
            if not isinstance(new := rename(name), str):
                raise errors.OptionsError(f"rename returns {new!r} for {name!r}; want a name", ("storage.options",))
            return new

        return called
    if isinstance(rename, Mapping):
        prefixes = sorted(rename.items(), key=lambda pair: -len(pair[0]))  # the longest one counts

        def replace(name: str) -> str:
            return next((new + name[len(old):] for old, new in prefixes if name.startswith(old)), name)

        return replace
    if rename != "wrappers":
        raise errors.OptionsError(f"rename is {rename!r}; want a dict of prefixes, a function, or 'wrappers'",
                                  ("storage.options",))
    there: dict[str, str] = {}
    for name in names:
        if there.setdefault(bare(name), name) != name:
            raise errors.OptionsError(f"rename='wrappers': the checkpoint has both {there[bare(name)]!r} and {name!r}",
                                      ("storage.options",))
    return lambda name: there.get(bare(name), name)


def distinct(wanted: Mapping[str, str]) -> None:
    """Refuses names of a state that are equal without wrappers. wanted maps names of the state to the checkpoint."""
    first: dict[str, str] = {}
    for name, there in wanted.items():
        if first.setdefault(there, name) != name:
            raise errors.OptionsError(f"rename='wrappers': the state has both {first[there]!r} and {name!r}",
                                      ("storage.options",))


def chosen(has: Sequence[str], names: Names, call: str) -> list[str]:
    """Returns the names of a checkpoint that names chooses, in any order.

    names is a name or a pattern, a list of both, a function of the name, or None for all. MissingError: has lacks a
    name, or a pattern matches none. call is the function that the user has called.

    >>> chosen(["a.w", "a.b", "c"], ["a.*", "c"], "weights")
    ['a.w', 'a.b', 'c']
    """
    if names is None:
        return list(has)
    if callable(names):
        return [n for n in has if names(n)]
    wanted = [names] if isinstance(names, str) else list(names)
    known = set(has)
    found = {want: [want] if want in known else fnmatch.filter(has, want) if any(c in want for c in "*?[") else []
             for want in wanted}
    if lacks := [want for want in found if not found[want]]:
        raise missing(lacks, {want: want for want in found}, has, call=call, can_rename=False)
    return [name for want in found for name in found[want]]


def missing(lacks: Collection[str], wanted: Mapping[str, str], names: Collection[str], *, call: str = "load",
            can_rename: bool = True) -> errors.MissingError:
    """Returns the error for names that a checkpoint lacks. wanted maps names of the state to the checkpoint's.

    call is the function that the user has called, and can_rename says whether it has the option rename.
    """
    of = "of the state" if can_rename else f"for {call}"
    text = f"{len(lacks)} of the {len(wanted)} names {of} are not in the checkpoint: {_some(lacks)}"
    if can_rename and (option := _option(lacks, set(names) - set(wanted.values()))):
        text += f". {call}(…, rename={option}) finds them"
    elif near := _nearest(sorted(lacks)[:_SHOWN], names):
        text += f". The nearest names that it has: {_some(near)}"
    elif names:
        text += f". It has {_some(names)}"
    if call == "load":
        text += ". load(…, strict=False) leaves out missing names"
    return errors.MissingError(text, ("plan.missing", "plan.mismatch"))


def unexpected(extra: Collection[str], owner: str) -> errors.MismatchError:
    """Returns the error for names of a checkpoint that their owner, a module or an optimizer, lacks."""
    return errors.MismatchError(f"the checkpoint has {len(extra)} names that {owner} lacks: "
                                f"{_some(extra)}. "
                                "load(…, strict=False) leaves them out", ("plan.mismatch",))


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _option(lacks: Collection[str], names: Collection[str]) -> str:
    """Returns the value of the option rename that maps all that is missing to these names, or an empty string."""
    there = set(names)
    by_end: dict[str, list[str]] = collections.defaultdict(list)
    for name in there:
        by_end[name.rpartition(".")[2]].append(name)
    pairs: dict[tuple[str, str], None] = {}  # in order
    for name in sorted(lacks)[:20]:
        parts = name.split(".")
        best = 0
        others: list[list[str]] = []
        for other in by_end[parts[-1]]:
            theirs = other.split(".")
            n = next((i for i, (a, b) in enumerate(zip(reversed(parts), reversed(theirs))) if a != b),
                     min(len(parts), len(theirs)))
            if n >= best:
                best, others = n, [*(others if n == best else []), theirs]
        for theirs in others:
            old, new = (".".join(p[:len(p) - best]) for p in (parts, theirs))
            pairs[old and old + ".", new and new + "."] = None
    for old, new in pairs:
        if all(name.startswith(old) and new + name[len(old):] in there for name in lacks):
            return repr({old: new})
    known = {bare(name) for name in there}
    return repr("wrappers") if all(bare(name) in known for name in lacks) else ""


def _nearest(lacks: list[str], names: Collection[str]) -> list[str]:
    return list(dict.fromkeys(near for name in lacks for near in difflib.get_close_matches(name, names, 1, 0.7)))
