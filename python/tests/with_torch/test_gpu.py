"""What only a GPU can test."""

import unittest

import torch

import cairn.torch
from device import CUDA, DEVICE, Case, blank, copy_of, noise


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


if __name__ == "__main__":
    unittest.main()
