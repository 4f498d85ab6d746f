"""Tests that need a GPU."""

import threading
import unittest
from unittest import mock

import torch

import cairn.torch
from device import CUDA, DEVICE, Case, blank, busy, copy_of, noise


@unittest.skipUnless(CUDA, "this needs a GPU")
class Devices(Case):
    def test_a_device_without_room(self):
        state = {f"t{i}": noise((512 << 10,), "uint8", seed=i) for i in range(64)}
        cairn.torch.save(state, self.path("first"))
        torch.cuda.empty_cache()
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1])
        full = []
        with self.assertRaises(torch.OutOfMemoryError):
            while True:
                full.append(torch.empty(4 << 20, dtype=torch.uint8, device=DEVICE))
        cairn.torch.save(state, self.path())
        full.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
        got = blank(state)
        cairn.torch.load(got, self.path())
        self.assert_same(state, got)

    def test_a_gpu_each(self):
        if torch.cuda.device_count() < 2:
            self.skipTest(f"{torch.cuda.device_count()} GPUs; this needs two")
        self.round_trip({f"{i}": noise((1 << 22,), device=f"cuda:{i}", seed=i) for i in range(2)})
        handle = cairn.torch.async_save(state := {f"{i}": noise((1 << 22,), device=f"cuda:{i}", seed=i + 2)
                                                  for i in range(2)},
                                        self.path("second"), overlap=True)
        want = copy_of(state)
        handle.staged.result()
        for t in state.values():
            t.zero_()
        handle.result(200)
        cairn.torch.load(state, self.path("second"))
        self.assert_same(want, state)

    def test_a_job_that_is_closed_during_a_copy(self):
        """CUDA forgets its memory: the next job may have other memory at the same address."""
        for seed in range(3):
            go, copy_units = threading.Event(), cairn.torch._staging.copy_units

            def late(*args, go=go, copy_units=copy_units):
                go.wait(100)
                return copy_units(*args)

            with mock.patch.object(cairn.torch._staging, "copy_units", late):
                handle = cairn.torch.async_save({"w": noise((1 << 24,), seed=seed)}, self.path("lost"), overlap=True)
                saver = cairn.torch._job.job().saver
                saver.process.kill()
                saver.process.wait(100)
                go.set()
                cairn.torch.close()
            self.assertIsInstance(handle.exception(100), cairn.SaverError)
            self.assertIsInstance(handle.staged.exception(100), cairn.SaverError)  # the copy is over
            self.round_trip({"w": noise((1 << 24,), seed=seed + 10), "b": noise((7,), seed=seed)})

    def test_memory_that_cuda_refuses(self):
        """Copies are right, also if CUDA knows the address of memory that is gone, and kernels see no error."""
        memory, size = cairn.torch._job.job().memory, 64 << 20
        memory.arena.back(0, size)
        begin = memory.bytes.data_ptr() + 4096
        self.assertEqual(int(torch.cuda.cudart().cudaHostRegister(begin, size // 2, 0)), 0)
        try:
            self.round_trip({"w": noise((size // 8,), seed=1), "b": noise((7,), seed=2)})
            self.assertTrue(memory._refused)
        finally:
            torch.cuda.cudart().cudaHostUnregister(begin)
        self.assertEqual(torch.ones(3, device=DEVICE).sum().item(), 3)

    def test_weights_in_pinned_memory(self):
        cairn.torch.save({"w": noise((1 << 20,), seed=1), "b": noise((7,), seed=2)}, self.path())
        self.assertTrue(all(t.is_pinned() for _, t in cairn.torch.weights(self.path(), pin_memory=True)))

    def test_an_update_follows_the_work_of_its_stream(self):
        """Tensors that the stream of the caller is still changing are compared after that, and changed in its order."""
        run = cairn.Run(self.path("weights"))
        states = {v: {"w": noise((1 << 22,), "int16", seed=v)} for v in (1, 2)}
        states[2]["w"][1000:] = states[1]["w"][1000:]
        for v, state in states.items():
            cairn.torch.save(state, run, step=v)
        weights, w = cairn.torch.follow(run), torch.zeros(1 << 22, dtype=torch.int16, device=DEVICE)
        with torch.cuda.stream(torch.cuda.Stream()):
            late = busy()
            w.copy_((late.sum() * 0).to(torch.int16) + states[1]["w"])
            report = weights.update({"w": w}, version=2)
            copy = w.clone()
        torch.cuda.synchronize()
        self.assertLessEqual(report.elements_changed, 1000)
        self.assert_same(states[2], {"w": w})
        self.assert_same(states[2], {"w": copy})

    def test_an_update_takes_little_memory_of_the_device(self):
        """A tensor that differs everywhere is kept in memory of the host."""
        size = 256 << 20
        run = cairn.Run(self.path("weights"))
        state = {f"{i}": noise((size // 4,), "uint8", seed=i) for i in range(4)}
        cairn.torch.save(state, run, step=1)
        got = blank(state)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        report = cairn.torch.follow(run).update(got)
        self.assert_same(state, got)
        self.assertGreater(report.elements_changed, size * 0.9)
        # A piece of 64 MiB, and the memory of a comparison.
        self.assertLess(torch.cuda.max_memory_allocated() - before, 4 * (64 << 20))


if __name__ == "__main__":
    unittest.main()
