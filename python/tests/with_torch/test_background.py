"""Saves in the background: changes after the call, kills, forks, memory and many saves in a row."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import torch
import torch.utils.data

import cairn
import cairn.torch
from cairn.torch._staging import Staging
from device import CUDA, DEVICE, ENV, Case, blank, busy, copy_of, killed_state, noise, on_stream, slow

LARGE = 128 << 20 if CUDA else 24 << 20  # bytes that take a while to copy

TRAINER = """
import os, signal, sys
import torch
import cairn.torch
from device import killed_state
state = killed_state()
handle = cairn.torch.async_save(state, sys.argv[1], step=7)
assert handle.staged.done()
state["large"].zero_()
print(cairn.torch._job.job().saver.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Changes(Case):
    def test_the_checkpoint_holds_the_state_of_the_call(self):
        for kind in ("current", "other"):
            with self.subTest(stream=kind), on_stream(kind == "other"):
                state = {"large": noise((LARGE,), "uint8"), "w": torch.zeros(1 << 20, device=DEVICE),
                         "small": noise((10,)), "cpu": noise((1 << 20,), device="cpu")}
                busy()  # the copy waits for work that the device got before the call
                state["w"].fill_(5)
                handle = cairn.torch.async_save(state, self.path(kind))
                self.assertTrue(handle.staged.done())
                want = {**copy_of(state), "w": torch.full((1 << 20,), 5.0)}
                for t in state.values():
                    t.zero_()
                handle.result(200)
                cairn.torch.load(state, self.path(kind))
                self.assert_same(want, state)

    def test_overlap(self):
        other = torch.cuda.Stream() if CUDA else None
        for kind in ("current", "other"):
            with self.subTest(stream=kind), on_stream(kind == "other"):
                state = {f"w{i}": noise((LARGE // 4,), "uint8", seed=i) for i in range(4)}
                state["w"] = torch.zeros(1 << 20, device=DEVICE)
                want = {**copy_of(state), "w": torch.full((1 << 20,), 7.0)}
                busy()
                state["w"].fill_(7)
                handle = cairn.torch.async_save(state, self.path(kind), overlap=True)
                with torch.cuda.stream(other):
                    aside = busy(200)  # the copy does not wait for this
                forward = busy() + state["w"][0]  # the next forward pass reads the state
                handle.staged.result(200)
                self.assertTrue(handle.staged.done())
                for t in state.values():
                    t.zero_()
                handle.result(200)
                if CUDA:
                    torch.cuda.synchronize()
                self.assertTrue(torch.isfinite(aside).all().item() and torch.isfinite(forward).all().item())
                cairn.torch.load(state, self.path(kind))
                self.assert_same(want, state)

    def test_an_overlapping_save_of_more_than_the_shared_memory(self):
        self.environment(CAIRN_ARENA_BYTES=str(32 << 20))
        for kind in ("current", "other"):
            with self.subTest(stream=kind), on_stream(kind == "other"):
                state = {f"w{i}": torch.zeros(10 << 20, dtype=torch.uint8, device=DEVICE) for i in range(6)}
                state["large"] = torch.zeros(70 << 20, dtype=torch.uint8, device=DEVICE)
                busy()
                for i, t in enumerate(state.values()):
                    t.fill_(i + 1)
                handle = cairn.torch.async_save(state, self.path(kind), overlap=True)
                handle.staged.result(200)
                want = {k: torch.full(t.shape, i + 1, dtype=t.dtype) for i, (k, t) in enumerate(state.items())}
                for t in state.values():
                    t.zero_()
                handle.result(200)
                cairn.torch.load(state, self.path(kind))
                self.assert_same(want, state)

    def test_a_fetch_that_comes_late_finds_the_state_of_the_call(self):
        self.environment(CAIRN_ARENA_BYTES=str(24 << 20))
        state = {f"w{i}": torch.zeros(3 << 20, dtype=torch.uint8, device=DEVICE) for i in range(16)}
        fetch, changed, late, threads = Staging.fetch, threading.Event(), [], []

        def delayed(staging, body):
            def run():  # until the caller has changed the state, or for so long that the save needs it
                if changed.wait(0.3):
                    late.append(body["item"])
                fetch(staging, body)

            threads.append(threading.Thread(target=run))
            threads[-1].start()

        self.addCleanup(lambda: [t.join(60) for t in threads])
        with mock.patch.object(Staging, "fetch", delayed):
            for n in range(1, 9):
                changed.clear()
                for i, t in enumerate(state.values()):
                    t.fill_(n + 10 * i)
                handle = cairn.torch.async_save(state, self.path(), overlap=n % 2 == 0)
                handle.staged.result(200)
                for t in state.values():
                    t.zero_()
                changed.set()
                handle.result(200)
                cairn.torch.load(state, self.path())
                for i, t in enumerate(state.values()):
                    self.assert_same(torch.full(t.shape, n + 10 * i, dtype=t.dtype), t,
                                     f"save {n}, tensor {i}, late fetches {late}")

    def test_several_under_way(self):
        state = {"x": noise((16 << 20,), "uint8"), "n": torch.zeros((), dtype=torch.int64, device=DEVICE)}
        handles = []
        for i in range(5):
            state["n"].fill_(i)
            handles.append(cairn.torch.async_save(state, self.path(f"step-{i}"), step=i))
        for i, handle in enumerate(handles):
            handle.result(200)
            got = blank(state)
            cairn.torch.load(got, self.path(f"step-{i}"))
            self.assertEqual(got["n"].item(), i)
        self.assertEqual(cairn.latest(self.folder), self.path("step-4"))


class Memory(Case):
    def test_the_last_copy_gives_the_memory_up(self):
        """The job is closed while a save copies, because its saver process has ended."""
        memory, going, go = cairn.torch._job.job().memory, threading.Event(), threading.Event()
        gather, cudart = memory._gather, mock.Mock()

        def late(*args):
            going.set()
            go.wait(100)
            gather(*args)

        def copies():
            with memory.gather([(memory.part(at, 4), [torch.ones(4, dtype=torch.uint8)])], {}):
                pass

        memory._registered = [(0, 4096)]
        begin, at = memory.bytes.data_ptr(), memory.alloc(4)
        with mock.patch.object(memory, "_gather", late), mock.patch("torch.cuda.cudart", lambda: cudart):
            copy = threading.Thread(target=copies)
            copy.start()
            going.wait(100)
            cairn.torch.close()
            cudart.cudaHostUnregister.assert_not_called()
            go.set()
            copy.join(100)
        cudart.cudaHostUnregister.assert_called_once_with(begin)
        self.assertIsNone(memory.bytes)
        with self.assertRaisesRegex(cairn.SaverError, "the saver was closed"), memory.gather([], {}):
            pass


class Processes(Case):
    @slow
    def test_a_trainer_is_killed_when_its_state_is_staged(self):
        trainer = subprocess.run([sys.executable, "-c", TRAINER, self.path("step-7")], env=ENV, capture_output=True,
                                 text=True, timeout=200)
        self.assertEqual(trainer.returncode, -signal.SIGKILL, trainer.stderr)
        self.assertEqual(cairn.latest(self.folder, wait=True, timeout=200), self.path("step-7"))
        want = killed_state()
        got = blank(want)
        cairn.torch.load(got, self.path("step-7"))
        self.assert_same(want, got)
        ended(self, int(trainer.stdout))

    def test_workers_are_forked_while_a_save_is_under_way(self):
        state = {"x": noise((LARGE // 2,), "uint8")}
        cairn.torch.save(state, self.path("data"))
        saver = cairn.torch._job.job().saver
        handle = cairn.torch.async_save(state, self.path())
        loader = torch.utils.data.DataLoader(Rows(self.path("data")), batch_size=4, num_workers=2,
                                             multiprocessing_context="fork", persistent_workers=True, timeout=100)
        rows = iter(loader)
        batches = [next(rows) for _ in range(3)]
        state["x"].zero_()
        handle.result(200)
        again = cairn.torch.async_save(state, self.path("again"))
        batches += list(rows)
        again.result(200)
        x = noise((LARGE // 2,), "uint8").cpu()
        self.assert_same(torch.cat(batches), torch.stack([x[i * 100:i * 100 + 100] for i in range(len(Rows("")))]))
        # The workers are alive, and do not keep the saver process alive.
        cairn.torch.close()
        ended(self, saver.process.pid)
        del rows, loader

    @slow
    def test_memory_does_not_grow(self):
        state = {f"w{i}": noise((8 << 20,), "uint8", seed=i) for i in range(4)} | {f"s{i}": noise((100,), seed=i)
                                                                                   for i in range(100)}
        target = blank(state)

        def rounds(n):
            for i in range(n):
                cairn.torch.async_save(state, self.path(f"{i % 2}"), overlap=i % 3 == 0).result(200)
                cairn.torch.load(target, self.path(f"{i % 2}"))

        rounds(10)
        saver = cairn.torch._job.job().saver.process.pid
        before = usage(saver)
        rounds(40)
        after = usage(saver)
        self.assert_same(state, target)
        most = {"open files": 5, "threads": 5, "device": 0, "shared memory": 64 << 20, "trainer": 64 << 20,
                "saver": 64 << 20}
        for name in most:
            self.assertLessEqual(after[name] - before[name], most[name], f"{name}: {before[name]} became {after[name]}")

    @slow
    def test_200_saves_with_random_changes(self):
        seed = int(os.environ.get("CAIRN_GPU_SEED") or time.time_ns() % 1_000_000)
        print(f"CAIRN_GPU_SEED={seed}", end=" ", file=sys.stderr, flush=True)
        r = random.Random(seed)
        sizes = [r.choice([0, 1, 63, 1000, 1 << 16, (1 << 20) + 1, 5 << 20]) for _ in range(12)]
        state = {f"t{i}": noise((n,), r.choice(["uint8", "int16", "int64"]), r.choice([DEVICE, DEVICE, "cpu"]),
                                r.randrange(1 << 30))
                 for i, n in enumerate(sizes)}
        state["n"] = 0
        target, under_way = blank(state), []
        for n in range(200):
            state["n"] = n
            for name in r.sample(list(state), 4):
                if isinstance(t := state[name], torch.Tensor):
                    change(r, t)
            if r.random() < 0.1:  # another tensor at another place
                state["t0"] = noise((r.randrange(1 << 16),), "int16", seed=n)
                target["t0"] = blank(state["t0"])
            want = copy_of(state)
            handle = cairn.torch.async_save(state, self.path(f"step-{n % 4}"), overlap=r.random() < 0.5)
            handle.staged.result(200)
            under_way.append((n, handle, want))
            if len(under_way) > r.randrange(3):
                number, handle, want = under_way.pop(0)
                handle.result(200)
                target["t0"] = blank(want["t0"])
                cairn.torch.load(target, self.path(f"step-{number % 4}"))
                self.assert_same(want, target, f"step {number}")
        for number, handle, want in under_way:
            handle.result(200)
            target["t0"] = blank(want["t0"])
            cairn.torch.load(target, self.path(f"step-{number % 4}"))
            self.assert_same(want, target, f"step {number}")


def change(r, t):
    """Changes some of a tensor, on its device."""
    if not t.numel():
        return
    lo = r.randrange(t.numel())
    t[lo:lo + r.randrange(1, t.numel() + 1)].add_(r.randrange(1, 100))


class Rows(torch.utils.data.Dataset):
    """Rows of a checkpoint, which workers read by cairn.open."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 64

    def __getitem__(self, i):
        with cairn.open(self.path, framework="torch") as c:
            return c["x"][i * 100:i * 100 + 100]


def usage(saver):
    """Returns the resources that this process and its saver process use."""
    gc.collect()
    return {
        "open files": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
        "device": torch.cuda.memory_allocated() if CUDA else 0,
        "shared memory": sum(hi - lo for lo, hi in cairn.torch._job.job().arena.backed),
        "trainer": resident("self"), "saver": resident(saver),
    }


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        _, all_of_it, shared = map(int, f.read().split()[:3])
    return (all_of_it - shared) * os.sysconf("SC_PAGE_SIZE")


def ended(test, pid):
    """Waits for a process to end."""
    for _ in range(600):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        time.sleep(0.1)
    test.fail(f"the saver process {pid} has not ended")


if __name__ == "__main__":
    unittest.main()
