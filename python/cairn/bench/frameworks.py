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

    state: dict[str, Any]
    """The tensors that are saved."""

    def save(self, folder: str) -> Callable[[], object]:
        """Begins a background save, or saves. It returns a function that waits for the end."""

    def load(self, folder: str) -> object:
        """Fills the state again."""


class Frameworks:
    """The frameworks that are installed, each with both ways."""

    def __init__(self, torch: Any, device: str, size: int, folder: str, repeat: int, say: Callable[[str], None]):
        self.torch, self.device, self.size = torch, device, size
        self.folder, self.repeat, self.say = folder, repeat, say

    def run(self) -> Found:
        import cairn.torch

        out: Found = {"bytes": self.size, "rows": {}}
        kinds = {"megatron": self.megatron, "deepspeed": self.deepspeed, "accelerate": self.accelerate}
        for name, sides in kinds.items():
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

    def tensors(self) -> dict[str, Any]:
        """Makes a state."""
        count = max(2, self.size // (64 << 20))
        return {f"layer_{i}": self.torch.randn(self.size // count // 4096, 1024, device=self.device)
                for i in range(count)}

    def model(self) -> Any:
        """Makes a module with a state. It has no forward pass."""
        module = self.torch.nn.Module()
        for name, t in self.tensors().items():
            module.register_parameter(name, self.torch.nn.Parameter(t))
        return module

    def measure(self, side: Side) -> Row:
        """Measures saves after the first one, which prepares memory, and loads with the files in the page cache."""
        stalls, completes, resumes = list[float](), list[float](), list[float]()
        want, equal = {k: t.detach().clone() for k, t in side.state.items()}, True
        for n in range(self.repeat + 1):
            path = os.path.join(self.folder, "frameworks")
            os.makedirs(path)
            begin = self.now()
            wait = side.save(path)
            stall = self.now() - begin
            wait()
            complete = self.now() - begin
            for t in side.state.values():
                t.detach().zero_()
            begin = self.now()
            side.load(path)
            resume = self.now() - begin
            equal = equal and all(bool(self.torch.equal(t, want[k])) for k, t in side.state.items())
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
        """Yields Megatron-core's format torch_dist, with its queue of asynchronous saves, and cairn's strategies."""
        if self.device == "cpu":  # Megatron asks for a GPU where it needs none
            self.torch.cuda.current_device = lambda: self.torch.device("cpu")
            self.torch.cuda.synchronize = lambda *_: None
        with contextlib.redirect_stdout(io.StringIO()):
            from megatron.core.dist_checkpointing.strategies import torch as stock

            import cairn.megatron

        yield "itself", _Megatron(self.tensors(), stock.TorchDistSaveShardedStrategy,
                                  stock.TorchDistLoadShardedStrategy)
        yield "cairn", _Megatron(self.tensors(), cairn.megatron.SaveStrategy, cairn.megatron.LoadStrategy)

    def deepspeed(self) -> Iterator[tuple[str, Side]]:
        """Yields DeepSpeed's saves with ZeRO 2, which are not asynchronous, and cairn's."""
        os.environ.setdefault("DS_ACCELERATOR", self.device)
        import deepspeed

        if self.device == "cpu":
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
        os.environ.setdefault("LOCAL_RANK", "0")
        yield "itself", _DeepSpeed(self.model(), False)
        yield "cairn", _DeepSpeed(self.model(), True)

    def accelerate(self) -> Iterator[tuple[str, Side]]:
        """Yields the saves of Accelerate, which are not asynchronous, and cairn's."""
        import accelerate

        import cairn.accelerate

        for by, kind in (("itself", accelerate.Accelerator), ("cairn", cairn.accelerate.Accelerator)):
            yield by, _Accelerate(kind(cpu=self.device == "cpu"), self.model())
            accelerate.state.AcceleratorState._reset_state(True)


class _Megatron:
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

    def load(self, folder: str) -> object:
        return self.checkpointing.load(self.parts(), folder, self.loads)


class _DeepSpeed:
    def __init__(self, model: Any, ours: bool):
        import deepspeed
        import torch

        import cairn.deepspeed

        config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True,
                  "zero_optimization": {"stage": 2}}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        self.state, self.ours, self.tag = dict(self.engine.module.named_parameters()), ours, 0
        self.loads: Any = cairn.deepspeed.load if ours else type(self.engine).load_checkpoint
        if ours:
            cairn.deepspeed.attach(self.engine)

    def save(self, folder: str) -> Callable[[], object]:
        self.tag += 1
        self.engine.save_checkpoint(folder, tag=str(self.tag))
        return self.engine.checkpoint_engine.cleanup if self.ours else lambda: None

    def load(self, folder: str) -> object:
        return self.loads(self.engine, folder)


class _Accelerate:
    def __init__(self, accelerator: Any, model: Any):
        import torch

        self.accelerator = accelerator
        model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.state = dict(accelerator.unwrap_model(model).named_parameters())

    def save(self, folder: str) -> Callable[[], object]:
        handle = self.accelerator.save_state(folder)
        return getattr(handle, "result", lambda: None)

    def load(self, folder: str) -> object:
        return self.accelerator.load_state(folder)


def ratios(found: Found) -> Iterator[tuple[str, float]]:
    """Yields times of cairn in those of the framework itself."""
    for name, rows in found["rows"].items():
        ours = rows["cairn"]
        for by, own in rows.items():
            if by != "cairn":
                yield f"{name}: stall / by {by}, in time", ours["stall"] / own["stall"]
                yield f"{name}: complete / by {by}, in time", ours["complete"] / own["complete"]
                yield f"{name}: resume / by {by}, in time", ours["resume"] / own["resume"]


def show(found: Found) -> None:
    """Prints a table."""
    print(f"\nframeworks, a state of {found['bytes'] / 1e9:.2f} GB in a job of one rank, seconds:")
    print(f"{'':24}{'stall':>9}{'complete':>10}{'resume':>9}")
    for name, rows in found["rows"].items():
        for by, row in rows.items():
            print(f"{name + ' by ' + by:24}{row['stall']:9.3f}{row['complete']:10.2f}{row['resume']:9.2f}"
                  + ("" if row["equal"] else "  other bytes"))
