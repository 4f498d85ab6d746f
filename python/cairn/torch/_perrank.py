"""States that belong to one rank: of data loaders and of random number generators."""

from __future__ import annotations

import hashlib
import logging
import random
import sys
from typing import Any

import torch
import torch.distributed as dist

from cairn.torch._job import distributed
from cairn.torch._state import StateDict

_log = logging.getLogger("cairn")


class PerRank:
    """An object whose state differs from rank to rank, such as a data loader, as a part of a state.

    >>> class Loader:                                    # such as the StatefulDataLoader of torchdata
    ...     seen = 0
    ...     def state_dict(self): return {"seen": self.seen}
    ...     def load_state_dict(self, state): self.seen = state["seen"]
    >>> loader = Loader()
    >>> loader.seen = 7
    >>> report = cairn.torch.save({"loader": cairn.torch.PerRank(loader)}, "run/step-7")
    >>> again = cairn.torch.PerRank(Loader())
    >>> report = cairn.torch.load({"loader": again}, "run/step-7")
    >>> again.loaded, again.of.seen
    (True, 7)

    of is an object with ``state_dict`` and ``load_state_dict``. Each rank saves its state under a name of its own, as
    one value. A load with the same number of ranks gives each rank its state. With another number, the states of
    single ranks have no meaning: ``of`` stays as it is, rank 0 logs a warning, and ``loaded`` is False.

    If several ranks have the same data, as in tensor parallelism, rank and ranks are the number of this rank among
    the ranks with different data, and how many there are. The states of ranks with the same number must be equal.
    """

    def __init__(self, of: Any, *, rank: int | None = None, ranks: int | None = None) -> None:
        if (rank is None) != (ranks is None) or (rank is not None and ranks is not None and not 0 <= rank < ranks):
            raise ValueError(f"rank is {rank} and ranks is {ranks}; want a rank that is less than ranks, or neither")
        self.of, self._place = of, None if rank is None or ranks is None else (rank, ranks)
        self.loaded: bool | None = None  # None: not yet

    @property
    def rank(self) -> int:
        """The number under which this rank saves and loads."""
        return self._place[0] if self._place else dist.get_rank() if distributed() else 0

    @property
    def ranks(self) -> int:
        """How many such numbers there are."""
        return self._place[1] if self._place else dist.get_world_size() if distributed() else 1

    def state_dict(self) -> StateDict:
        # In a tuple, the dict is one value, and not a name for each of its entries.
        return {"ranks": self.ranks, str(self.rank): (self.of.state_dict(),)}

    def wanted(self) -> list[str]:
        """Returns the names of the states that a load reads, if the checkpoint has them."""
        return [str(self.rank)]

    def load_state_dict(self, state: StateDict) -> None:
        saved, held = state["ranks"], state.get(str(self.rank))
        self.loaded = False
        if held is not None and saved == self.ranks:
            self.of.load_state_dict(held[0])
            self.loaded = True
        else:
            self._say(f"the state of {type(self.of).__name__} was saved by {_count(saved)}, and {_count(self.ranks)} "
                      f"{_loads(self.ranks)} it: the state of a rank fits the same number of ranks only, so it is not "
                      "loaded")

    def _say(self, text: str) -> None:
        if not distributed() or dist.get_rank() == 0:
            _log.warning("%s", text)


class RandomState(PerRank):
    """The states of the random number generators of each rank, as a part of a state.

    >>> _ = torch.manual_seed(1)
    >>> report = cairn.torch.save({"random": cairn.torch.RandomState()}, "run/step-1")
    >>> want = torch.rand(2)
    >>> report = cairn.torch.load({"random": cairn.torch.RandomState()}, "run/step-1")
    >>> torch.equal(torch.rand(2), want)
    True

    These are the global generators of Python (``random``), numpy, if it is imported, torch, and torch.cuda for the
    current device, if CUDA is in use. A load sets them.

    If another number of ranks loads, a rank that was there when the state was saved gets the state of its number.
    States of higher numbers are not used. A new rank gets new generators, whose seed is a hash of the state of rank 0
    and of its own number: they differ from all others, and are the same whenever the checkpoint is loaded into so many
    ranks. Rank 0 logs which ranks get what.
    """

    def __init__(self, *, rank: int | None = None, ranks: int | None = None) -> None:
        super().__init__(_Generators(), rank=rank, ranks=ranks)

    def wanted(self) -> list[str]:
        return sorted({"0", str(self.rank)})

    def load_state_dict(self, state: StateDict) -> None:
        saved, ranks, held, first = state["ranks"], self.ranks, state.get(str(self.rank)), state.get("0")
        self.loaded = held is not None
        if held is not None:
            self.of.load_state_dict(held[0])
        elif first is not None:
            seed(_bytes(first[0]["cpu"]), self.rank)
        if saved == ranks:
            return
        text = f"the states of random number generators were saved by {_count(saved)}, and {_count(ranks)} " \
               f"{_loads(ranks)} them"
        if not saved:
            text += ": the generators stay as they are"
        elif saved < ranks:
            text += f": {_list(0, saved)} {_get(saved)} of the same number, and {_list(saved, ranks)} new ones, with " \
                    "seeds that are made of the state of rank 0 and the number of the rank"
        else:
            text += f": {_list(0, ranks)} {_get(ranks)} of the same number, and the others are not used"
        self._say(text)


class _Generators:
    """The generators of this process. Their states are plain data, and no pickles."""

    def state_dict(self) -> StateDict:
        return {k: _bytes(v) if isinstance(v, torch.Tensor) else v for k, v in random_states().items()}

    def load_state_dict(self, state: StateDict) -> None:
        set_random_states({k: torch.tensor(list(v), dtype=torch.uint8) if isinstance(v, bytes) else v
                           for k, v in state.items()})


def _bytes(v: Any) -> bytes:
    return bytes(v.tolist()) if isinstance(v, torch.Tensor) else bytes(v)


def random_states(every_device: bool = False) -> StateDict:
    """Returns the states of the random number generators of this process."""
    out: StateDict = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        out["numpy"] = (name, keys.tolist(), *rest)
    if every_device and torch.cuda.is_available():
        out["cuda"] = torch.cuda.get_rng_state_all()
    elif torch.cuda.is_initialized():
        out["cuda"] = torch.cuda.get_rng_state()
    return out


def set_random_states(states: StateDict) -> None:
    """Sets the generators of this process. Generators that are not there are left out."""
    random.setstate(states["python"])
    torch.set_rng_state(states["cpu"])
    if "numpy" in states:
        try:
            import numpy
        except ImportError:
            pass
        else:
            numpy.random.set_state(states["numpy"])
    cuda = states.get("cuda")
    if isinstance(cuda, torch.Tensor):
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(cuda)
    elif cuda is not None and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)


def seed(state: bytes, rank: int) -> None:
    """Gives this process new generators, whose seed is made of a state and the number of a rank."""
    digest = hashlib.sha256(b"cairn rank %d " % rank + state).digest()
    random.seed(digest)
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)  # also of CUDA
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(int.from_bytes(digest[8:12], "little"))


def _count(n: int) -> str:
    return "no rank" if not n else "1 rank" if n == 1 else f"{n} ranks"


def _loads(n: int) -> str:
    return "loads" if n == 1 else "load"


def _get(n: int) -> str:
    return "gets the state" if n == 1 else "get the states"


def _list(first: int, end: int) -> str:
    return f"rank {first}" if end == first + 1 else f"ranks {first} to {end - 1}"
