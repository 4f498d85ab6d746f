"""The names of a state and the names of a checkpoint."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cairn import errors

Names = str | Sequence[str] | Callable[[str], bool] | None
Rename = Mapping[str, str] | Callable[[str], str] | str | None

# What DDP, torch.compile, FSDP1 and activation checkpoints add to the names of a module's parameters.
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_MODELS = frozenset({"model", "state_dict", "model_state_dict"})  # keys that training programs use for the model
_COPIES = {
    "optimizer state": frozenset({"adam", "adamw", "exp", "opt", "optim", "optimizer", "optimizers", "optims"}),
    "an EMA copy": frozenset({"average", "averaged", "averages", "averaging", "avg", "ema", "momentum", "polyak",
                              "shadow", "swa", "target", "teacher"}),
}
"""Words in the names of tensors that have the names and shapes of a model's weights, and other contents."""
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
            can_rename: bool = True,
            fits: Callable[[str, str], bool] = lambda mine, theirs: True) -> errors.MissingError:
    """Returns the error for names that a checkpoint lacks. wanted maps names of the state to the checkpoint's.

    call is the function that the user has called, and can_rename says whether it has the option rename. fits says
    whether a name of the state can have the contents of a name of the checkpoint, which may have another shape.
    """
    of = "of the state" if can_rename else f"for {call}"
    text = f"{len(lacks)} of the {len(wanted)} names {of} are not in the checkpoint: {_some(lacks)}"
    if can_rename and (hint := _hint(sorted(_options(lacks, wanted, names, fits)), call)):
        text += hint
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
    return _first([repr(name) for name in sorted(names)])


def _first(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")


@dataclass(frozen=True, order=True)
class _Option:
    """A value of the option rename that finds all that is missing. The best one is the least."""

    is_copy: bool  # the contents are other ones, such as an EMA copy
    distance: int  # 0: only wrappers differ, 1: also the key of the model, 2: other parts
    text: str
    what: str

    @classmethod
    def of(cls, old: str, new: str) -> _Option:
        """Returns the option that replaces the prefix old by new."""
        kind, theirs = _kind(old), _kind(new)
        if kind != theirs:
            return cls(True, 2, repr({old: new}), theirs or f"not {kind}")
        mine, other = ([part for part in bare(prefix).split(".") if part] for prefix in (old, new))
        if mine == other:
            return cls(False, 0, repr({old: new}), "in a wrapper" if len(new) > len(old) else "without a wrapper")
        mine, other = ([part for part in parts if part not in _MODELS] for parts in (mine, other))
        return cls(False, 1 if mine == other else 2, repr({old: new}), "another prefix")

    def __str__(self) -> str:
        return f"rename={self.text} ({self.what})"


def _kind(prefix: str) -> str:
    """Returns which kind of copy has names with this prefix, or an empty string."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", prefix)}
    return next((kind for kind, some in _COPIES.items() if words & some), "")


def _options(lacks: Collection[str], wanted: Mapping[str, str], names: Collection[str],
             fits: Callable[[str, str], bool]) -> Iterator[_Option]:
    """Yields the values of the option rename that find all names of the state, also those that are found without it."""
    has = set(names)
    free = has - set(wanted.values())
    alike = True
    for old, new in _prefixes(min(lacks, key=lambda name: (name.count("."), name)), free):
        if all(name.startswith(old) and (there := new + name[len(old):]) in free and fits(name, there)
               for name in lacks) and has.issuperset(map(renamer({old: new}, ()), wanted)):
            yield (option := _Option.of(old, new))
            alike = alike and option.distance > 0
    if alike:
        try:
            rename = renamer("wrappers", names)
            distinct(renamed := {name: rename(name) for name in wanted})
        except errors.OptionsError:
            return
        if has.issuperset(renamed.values()) and all(fits(name, renamed[name]) for name in lacks):
            yield _Option(False, 0, repr("wrappers"), "other wrappers")


def _prefixes(name: str, others: Iterable[str]) -> set[tuple[str, str]]:
    """Returns which prefixes of a name can be replaced, and by which, to give one of the other names."""
    parts = name.split(".")
    pairs = set()
    for other in others:
        theirs = other.split(".")
        n = next((i for i, (a, b) in enumerate(zip(reversed(parts), reversed(theirs))) if a != b),
                 min(len(parts), len(theirs)))
        if n:
            old, new = (".".join([*p[:len(p) - n], ""]) for p in (parts, theirs))
            pairs.add((old, new))
    return pairs


def _hint(options: Sequence[_Option], call: str) -> str:
    """Returns the end of a message that shows options, the best one first. It recommends one only if it is certainly
    the best."""
    if not options:
        return ""
    best, others = options[0], [str(o) for o in options[1:]]
    if best.is_copy:
        return f". Only copies have such names: {_first([str(best), *others])}"
    if not others or (options[1].is_copy, options[1].distance) > (False, best.distance):
        return f". {call}(…, rename={best.text}) finds them" + (f". Others fit too: {_first(others)}" if others else "")
    return f". Several prefixes fit: {_first([str(best), *others])}" if len(options) <= _SHOWN + 1 else ""


def _nearest(lacks: list[str], names: Collection[str]) -> list[str]:
    return list(dict.fromkeys(near for name in lacks for near in difflib.get_close_matches(name, names, 1, 0.7)))
