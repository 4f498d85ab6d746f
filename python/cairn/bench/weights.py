"""Loads for serving: the weights of a model into new tensors, cold and warm, beside other loaders and the disk."""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from cairn.bench import disk
from cairn.bench.peers import State


class Row(TypedDict, total=False):
    """A loader, or the plain file."""

    load_cold_gbs: float
    read_by: str
    of_plain: float
    load_warm_gbs: float
    equal: bool
    verified: bool


class Found(TypedDict):
    bytes: int
    tensors: int
    loaders: dict[str, Row]


@dataclass
class _Rates:
    equal: bool
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)


class Weights:
    """Loads the same weights by all loaders that are installed, in turns."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int, say: Callable[[str], None]):
        self.torch, self.device, self.folder, self.repeat, self.say = torch, device, folder, max(1, repeat), say
        self.state = model(torch, size, device)
        self.bytes = sum(t.nbytes for t in self.state.values())
        self.native, self.files = os.path.join(folder, "native"), os.path.join(folder, "hf")

    def run(self) -> Found:
        """Returns rates by loader."""
        import cairn.torch

        self.say("weights: files")
        try:
            cairn.torch.save(self.state, self.native)
            cairn.torch.save(self.state, self.files, format="hf")
            loaders = self.loaders(sorted(name for name in disk.files(self.files) if name.endswith(".safetensors")))
            raw = disk.Raw(os.path.join(self.folder, "raw"), self.bytes)
            raw.write(0, 4)
            _, read_by = disk.best(lambda flags, threads: raw.read(flags, threads, True), 1)
            flags, threads = next((f, n) for name, f, n in disk.WAYS if name == read_by)
            rows: dict[str, _Rates] = {}
            for name, (_, load) in list(loaders.items()):
                self.say(f"weights: {name}")
                try:
                    rows[name] = _Rates(self.equal(load()))
                except Exception as e:  # another loader that does not work here
                    if name.startswith("cairn"):
                        raise
                    self.say(f"{name} is left out: {e!r}")
                    del loaders[name]
            plain: list[float] = []
            for _ in range(self.repeat):  # in turns, because disks change from minute to minute
                plain.append(1e-9 / raw.read(flags, threads, True))
                for name, (path, load) in loaders.items():
                    disk.evict(path)
                    rows[name].cold.append(self.rate(load))
            for name, (path, load) in loaders.items():
                disk.fetch(path)
                rows[name].warm = [self.rate(load) for _ in range(self.repeat)]
        finally:
            cairn.torch.close()
        floor = statistics.median(plain)
        out: dict[str, Row] = {"plain file": {"load_cold_gbs": floor, "read_by": read_by}}
        for name, row in rows.items():
            cold = statistics.median(row.cold)
            out[name] = {"load_cold_gbs": cold, "of_plain": cold / floor,
                         "load_warm_gbs": statistics.median(row.warm), "equal": row.equal,
                         "verified": name == "cairn"}
        return {"bytes": self.bytes, "tensors": len(self.state), "loaders": out}

    def loaders(self, shards: list[str]) -> dict[str, tuple[str, Callable[[], State]]]:
        """Returns the loaders that are installed, with the files that they read."""
        from safetensors.torch import load_file

        import cairn.torch

        def ours(path: str) -> Callable[[], State]:
            return lambda: dict(cairn.torch.weights(path, self.device, alone=True))

        def plain() -> State:
            found = (item for path in shards for item in load_file(path, device=self.device).items())
            return {name: t.clone() if self.device == "cpu" else t for name, t in found}  # it maps files on the CPU

        out: dict[str, tuple[str, Callable[[], State]]] = {
            "cairn": (self.native, ours(self.native)),
            "cairn, safetensors files": (self.files, ours(self.files)),
            "safetensors": (self.files, plain),
        }
        for title, module, load in (("fastsafetensors", "fastsafetensors", self.fast),
                                    ("runai-model-streamer", "runai_model_streamer", self.streamed)):
            try:
                found = importlib.import_module(module)
            except Exception:  # it is not installed, or not for this machine
                self.say(f"{title} is not installed")
                continue
            out[title] = (self.files, lambda load=load, found=found: load(found, shards))  # type: ignore[misc]
        return out

    def fast(self, module: Any, shards: list[str]) -> State:
        """Loads by fastsafetensors. The tensors are copies, because its own memory goes with its buffers."""
        device = "cuda:0" if self.device == "cuda" else "cpu"
        loader = module.SafeTensorsFileLoader(module.SingleGroup(), device, nogds=True)
        try:
            loader.add_filenames({0: shards})
            buffers = loader.copy_files_to_device()
            try:
                return {name: buffers.get_tensor(name).clone() for name in self.state}
            finally:
                buffers.close()
        finally:
            loader.close()

    def streamed(self, module: Any, shards: list[str]) -> State:
        """Loads by runai-model-streamer, whose tensors are views of a buffer."""
        with module.SafetensorsStreamer() as streamer:
            streamer.stream_files(shards)
            return {name: t.to(self.device, copy=True) for name, t in streamer.get_tensors()}

    def equal(self, got: State) -> bool:
        """Reports whether all tensors are there, with the same bits."""
        torch = self.torch
        return set(got) == set(self.state) and all(torch.equal(got[n].view(torch.int16), t.view(torch.int16))
                                                   for n, t in self.state.items())

    def rate(self, load: Callable[[], State]) -> float:
        """Returns GB/s."""
        gc.collect()
        self.sync()
        begin = time.perf_counter()
        got = load()
        self.sync()
        seconds = time.perf_counter() - begin
        del got
        return self.bytes / 1e9 / seconds

    def sync(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def model(torch: Any, size: int, device: str) -> State:
    """Returns random bfloat16 weights of about a number of bytes: layers of a transformer, all of one kind."""
    width = 4096 if size >= 1 << 30 else 512
    shapes = {"self_attn.q_proj": (width, width), "self_attn.k_proj": (width // 4, width),
              "self_attn.v_proj": (width // 4, width), "self_attn.o_proj": (width, width),
              "mlp.gate_proj": (7 * width // 2, width), "mlp.up_proj": (7 * width // 2, width),
              "mlp.down_proj": (width, 7 * width // 2), "input_layernorm": (width,)}
    layer = 2 * sum(torch.Size(shape).numel() for shape in shapes.values())
    out = {}
    for i in range(max(1, round(size / layer))):
        for name, shape in shapes.items():
            bits = torch.randint(-1 << 15, 1 << 15, shape, dtype=torch.int16, device=device)
            out[f"model.layers.{i}.{name}.weight"] = bits.view(torch.bfloat16)
    return out


def show(found: Found) -> None:
    """Prints a table."""
    print(f"\nweights: {found['bytes'] / 1e9:.2f} GB in {found['tensors']} tensors, into new tensors\n")
    print(f"{'':26}{'cold GB/s':>11}{'of plain':>10}{'warm GB/s':>11}{'equal':>8}{'checksums':>11}")
    for name, row in found["loaders"].items():
        rates = row["load_cold_gbs"], row.get("of_plain"), row.get("load_warm_gbs")
        cells = ["-" if rate is None else f"{rate:.2f}" for rate in rates]
        said = ["-" if yes is None else "yes" if yes else "no" for yes in (row.get("equal"), row.get("verified"))]
        print(f"{name:26}" + "".join(f"{c:>{n}}" for c, n in zip([*cells, *said], (11, 10, 11, 8, 11))))
    print(f"plain file: {found['loaders']['plain file']['read_by']}")
