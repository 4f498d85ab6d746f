"""The table: stall, durable, load and host memory of each system, with one state."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from cairn.bench import disk, memory, peers

FLOOR, DCP, TUNED, SAFETENSORS, CAIRN = "floor", "PyTorch DCP", "DCP, tuned", "safetensors", "cairn"


Rate: TypeAlias = Literal["stall_gbs", "durable_gbs", "load_cold_gbs", "load_warm_gbs"]
Figure: TypeAlias = Literal[Rate, "small_stall_ms", "peak_host_gb", "import_ms"]


class Row(memory.Peak, total=False):
    """A system."""

    stall_gbs: float
    durable_gbs: float
    load_cold_gbs: float
    load_warm_gbs: float
    small_stall_ms: float
    first_stall_gbs: float
    import_ms: float
    stall_by: str
    write_by: str
    read_by: str


class Table:
    """The rows of one run. All of them save and load the same state."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int, small: tuple[int, int],
                 say: Callable[[str], None]):
        self.torch, self.device, self.folder, self.repeat, self.say = torch, device, folder, max(1, repeat), say
        count = max(1, size // (256 << 20))
        each = size // count // 4
        self.state = {f"layer.{i}.weight": torch.randn(each, device=device) for i in range(count)}
        self.bytes = count * each * 4
        self.small = {f"small.{i}": torch.randn(small[1] // 4, device=device) for i in range(small[0])}
        self.rows: dict[str, Row] = {}
        self.row: Row = {}

    def run(self, only: list[str] | None = None) -> dict[str, Row]:
        """Measures the systems, and returns the rows."""
        systems = {FLOOR: self.floor, DCP: self.dcp, TUNED: self.tuned, SAFETENSORS: self.safetensors,
                   CAIRN: self.cairn}
        for name, measure in systems.items():
            if only and name not in only:
                continue
            self.say(name)
            self.row = self.rows[name] = {}
            self.before = memory.settled()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    measure()
                except ImportError as e:
                    self.say(f"{name} is left out: {e}")
                    del self.rows[name]
            self.empty()
        return self.rows

    def empty(self) -> None:
        for entry in os.listdir(self.folder):
            path = os.path.join(self.folder, entry)
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)

    # Measuring.

    def sync(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def timed(self, call: Callable[[], Any]) -> float:
        self.sync()
        begin = time.perf_counter()
        call()
        self.sync()
        return time.perf_counter() - begin

    def rate(self, name: Rate, call: Callable[[], float], times: int | None = None) -> None:
        """Notes the median rate of a function that returns seconds."""
        self.row[name] = self.bytes / 1e9 / statistics.median(call() for _ in range(times or self.repeat))

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def folders(self, name: str) -> disk.Folders:
        return disk.Folders(self.path(name))

    def durable(self, save: Callable[[str], Any], folders: disk.Folders, times: int | None = None) -> None:
        """Notes the rate of saves that return when their files are durable."""
        def once() -> float:
            path = folders.next()
            return self.timed(lambda: save(path))

        self.rate("durable_gbs", once, times)

    def loads(self, path: str, load: Callable[[], Any], times: int | None = None) -> None:
        """Notes the memory of a load, and its rates with files out of the page cache and in it."""
        with memory.peak(self.row, self.before):
            load()

        def cold() -> float:
            disk.evict(path)
            return self.timed(load)

        def warm() -> float:
            disk.fetch(path)
            return self.timed(load)

        self.rate("load_cold_gbs", cold, times)
        self.rate("load_warm_gbs", warm, times)

    def stalls(self, save: peers.Save, folders: disk.Folders,
               times: int | None = None) -> float:
        """Notes how long background saves stop training, and returns the median seconds until they were durable."""
        durable = []

        def stall() -> float:
            path = folders.next()
            self.sync()
            begin = time.perf_counter()
            handle = save(self.state, path)
            stopped = time.perf_counter() - begin
            handle.result()
            durable.append(time.perf_counter() - begin)
            return stopped

        self.rate("stall_gbs", stall, times)
        return statistics.median(durable)

    def small_stalls(self, save: peers.Save) -> None:
        """Notes how long background saves of many small tensors stop training."""
        times = []
        folders = self.folders("small")
        for _ in range(self.repeat + 2):
            path = folders.next()
            self.sync()
            begin = time.perf_counter()
            handle = save(self.small, path)
            times.append(time.perf_counter() - begin)
            handle.result()
        self.row["small_stall_ms"] = 1e3 * statistics.median(times[2:])

    # The systems.

    def floor(self) -> None:
        """Copies to pinned memory, and a plain file."""
        torch = self.torch
        cuda = self.device == "cuda"
        source = next(iter(self.state.values()))
        host = torch.empty(source.numel(), pin_memory=cuda)
        host.copy_(source)
        copies = -(-self.bytes // source.nbytes)

        def copy() -> None:
            for _ in range(copies):
                host.copy_(source, non_blocking=True)

        self.rate("stall_gbs", lambda: self.timed(copy) * self.bytes / (copies * source.nbytes))
        self.small_floor()
        raw = disk.Raw(self.path("raw"), self.bytes)
        seconds, self.row["write_by"] = disk.best(raw.write, self.repeat)
        self.row["durable_gbs"] = 1 / seconds / 1e9
        seconds, self.row["read_by"] = disk.best(lambda flags, threads: raw.read(flags, threads, True), self.repeat)
        self.row["load_cold_gbs"] = 1 / seconds / 1e9
        disk.fetch(raw.path)
        seconds, _ = disk.best(lambda flags, threads: raw.read(flags, threads, False), self.repeat, direct=False)
        self.row["load_warm_gbs"] = 1 / seconds / 1e9

    def small_floor(self) -> None:
        """Copies small tensors to pinned memory: one by one, or joined on the device; the better counts."""
        torch, tensors = self.torch, list(self.small.values())
        each = tensors[0].numel()
        host = torch.empty(len(tensors), each, pin_memory=self.device == "cuda")
        rows = list(host)

        def one_by_one() -> None:
            for to, t in zip(rows, tensors):
                to.copy_(t, non_blocking=True)

        def joined() -> None:
            host.copy_(torch.stack(tensors), non_blocking=True)

        best = []
        for call in (one_by_one, joined):
            call()
            best.append(statistics.median(self.timed(call) for _ in range(self.repeat + 2)))
        self.row["small_stall_ms"] = 1e3 * min(best)

    def dcp(self) -> None:
        """PyTorch's dcp.save, dcp.async_save and dcp.load as they come."""
        import torch.distributed.checkpoint as dcp

        folders = self.folders("dcp")

        def save(path: str) -> None:
            dcp.save(self.state, checkpoint_id=path)
            disk.flush(path)

        def background(state: peers.State, to: str) -> Any:
            return dcp.async_save(state, checkpoint_id=to)

        self.durable(save, folders, min(2, self.repeat))
        with peers.group(self.folder):
            try:
                with memory.peak(self.row, self.before):
                    background(self.state, folders.next()).result()
                self.stalls(background, folders, min(2, self.repeat))
                self.small_stalls(background)
            except peers.failures() as e:  # some versions cannot
                self.say(f"dcp.async_save: {e!r}")
                save(folders.next())
        path = folders.last
        self.loads(path, lambda: dcp.load(self.state, checkpoint_id=path), min(2, self.repeat))

    def tuned(self) -> None:
        """PyTorch with its fastest settings: threads, and pinned shared memory that it keeps."""
        folders = self.folders("dcp")

        def save(path: str) -> None:
            peers.save_threads(self.state, path)
            disk.flush(path)

        self.durable(save, folders, min(2, self.repeat))
        with peers.group(self.folder):
            with memory.peak(self.row, self.before):
                found = peers.usable(self.device, self.bytes, self.state, folders, self.say)
            if found is None:
                return
            name, background, close = found
            self.row["stall_by"] = name
            try:
                self.stalls(background, folders, min(2, self.repeat))
                self.small_stalls(background)
            except peers.failures() as e:
                self.say(f"dcp.async_save with {name}: {e!r}")
            finally:
                close()

    def safetensors(self) -> None:
        from safetensors.torch import load_file, save_file

        files = self.folders("st.safetensors")

        def save(path: str) -> None:
            save_file(self.state, path)
            disk.flush(path)

        def load() -> None:
            for name, t in load_file(files.last, device=self.device).items():
                self.state[name].copy_(t)

        with memory.peak(self.row, self.before):
            save(files.next())
        self.durable(save, files, min(2, self.repeat))
        self.loads(files.last, load, min(2, self.repeat))

    def cairn(self) -> None:
        import cairn.torch

        folders = self.folders("cairn")
        self.row["import_ms"] = 1e3 * min(import_seconds() for _ in range(3))
        try:
            path = folders.next()
            self.sync()
            begin = time.perf_counter()
            handle = cairn.torch.async_save(self.state, path)
            self.row["first_stall_gbs"] = self.bytes / 1e9 / (time.perf_counter() - begin)
            handle.result()
            with memory.peak(self.row, self.before):
                cairn.torch.async_save(self.state, folders.next()).result()
            self.row["durable_gbs"] = self.bytes / 1e9 / self.stalls(cairn.torch.async_save, folders)
            self.small_stalls(cairn.torch.async_save)
            path = folders.last
            self.loads(path, lambda: cairn.torch.load(self.state, path))
        finally:
            cairn.torch.close()


def import_seconds() -> float:
    """Returns how long "import cairn" takes in a new process."""
    code = "import time; begin = time.perf_counter(); import cairn; print(time.perf_counter() - begin)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return float(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
