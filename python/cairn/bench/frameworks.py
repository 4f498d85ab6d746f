"""Saves and loads of frameworks by their own checkpoints and by cairn's plugs, in a job of one rank."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypedDict

from cairn.bench import peers


class Row(TypedDict):
    """Seconds of a background save and of a load: medians."""

    stall: float
    complete: float
    resume: float
    equal: bool


class Found(TypedDict):
    bytes: int
    rows: dict[str, dict[str, Row]]  # by framework, and by who saves


class Side(Protocol):
    """A framework with one way to save."""

    def save(self, folder: str) -> Callable[[], object]:
        """Begins a background save, and returns a function that waits for it."""

    def load(self, folder: str) -> None:
        """Fills the state again."""


class Frameworks:
    """The frameworks that are installed, each with both ways."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int, say: Callable[[str], None]):
        self.torch, self.device, self.folder, self.repeat, self.say = torch, device, folder, repeat, say
        count = max(2, size // (64 << 20))
        self.state = {f"layer.{i}.weight": torch.randn(size // count // 4096, 1024, device=device)
                      for i in range(count)}
        self.bytes = sum(t.nbytes for t in self.state.values())

    def run(self) -> Found:
        import cairn.torch

        out: Found = {"bytes": self.bytes, "rows": {}}
        for name, sides in {"megatron": self.megatron}.items():
            if importlib.util.find_spec(name) is None:
                self.say(f"frameworks: {name} is not installed")
                continue
            with peers.group(self.folder):
                out["rows"][name] = {}
                try:
                    for by, side in sides():
                        self.say(f"frameworks: {name} by {by}")
                        out["rows"][name][by] = self.measure(side)
                finally:
                    cairn.torch.close()
        return out

    def measure(self, side: Side) -> Row:
        """Measures saves after the first one, which prepares memory, and loads with the files in the page cache."""
        stalls, completes, resumes = list[float](), list[float](), list[float]()
        want, equal = {k: t.clone() for k, t in self.state.items()}, True
        for n in range(self.repeat + 1):
            path = os.path.join(self.folder, "frameworks")
            os.makedirs(path)
            begin = self.now()
            wait = side.save(path)
            stall = self.now() - begin
            wait()
            complete = self.now() - begin
            for t in self.state.values():
                t.zero_()
            begin = self.now()
            side.load(path)
            resume = self.now() - begin
            equal = equal and all(bool(self.torch.equal(t, want[k])) for k, t in self.state.items())
            shutil.rmtree(path)
            if n:
                stalls.append(stall)
                completes.append(complete)
                resumes.append(resume)
        return {"stall": statistics.median(stalls), "complete": statistics.median(completes),
                "resume": statistics.median(resumes), "equal": equal}

    def now(self) -> float:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def megatron(self) -> Iterator[tuple[str, Side]]:
        """Yields the strategy of Megatron's format torch_dist, and the one of cairn."""
        if self.device == "cpu":  # Megatron asks for a GPU where it needs none
            self.torch.cuda.current_device = lambda: self.torch.device("cpu")
            self.torch.cuda.synchronize = lambda *_: None
        with contextlib.redirect_stdout(io.StringIO()):
            from megatron.core.dist_checkpointing.strategies import torch as stock

            import cairn.megatron

        yield "Megatron", _Megatron(self.state, stock.TorchDistSaveShardedStrategy, stock.TorchDistLoadShardedStrategy)
        yield "cairn", _Megatron(self.state, cairn.megatron.SaveStrategy, cairn.megatron.LoadStrategy)


class _Megatron:
    """Megatron-core, with its queue of asynchronous saves."""

    def __init__(self, state: dict[str, Any], saves: Any, loads: Any):
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.mapping import ShardedTensor
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

        self.state, self.saves, self.loads = state, saves(), loads()
        self.queue, self.checkpointing, self.sharded = AsyncCallsQueue(), dist_checkpointing, ShardedTensor

    def parts(self) -> dict[str, Any]:
        return {k: self.sharded.from_rank_offsets(k, t) for k, t in self.state.items()}

    def save(self, folder: str) -> Callable[[], object]:
        request = self.checkpointing.save({**self.parts(), "iteration": 1}, folder, self.saves,
                                          async_sharded_save=True, async_strategy="mcore")
        self.queue.schedule_async_request(request)
        return lambda: self.queue.maybe_finalize_async_calls(blocking=True)

    def load(self, folder: str) -> None:
        self.checkpointing.load(self.parts(), folder, self.loads)


def ratios(found: Found) -> Iterator[tuple[str, float]]:
    """Yields times of cairn in those of the framework itself."""
    for name, rows in found["rows"].items():
        ours = rows["cairn"]
        for by, own in rows.items():
            if by != "cairn":
                yield f"{name}: stall / its own, in time", ours["stall"] / own["stall"]
                yield f"{name}: complete / its own, in time", ours["complete"] / own["complete"]
                yield f"{name}: resume / its own, in time", ours["resume"] / own["resume"]


def show(found: Found) -> None:
    """Prints a table."""
    print(f"\nframeworks, a state of {found['bytes'] / 1e9:.2f} GB in a job of one rank, seconds:")
    print(f"{'':24}{'stall':>9}{'complete':>10}{'resume':>9}")
    for name, rows in found["rows"].items():
        for by, row in rows.items():
            print(f"{name + ' by ' + by:24}{row['stall']:9.3f}{row['complete']:10.2f}{row['resume']:9.2f}"
                  + ("" if row["equal"] else "  other bytes"))
