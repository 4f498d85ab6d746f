"""How many bytes the ranks of a host read, if they read for each other and if not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any, TypedDict

from cairn.bench.weights import model

RANKS = 4
KINDS = ("replicated", "rows", "columns")


class Load(TypedDict):
    """A load by all ranks."""

    format: str
    kind: str
    share: bool
    bytes_needed: int
    bytes_read: list[int]
    bytes_received: list[int]
    seconds: float


class Found(TypedDict):
    bytes: int
    ranks: int
    loads: list[Load]


class Share:
    """Loads of all weights by each rank, of a quarter of the rows, and of a quarter of the columns."""

    def __init__(self, torch: Any, size: int, folder: str, say: Callable[[str], None]):
        self.torch, self.folder, self.say = torch, folder, say
        self.state = model(torch, size, "cpu")

    def run(self) -> Found:
        """Returns the bytes by format, kind and whether ranks share."""
        import cairn.torch

        out: Found = {"bytes": sum(t.nbytes for t in self.state.values()), "ranks": RANKS, "loads": []}
        for format in ("native", "hf"):
            path = os.path.join(self.folder, f"share-{format}")
            try:
                cairn.torch.save(self.state, path, format=format, alone=True)
            finally:
                cairn.torch.close()
            self.say(f"share: {RANKS} ranks load {format}")
            meet = os.path.join(self.folder, "meet")
            os.mkdir(meet)
            self.torch.multiprocessing.start_processes(_rank, (RANKS, meet, path), RANKS, start_method="spawn")
            with open(os.path.join(meet, "result"), encoding="utf-8") as f:
                rows: list[Load] = json.load(f)
                out["loads"] += [{**row, "format": format} for row in rows]
            shutil.rmtree(path)
            shutil.rmtree(meet)
        return out


def _rank(rank: int, size: int, meet: str, path: str) -> None:
    import torch.distributed as dist

    import cairn.torch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meet}/store", rank=rank, world_size=size)
    rows = []
    try:
        for kind in KINDS:
            for share in (False, True):
                found = cairn.torch.weights(path, slices=_part(kind, rank, size), share=share)
                for _ in found:
                    pass
                said: list[Any] = [None] * size
                r = found.report
                assert r is not None
                dist.all_gather_object(said, (r.bytes, r.bytes_read, r.bytes_received, r.seconds))
                needed, read, received, seconds = zip(*said)
                rows.append({"kind": kind, "share": share, "bytes_needed": sum(needed), "bytes_read": list(read),
                             "bytes_received": list(received), "seconds": max(seconds)})
    finally:
        cairn.torch.close()
    if rank == 0:
        with open(os.path.join(meet, "result"), "w", encoding="utf-8") as f:
            json.dump(rows, f)


def _part(kind: str, rank: int, size: int) -> Callable[[str, tuple[int, ...]], Any]:
    """Returns the part of a tensor that a rank wants."""
    def part(name: str, shape: tuple[int, ...]) -> Any:
        if kind == "replicated" or len(shape) < 2:
            return None
        dim = 0 if kind == "rows" else 1
        n = shape[dim] // size
        return (*[slice(None)] * dim, slice(rank * n, (rank + 1) * n))

    return part


def show(found: Found) -> None:
    """Prints a table, in parts of the checkpoint."""
    total = found["bytes"]
    print(f"\nshare: {found['ranks']} ranks of one host load {total / 1e9:.2f} GB; read and received in parts of it\n")
    print(f"{'':8}{'':12}{'':8}{'needed':>9}{'read':>8}{'received':>10}{'seconds':>9}   read by each rank")
    for row in found["loads"]:
        each = "  ".join(f"{n / total:.2f}" for n in row["bytes_read"])
        print(f"{row['format']:8}{row['kind']:12}{'shared' if row['share'] else 'alone':8}"
              f"{row['bytes_needed'] / total:9.2f}{sum(row['bytes_read']) / total:8.2f}"
              f"{sum(row['bytes_received']) / total:10.2f}{row['seconds']:9.2f}   {each}")
