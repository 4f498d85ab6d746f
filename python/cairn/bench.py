"""Compares cairn with PyTorch's own checkpoints and safetensors, beside what the hardware does.

    python -m cairn.bench [--gib 8] [--device cuda|cpu] [--folder DIR] [--json]

Everything runs in one process, one after the other, with the same state. Rates are GB/s
(10^9 bytes). "stall" is how long training stands still in a background save, "durable" the
time until the checkpoint is complete and on disk, "cold" and "warm" loads into the same
tensors with the files out of and in the page cache. Memory is the largest that this process
and its saver process had during the rows of a system, without what they had before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any, Callable, Iterator, Optional


def main(argv: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cairn.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8, help="size of the state (8)")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="where the state is: cuda if there is a GPU")
    parser.add_argument("--folder", help="a folder on the disk to measure; it needs twice the size of the state")
    parser.add_argument("--repeat", type=int, default=3, help="how often each thing is measured, after a first time (3)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        print("python -m cairn.bench needs torch", file=sys.stderr)
        return 1
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = tempfile.mkdtemp(prefix="cairn-bench-", dir=args.folder)
    try:
        result = Bench(torch, device, int(args.gib * (1 << 30)), folder, args.repeat).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


class Bench:
    """The measures of one run."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int):
        self.torch, self.device, self.folder, self.repeat = torch, device, folder, max(1, repeat)
        count = max(1, size // (256 << 20))
        each = size // count // 4
        self.state = {f"layer.{i}.weight": torch.randn(each, device=device) for i in range(count)}
        self.bytes = count * each * 4
        self.small = {f"small.{i}": torch.randn(16 << 10, device=device) for i in range(1000)}
        self.rows: dict[str, dict[str, float]] = {}

    def run(self) -> dict:
        systems: list[tuple[str, Callable[[], None]]] = [("floor", self.floor), ("PyTorch DCP", self.dcp)]
        with contextlib.suppress(ImportError):
            import safetensors.torch  # noqa: F401

            systems.append(("safetensors", self.safetensors))
        systems.append(("cairn", self.cairn))
        for name, measure in systems:
            self.row = self.rows[name] = {}
            with memory(self.row):
                measure()
            for entry in os.listdir(self.folder):
                path = os.path.join(self.folder, entry)
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)
        return {"bytes": self.bytes, "device": self.device, "torch": self.torch.__version__, "rows": self.rows}

    # Measuring.

    def sync(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def rate(self, name: str, call: Callable[[], float], times: Optional[int] = None) -> None:
        """Notes the median rate of a function that returns seconds."""
        self.row[name] = self.bytes / 1e9 / statistics.median(call() for _ in range(times or self.repeat))

    def timed(self, call: Callable[[], Any]) -> float:
        self.sync()
        begin = time.perf_counter()
        call()
        self.sync()
        return time.perf_counter() - begin

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def loads(self, path: str, load: Callable[[], Any]) -> None:
        """Notes the rates of a load, with files out of the page cache and in it."""
        load()

        def cold() -> float:
            evict(path)
            return self.timed(load)

        def warm() -> float:
            fetch(path)
            return self.timed(load)

        self.rate("load_cold_gbs", cold)
        self.rate("load_warm_gbs", warm)

    # The systems.

    def floor(self) -> None:
        """Copies to pinned memory, and plain writes and reads of a file."""
        torch = self.torch
        part = min(self.bytes, 1 << 30)
        source = torch.cat([t.view(torch.uint8) for t in list(self.state.values())[:max(1, part // (256 << 20))]])[:part]
        host = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=self.device == "cuda")
        host.copy_(source)
        scale = self.bytes / source.numel()
        self.rate("stall_gbs", lambda: self.timed(lambda: host.copy_(source, non_blocking=True)) * scale)
        view, path = memoryview(host.numpy()), self.path("raw")

        def write() -> None:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            done = 0
            while done < self.bytes:
                done += os.write(fd, view[:min(16 << 20, self.bytes - done)])
            os.fsync(fd)
            os.close(fd)

        def read() -> None:
            fd = os.open(path, os.O_RDONLY)
            buffer = memoryview(bytearray(16 << 20))
            while os.readv(fd, [buffer]):
                pass
            os.close(fd)

        self.rate("durable_gbs", lambda: self.timed(write), 2)
        self.loads(path, read)

    def dcp(self) -> None:
        import torch.distributed.checkpoint as dcp

        path = self.path("dcp")

        def save() -> None:
            dcp.save(self.state, checkpoint_id=path)
            flush(path)

        def stall() -> float:
            begin = time.perf_counter()
            handle = dcp.async_save(self.state, checkpoint_id=path)
            stopped = time.perf_counter() - begin
            handle.result()
            return stopped

        with quiet():
            self.rate("durable_gbs", lambda: self.timed(save))
            with self.process_group():
                try:
                    stall()
                    self.rate("stall_gbs", stall)
                    small = self.path("small")
                    self.row["small_stall_ms"] = 1e3 * self.small_stall(lambda: dcp.async_save(self.small, checkpoint_id=small))
                except Exception as e:  # some versions cannot
                    print(f"dcp.async_save: {e!r}", file=sys.stderr)
            self.loads(path, lambda: dcp.load(self.state, checkpoint_id=path))

    @contextlib.contextmanager
    def process_group(self) -> Iterator[None]:
        """async_save of PyTorch wants a process group with a CPU backend."""
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{self.path('meet')}", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()

    def safetensors(self) -> None:
        from safetensors.torch import load_file, save_file

        path = self.path("st.safetensors")

        def save() -> None:
            save_file(self.state, path)
            flush(path)

        def load() -> None:
            for name, t in load_file(path, device=self.device).items():
                self.state[name].copy_(t)

        self.rate("durable_gbs", lambda: self.timed(save), 2)
        self.loads(path, load)

    def cairn(self) -> None:
        import cairn.torch

        path = self.path("cairn")
        durable: list[float] = []

        def stall() -> float:
            begin = time.perf_counter()
            handle = cairn.torch.async_save(self.state, path)
            stopped = time.perf_counter() - begin
            handle.result()
            durable.append(time.perf_counter() - begin)
            return stopped

        self.row["first_stall_gbs"] = self.bytes / 1e9 / stall()
        durable.clear()
        self.rate("stall_gbs", stall)
        self.row["durable_gbs"] = self.bytes / 1e9 / statistics.median(durable)
        self.row["small_stall_ms"] = 1e3 * self.small_stall(lambda: cairn.torch.async_save(self.small, self.path("small")))
        self.loads(path, lambda: cairn.torch.load(self.state, path))
        cairn.torch.close()

    def small_stall(self, save: Callable[[], Any]) -> float:
        """Returns how long a save of 1,000 tensors of 64 KiB stops training."""
        times = []
        for _ in range(self.repeat + 1):
            self.sync()
            begin = time.perf_counter()
            handle = save()
            times.append(time.perf_counter() - begin)
            handle.result()
        return statistics.median(times[1:])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def each_file(path: str, call: Callable[[int], None]) -> None:
    for name in files(path):
        fd = os.open(name, os.O_RDONLY)
        try:
            call(fd)
        finally:
            os.close(fd)


def flush(path: str) -> None:
    """Makes files durable, as cairn's are when a save returns."""
    each_file(path, os.fsync)


def evict(path: str) -> None:
    """Takes files out of the page cache."""
    def drop(fd: int) -> None:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    each_file(path, drop)


def fetch(path: str) -> None:
    """Brings files into the page cache."""
    buffer = memoryview(bytearray(16 << 20))

    def read(fd: int) -> None:
        while os.readv(fd, [buffer]):
            pass

    each_file(path, read)


@contextlib.contextmanager
def memory(row: dict[str, float]) -> Iterator[None]:
    """Notes the peak of host memory."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        yield
        return
    before = status("self", "VmRSS")
    yield
    row["peak_host_gb"] = (status("self", "VmHWM") - before) / 1e9


def status(process: str, field: str) -> int:
    with open(f"/proc/{process}/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


COLUMNS = [("stall_gbs", "stall GB/s"), ("durable_gbs", "durable GB/s"), ("load_cold_gbs", "load cold"), ("load_warm_gbs", "load warm"),
           ("small_stall_ms", "1,000 small: stall ms"), ("peak_host_gb", "host memory GB")]


def show(result: dict) -> None:
    """Prints the table."""
    print(f"{result['bytes'] / 1e9:.2f} GB on {result['device']}, PyTorch {result['torch']}")
    print(f"{'':14}" + "".join(f"{title:>{len(title) + 3}}" for _, title in COLUMNS))
    for name, row in result["rows"].items():
        cells = (f"{row[key]:.2f}" if key in row else "-" for key, _ in COLUMNS)
        print(f"{name:14}" + "".join(f"{cell:>{len(title) + 3}}" for cell, (_, title) in zip(cells, COLUMNS)))


if __name__ == "__main__":
    sys.exit(main())
