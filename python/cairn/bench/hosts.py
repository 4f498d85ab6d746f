"""Checkpoints in the memory of hosts: the stall, the copies, and the way back, beside saves to a disk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

from cairn.bench import disk

HOSTS = 2  # each with one rank, and a folder of its own in memory
EACH = 128 << 20  # bytes of a tensor
VARIABLE = "CAIRN_MEMORY"  # names the folder for runs in memory
RUN = "memory:bench"
PATIENCE = 10.0  # seconds in which the processes of this benchmark end


class Saves(TypedDict):
    """Medians of the saves, each of the slowest rank."""

    copy_gbs: float
    stall_gbs: float
    disk_stall_gbs: float
    copied_seconds: float
    durable_seconds: float


class Start(TypedDict):
    """Medians of loads by new processes, each of the slowest rank."""

    loaded_seconds: float
    ready_seconds: float
    load_gbs: float
    equal: bool


class Found(TypedDict):
    bytes: int
    hosts: int
    saves: Saves
    memory: Start
    disk: Start


class NoRoom(Exception):
    """What there is too little of, and what to do."""


def make_folder(size: int) -> str:
    """Makes a folder in memory with room for two generations of a state with their copies."""
    parent = os.environ.get(VARIABLE) or "/dev/shm"
    need = 4.1 * size + (64 << 20)
    try:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if free < need:
            raise NoRoom(f"{parent} has {free / 1e9:.1f} GB of room, and {need / 1e9:.1f} GB are needed, for two "
                         f"generations with their copies: set {VARIABLE} to another folder in memory, or use a "
                         "smaller --gib")
        return tempfile.mkdtemp(prefix=".cairn-bench-", dir=parent)
    except OSError as e:
        raise NoRoom(f"{parent} cannot be used: {e.strerror}; {VARIABLE} names another folder in memory") from None


class Hosts:
    """Ranks that save to memory and to a disk, and are started again."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int, say: Callable[[str], None]):
        self.torch, self.device, self.size, self.repeat, self.say = torch, device, size, max(1, repeat), say
        self.folder = folder

    def run(self) -> Found:
        """Returns the medians."""
        memory = make_folder(self.size)
        try:
            self.say(f"memory: saves by {HOSTS} hosts")
            said = self.ranks(_save, memory, self.repeat)
            size = sum(row["bytes"] for row in said)
            found: Found = {"bytes": size, "hosts": HOSTS, "saves": _saves(said, size),
                            "memory": self.start(memory, RUN, size),
                            "disk": self.start(memory, os.path.join(self.folder, "disk"), size)}
        finally:
            _remove(memory)
        return found

    def start(self, memory: str, path: str, size: int) -> Start:
        """Starts the ranks again, which load, as often as asked."""
        rows = []
        for n in range(self.repeat):
            self.say(f"memory: start {n + 1} from {'memory' if path == RUN else 'the disk'}")
            if path != RUN:
                disk.evict(path)
            begin = time.time()
            said = self.ranks(_load, memory, path)
            rows.append({"loaded": max(r["at"] for r in said) - begin, "ready": max(r["ready"] for r in said) - begin,
                         "load": max(r["seconds"] for r in said), "equal": all(r["equal"] for r in said)})
        return {"loaded_seconds": statistics.median(r["loaded"] for r in rows),
                "ready_seconds": statistics.median(r["ready"] for r in rows),
                "load_gbs": size / 1e9 / statistics.median(r["load"] for r in rows),
                "equal": all(r["equal"] for r in rows)}

    def ranks(self, call: Callable[..., Any], memory: str, *args: Any) -> list[Any]:
        """Runs new processes, and returns what each of them says."""
        meet = tempfile.mkdtemp(dir=self.folder)
        started = self.torch.multiprocessing.start_processes(
            _rank, (sys.path, call, memory, meet, self.device, self.size // HOSTS, self.folder, args), HOSTS,
            join=False, daemon=True, start_method="spawn")
        try:
            while not started.join():
                pass
            said = []
            for rank in range(HOSTS):
                with open(os.path.join(meet, str(rank)), encoding="utf-8") as f:
                    said.append(json.load(f))
            return said
        finally:
            for p in started.processes:
                if p.is_alive():
                    p.kill()
                    p.join()
            shutil.rmtree(meet, ignore_errors=True)


def _remove(folder: str) -> None:
    """Removes a folder. A saver process whose trainer was killed may still write to it for a moment."""
    end = time.monotonic() + PATIENCE
    shutil.rmtree(folder, ignore_errors=True)
    while os.path.exists(folder) and time.monotonic() < end:
        time.sleep(0.1)
        shutil.rmtree(folder, ignore_errors=True)


def _saves(said: list[Any], size: int) -> Saves:
    """Returns the medians over the saves."""
    def slowest(key: str) -> float:
        return statistics.median(max(times) for times in zip(*(row[key] for row in said)))

    return {"copy_gbs": size / 1e9 / slowest("copy"), "stall_gbs": size / 1e9 / slowest("stall"),
            "disk_stall_gbs": size / 1e9 / slowest("disk_stall"),
            "copied_seconds": slowest("copied"), "durable_seconds": slowest("durable")}


def _rank(rank: int, path: list[str], call: Callable[..., Any], memory: str, meet: str, device: str, size: int,
          folder: str, args: tuple[Any, ...]) -> None:
    """A rank, which is a host of its own."""
    sys.path[:] = path
    os.environ[VARIABLE] = os.path.join(memory, f"host-{rank}")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    import cairn.torch

    dist.init_process_group("gloo", init_method=f"file://{meet}/store", rank=rank, world_size=HOSTS)
    try:
        said = call(torch, rank, device, size, folder, *args)
        with open(os.path.join(meet, str(rank)), "w", encoding="utf-8") as f:
            json.dump(said, f)
    finally:
        cairn.torch.close()
        dist.destroy_process_group()


def _state(torch: Any, rank: int, device: str, size: int, filled: bool) -> dict[str, Any]:
    """Returns tensors of a rank. No other rank has tensors of these names."""
    count = max(1, size // EACH)
    each = max(1, size // count // 4)
    if not filled:
        return {f"rank.{rank}.{i}": torch.zeros(each, device=device) for i in range(count)}
    random = torch.Generator(device).manual_seed(rank)
    return {f"rank.{rank}.{i}": torch.randn(each, device=device, generator=random) for i in range(count)}


def _sync(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def _timed(torch: Any, device: str, times: list[float]) -> Iterator[None]:
    """Adds the seconds of what happens meanwhile, which begins on all ranks at once."""
    _sync(torch, device)
    torch.distributed.barrier()
    begin = time.perf_counter()
    yield
    _sync(torch, device)
    times.append(time.perf_counter() - begin)


def _save(torch: Any, rank: int, device: str, size: int, folder: str, repeat: int) -> dict[str, Any]:
    """Saves to memory and to a disk in turn, and copies the state.

    The first two times of each do not count: the third save to memory is the first one that uses the memory of a
    removed checkpoint.
    """
    import cairn.torch

    state = _state(torch, rank, device, size, True)
    room = {name: torch.empty(t.shape, pin_memory=device == "cuda") for name, t in state.items()}
    times: dict[str, list[float]] = {k: [] for k in ("copy", "stall", "copied", "disk_stall", "durable")}
    for step in range(1, repeat + 3):
        with _timed(torch, device, times["copy"]):
            for name, t in state.items():
                room[name].copy_(t, non_blocking=True)
        with _timed(torch, device, times["copied"]):
            begin = time.perf_counter()
            handle = cairn.torch.async_save(state, RUN, step=step)
            times["stall"].append(time.perf_counter() - begin)
            handle.result()
            handle.copied.result()
        with _timed(torch, device, times["durable"]):
            begin = time.perf_counter()
            handle = cairn.torch.async_save(state, os.path.join(folder, "disk"), step=step)
            times["disk_stall"].append(time.perf_counter() - begin)
            handle.result()
    return {"bytes": sum(t.nbytes for t in state.values()), **{k: v[2:] for k, v in times.items()}}


def _load(torch: Any, rank: int, device: str, size: int, folder: str, path: str) -> dict[str, Any]:
    """Loads the newest checkpoint, and compares it with what was saved."""
    import cairn
    import cairn.torch

    state = _state(torch, rank, device, size, False)
    times: list[float] = []
    ready = time.time()
    with _timed(torch, device, times):
        cairn.torch.load(state, cairn.Run(path) if path == RUN else path)
    at = time.time()
    want = _state(torch, rank, device, size, True)
    return {"at": at, "ready": ready, "seconds": times[0],
            "equal": all(bool(torch.equal(t, want[name])) for name, t in state.items())}


def show(found: Found) -> None:
    """Prints the medians."""
    saves = found["saves"]
    print(f"\nmemory: {found['bytes'] / 1e9:.2f} GB from {found['hosts']} hosts, with one copy; medians\n")
    print(f"{'':10}{'stall GB/s':>12}{'complete s':>12}{'ready s':>10}{'loaded s':>10}{'load GB/s':>11}")
    for name, stall, complete in (("memory", saves["stall_gbs"], saves["copied_seconds"]),
                                  ("disk", saves["disk_stall_gbs"], saves["durable_seconds"])):
        start = found["memory"] if name == "memory" else found["disk"]
        print(f"{name:10}{stall:12.2f}{complete:12.3f}{start['ready_seconds']:10.2f}{start['loaded_seconds']:10.2f}"
              f"{start['load_gbs']:11.2f}")
    print("  complete: with copies on another host, or durable")
    print(f"  a plain copy of the state: {saves['copy_gbs']:.2f} GB/s")
    print("  ready and loaded: from the start of the processes; ready has the modules, the other rank and the tensors")
    equal = found["memory"]["equal"] and found["disk"]["equal"]
    print(f"  the loaded tensors are {'equal' if equal else 'NOT EQUAL'} to those that were saved")
