"""How background saves change the time of training steps."""

from __future__ import annotations

import functools
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, Final, Literal, TypedDict

from cairn.bench import disk, peers
from cairn.errors import SaverError

STATE = 2 << 30  # bytes of the state at most, so that a save takes a few seconds
STEP = 0.03  # seconds of a step, about
BUDGET = 16.0  # seconds for a system
EXPORTED = 300.0  # seconds for an export at most
RECIPE = """about = "All weights under their names"
sides = ["job", "hf"]

[[rule]]
job = "{rest*}"
hf = "{rest*}"
"""
LONGEST = 2.5  # seconds of a block of steps at most


Measure = Literal["mean", "median", "p90", "p99"]
MEASURES: Final[tuple[Measure, ...]] = ("mean", "median", "p90", "p99")
Bin = TypedDict("Bin", {"from_ms": float, "without": float, "with": float})  # shares of steps


class Times(TypedDict):
    """Milliseconds of steps."""

    steps: int
    mean: float
    median: float
    p90: float
    p99: float
    most: float


# A class cannot have a field "with".
Found = TypedDict("Found", {
    "by": str, "bytes": int, "every": int, "saves": int, "stall_ms": float, "under_way_percent": float,
    "first_percent": float, "without": Times, "with": Times, "overhead_percent": dict[Measure, float],
    "histogram": list[Bin]}, total=False)


