"""Versions of weights: from a publish to tensors in use of another process, beside a full transfer."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypedDict

from cairn.bench import disk
from cairn.bench.peers import State

CHANGED = 0.01  # of the elements, in each version
EACH = 128 << 20  # bytes of a tensor
PATIENCE = 600.0  # seconds that the two processes wait for each other


class Found(TypedDict):
    """Medians over the versions."""

    bytes: int
    changed: float
    versions: int
    first_seconds: float
    moved: float
    written: float
    read: float
    stall_gbs: float
    complete_seconds: float
    applied_seconds: float
    full_seconds: float
    applied_of_full: float
    pause_seconds: float
    equal: bool


class Publish:
    """Publishes versions, each of which another process brings its tensors to."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int, say: Callable[[str], None]):
        self.torch, self.device, self.repeat, self.say = torch, device, max(1, repeat), say
        self.run_path, self.folder = os.path.join(folder, "weights"), folder
        count = max(1, size // EACH)
        self.shape = (max(1, size // count // 8) * 4,)
        self.state = {f"layer.{i}.weight": torch.randn(self.shape, device=device).bfloat16() for i in range(count)}
        self.bytes = sum(t.nbytes for t in self.state.values())

    def run(self) -> Found:
        """Returns the medians."""
        import cairn.torch

        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        follower = context.Process(target=_follow, daemon=True, args=(
            theirs, sys.path, self.run_path, self.device, list(self.state), self.shape))
        follower.start()
        theirs.close()
        try:
            self.answer()  # it is ready
            rows = [self.version(n) for n in range(1, self.repeat + 3)]
            first, rows = rows[0], rows[2:]  # the first is full, and the second takes memory
            self.pipe.send(("sums", None))
            equal = self.answer() == sums(self.torch, self.state)
            full = [self.full(n) for n in range(self.repeat + 1)][1:]
            self.pipe.send(("end", None))
        finally:
            follower.join(10)
            if follower.is_alive():
                follower.kill()
            cairn.torch.close()
        median = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
        transfer = statistics.median(full)
        return {
            "bytes": self.bytes, "changed": CHANGED, "versions": len(rows), "first_seconds": first["applied_s"],
            "moved": max(median["written"], median["read"]) / self.bytes, "written": median["written"],
            "read": median["read"], "stall_gbs": self.bytes / 1e9 / median["stall_s"],
            "complete_seconds": median["complete_s"], "applied_seconds": median["applied_s"],
            "full_seconds": transfer, "applied_of_full": median["applied_s"] / transfer,
            "pause_seconds": median["pause_s"], "equal": equal,
        }

    def answer(self) -> Any:
        """Returns what the other process says."""
        if not self.pipe.poll(PATIENCE):
            raise TimeoutError(f"the process that follows has not answered within {PATIENCE:.0f} seconds")
        kind, said = self.pipe.recv()
        if kind == "failed":
            raise RuntimeError(f"the process that follows has failed:\n{said}")
        return said

    def version(self, number: int) -> dict[str, float]:
        """Changes some elements and publishes them."""
        import cairn.torch

        self.say(f"publish: version {number}")
        if number > 1:
            change(self.torch, self.state)
        self.sync()
        self.pipe.send(("version", number))
        self.answer()  # it waits for the version now
        begin = time.time()
        handle = cairn.torch.publish(self.state, self.run_path, version=number)
        stall = time.time() - begin
        handle.result()
        complete = time.time() - begin
        said = self.answer()
        written = sum(os.path.getsize(name) for name in disk.files(os.path.join(self.run_path, f"step-{number:09}")))
        return {"stall_s": stall, "complete_s": complete, "applied_s": said["at"] - begin, "written": written,
                "read": said["read"], "pause_s": said["pause"]}

    def full(self, number: int) -> float:
        """Returns the seconds of a transfer of everything: a save, and a load by the other process."""
        import cairn.torch

        self.say(f"publish: full transfer {number + 1}")
        path = os.path.join(self.folder, f"full-{number}")
        self.sync()
        begin = time.time()
        cairn.torch.async_save(self.state, path).result()
        self.pipe.send(("full", path))
        seconds: float = self.answer()["at"] - begin
        shutil.rmtree(path)
        return seconds

    def sync(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def change(torch: Any, state: State) -> None:
    """Changes the last bit of some elements."""
    for t in state.values():
        bits = t.view(torch.int16)
        at = torch.randint(0, bits.numel(), (max(1, round(bits.numel() * CHANGED)),), device=t.device)
        bits[at] = bits[at] ^ 1


def sums(torch: Any, state: State) -> list[int]:
    """Returns a number for each tensor, in which each bit and its place count."""
    out = []
    for t in state.values():
        total = 0
        for part in t.view(torch.int64).split(8 << 20):  # 8 bytes each; sums and products are modulo 2^64
            place = torch.arange(1, 2 * part.numel(), 2, device=t.device)
            total = total * 31 + int((part * place).sum())
        out.append(total % (1 << 64))
    return out


def _follow(pipe: Any, path: list[str], run: str, device: str, names: list[str], shape: tuple[int, ...]) -> None:
    """The other process: brings tensors to each version, and loads full checkpoints."""
    sys.path[:] = path
    try:
        import torch

        import cairn.torch

        params = {name: torch.zeros(shape, dtype=torch.bfloat16, device=device) for name in names}
        weights = cairn.torch.follow(run)
        pipe.send(("ready", None))
        while True:
            kind, what = pipe.recv()
            if kind == "end":
                break
            if kind == "sums":
                pipe.send(("sums", sums(torch, params)))
                continue
            if kind == "full":
                cairn.torch.load(params, what)
                if device == "cuda":
                    torch.cuda.synchronize()
                pipe.send(("loaded", {"at": time.time()}))
                continue
            pipe.send(("waits", None))
            weights.wait(PATIENCE, interval=0.01)
            report = weights.update(params, what)
            if device == "cuda":
                torch.cuda.synchronize()
            at = time.time()
            pipe.send(("applied", {"at": at, "read": report.bytes_read, "pause": report.pause_seconds}))
        cairn.torch.close()
    except EOFError:  # the other process has ended
        pass
    except Exception:
        pipe.send(("failed", traceback.format_exc()))


def show(found: Found) -> None:
    """Prints the medians."""
    print(f"\npublish: {found['bytes'] / 1e9:.2f} GB of bfloat16, of which {100 * found['changed']:g} % of the "
          f"elements change; {found['versions']} versions, medians\n")
    print(f"  written {found['written'] / 1e6:.1f} MB, read {found['read'] / 1e6:.1f} MB")
    print(f"  complete after {found['complete_seconds']:.3f} s, applied by another process after "
          f"{found['applied_seconds']:.3f} s")
    print(f"  a full transfer takes {found['full_seconds']:.3f} s; the first version took "
          f"{found['first_seconds']:.3f} s")
    print(f"  the tensors of both processes are {'equal' if found['equal'] else 'NOT EQUAL'}")