class Steps:
    """A training loop: matrix products and a change of the state. It runs in blocks of steps, with and without a save.

    A block with a save begins with the call of the background save, which is not counted: it is
    the stall of the table. A block is about as long as a save takes. Blocks of both kinds
    alternate, so that noise of the machine hits both alike.
    """

    def __init__(self, torch: Any, device: str, size: int, folder: str, say: Callable[[str], None]):
        self.torch, self.device, self.folder, self.say = torch, device, folder, say
        cuda = device == "cuda"
        count = max(1, min(size, STATE) // (64 << 20))
        self.state = {f"layer.{i}.weight": torch.randn(min(size, STATE) // count // 4, device=device)
                      for i in range(count)}
        self.bytes = sum(t.nbytes for t in self.state.values())
        n = 4096 if cuda else 512
        self.x = torch.randn(n, n, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
        self.w = self.x / n**0.5  # so that products neither grow nor vanish
        self.products = 1
        self.calibrate()

    def calibrate(self) -> None:
        """Gives a step so many products that it takes about STEP."""
        for _ in range(3):
            self.step()
        a = statistics.median(self.step() for _ in range(5))
        self.products = 11
        b = statistics.median(self.step() for _ in range(5))
        self.products = max(1, round(1 + (STEP - a) / max((b - a) / 10, 1e-6)))
        for _ in range(5):
            self.step()

    def step(self, copied: Callable[[], None] | None = None) -> float:
        """Trains a step and returns its seconds. It calls copied before the state changes."""
        begin = time.perf_counter()
        x = self.x
        for _ in range(self.products):
            x = self.torch.tanh(x @ self.w)
        if copied is not None:
            copied()
        next(iter(self.state.values())).mul_(0.999)
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - begin

    def run(self, only: list[str] | None = None) -> dict[str, Found]:
        """Measures cairn, and PyTorch if it can save in the background."""
        out: dict[str, Found] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not only or "cairn" in only:
                out["cairn"] = self.cairn()
                out["cairn, overlap=True"] = self.cairn(overlap=True)
                out["cairn, with exports"] = self.exports()
            if not only or "PyTorch" in only:
                with peers.group(self.folder):
                    if found := self.pytorch():
                        out["PyTorch DCP"] = found
        return out

    def cairn(self, overlap: bool = False) -> Found:
        import cairn.torch

        self.say(f"steps with saves by cairn{', overlap=True' if overlap else ''}")
        folders = disk.Folders(os.path.join(self.folder, "steps-overlap" if overlap else "steps"))
        try:
            return self.compare(functools.partial(cairn.torch.async_save, overlap=overlap), folders)
        finally:
            cairn.torch.close()

    def exports(self) -> Found:
        import cairn.torch

        self.say("steps with saves by cairn and their exports")
        folders = disk.Folders(os.path.join(self.folder, "steps-export"))
        recipe = os.path.join(self.folder, "export.toml")
        with open(recipe, "w") as f:
            f.write(RECIPE)
        try:
            return self.compare(lambda state, path: Export(state, path, recipe), folders)
        finally:
            cairn.torch.close()

    def pytorch(self) -> Found | None:
        import torch.distributed.checkpoint as dcp

        self.say("steps with saves by PyTorch")
        folders = disk.Folders(os.path.join(self.folder, "steps-dcp"))
        name, save, close = peers.usable(self.device, self.bytes, self.state, folders, self.say) or (
            "as it comes", lambda state, to: dcp.async_save(state, checkpoint_id=to), lambda: None)
        try:
            return {**self.compare(save, folders), "by": name}
        except peers.failures() as e:
            self.say(f"dcp.async_save with {name}: {e!r}")
            return None
        finally:
            close()

    def compare(self, save: peers.Save, folders: disk.Folders) -> Found:
        """Runs blocks of steps with and without saves until the time is over."""
        for _ in range(2):
            path = folders.next()
            begin = time.perf_counter()
            save(self.state, path).result()
            took = time.perf_counter() - begin
        step = statistics.median(self.step() for _ in range(10))
        every = max(10, math.ceil(min(took, LONGEST) / step))
        times: dict[bool, list[float]] = {False: [], True: []}
        stalls: list[float] = []
        first: list[float] = []  # seconds of the first step after each save has begun
        under_way = 0
        end = time.perf_counter() + BUDGET
        turn = 0
        while turn < 4 or (turn % 4 or time.perf_counter() < end):
            saving = turn % 4 in (1, 2)  # without, with, with, without
            turn += 1
            handle = None
            if saving:
                path = folders.next()
                begin = time.perf_counter()
                handle = save(self.state, path)
                stalls.append(time.perf_counter() - begin)
            staged = getattr(handle, "staged", None)  # the state may change when it is done
            for i in range(every):
                under_way += handle is not None and not handle.done()
                times[saving].append(self.step(staged.result if staged is not None and i == 0 else None))
            if handle is not None:
                first.append(times[True][-every])
            if handle is not None:
                handle.result()
        without, with_saves = summary(times[False]), summary(times[True])
        return {
            "bytes": self.bytes, "every": every, "saves": len(stalls), "stall_ms": 1e3 * statistics.median(stalls),
            "under_way_percent": 100 * under_way / len(times[True]), "without": without, "with": with_saves,
            "first_percent": 100 * (1e3 * statistics.median(first) / without["median"] - 1),
            "overhead_percent": {k: 100 * (with_saves[k] / without[k] - 1) for k in MEASURES},
            "histogram": histogram(times[False], times[True]),
        }


class Export:
    """A background save and the export of its checkpoint, as one handle."""

    def __init__(self, state: peers.State, path: str, recipe: str):
        import cairn.torch

        self.notes = os.path.join(path, "checkpoint", "cairn-notes.json")
        self.saved = cairn.torch.async_save(state, os.path.dirname(self.notes),
                                            export=f"{recipe} to {os.path.join(path, 'export')}")
        self.staged = self.saved.staged

    def done(self) -> bool:
        try:
            with open(self.notes) as f:
                return all(x["state"] == "done" for x in json.load(f)["exports"])
        except FileNotFoundError:  # the save is not over
            return False

    def result(self) -> None:
        self.saved.result()
        end = time.monotonic() + EXPORTED
        while not self.done():
            if self.saved.warnings or time.monotonic() > end:
                raise SaverError(f"the export is not complete: {self.saved.warnings}")
            time.sleep(0.01)


def quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def summary(times: list[float]) -> Times:
    """Returns milliseconds."""
    ordered = sorted(1e3 * t for t in times)
    return {"steps": len(times), "mean": statistics.fmean(ordered), "median": statistics.median(ordered),
            "p90": quantile(ordered, 0.9), "p99": quantile(ordered, 0.99), "most": ordered[-1]}


def histogram(without: list[float], with_saves: list[float], bins: int = 10) -> list[Bin]:
    """Returns the shares of steps by milliseconds. The last bin has all that are slower."""
    both = sorted(1e3 * t for t in without + with_saves)
    lo, hi = both[0], quantile(both, 0.98)
    width = max((hi - lo) / (bins - 1), 1e-3)
    out: list[Bin] = []
    for i in range(bins):
        a, b = lo + i * width, lo + (i + 1) * width if i < bins - 1 else math.inf
        out.append({"from_ms": a, "without": sum(a <= 1e3 * t < b for t in without) / len(without),
                    "with": sum(a <= 1e3 * t < b for t in with_saves) / len(with_saves)})
    return out
