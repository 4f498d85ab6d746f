"""States of all kinds go to a checkpoint and back."""

import glob
import os
import unittest

import torch

import cairn
import cairn.torch
from cairn.torch._whole import load_whole
from device import CUDA, DEVICE, DTYPES, Case, blank, busy, noise, on_stream, slow


class States(Case):
    def test_every_dtype(self):
        names = [d for d in DTYPES if hasattr(torch, d)]
        self.round_trip({d: {"matrix": noise((37, 53), d), "scalar": noise((), d, seed=1)} for d in names})

    def test_a_dtype_that_cairn_lacks(self):
        with self.assertRaisesRegex(cairn.RepresentError, "x.*complex32"):
            cairn.torch.save({"x": torch.zeros(3, dtype=torch.complex32, device=DEVICE)}, self.path())
        self.round_trip({"x": noise((5,))})  # the job goes on

    def test_views(self):
        base, image = noise((64, 96), "int32"), noise((2, 3, 8, 8), "int16")
        self.round_trip({
            "whole": base, "transposed": base.t(), "steps": base[1:60:3, 4:90:2], "row": base[7], "column": base[:, 5],
            "rest": base[50:], "expanded": noise((96,), "int64").expand(5, 96),
            "channels_last": image.to(memory_format=torch.channels_last),
            "alone": noise((512, 512), "int32")[:, ::8], "bytes": base.view(torch.uint8)[3:9, 1:7],
        })

    def test_shards(self):
        whole = torch.arange(48, dtype=torch.float32, device=DEVICE).reshape(6, 8)
        parts = [((0, 0), whole[:2]), ((2, 0), whole[2:, :3]), ((2, 3), whole[2:, 3:])]
        for step in range(2):  # the second state is described as the first one
            cairn.torch.save({"w": cairn.torch.Shards((6, 8), parts), "step": step}, self.path(f"{step}"))
        want, got = whole.clone(), torch.zeros_like(whole)
        cairn.torch.load({"w": got}, self.path("1"))
        self.assertTrue(torch.equal(got, want))
        pieces = [torch.zeros(3, 8, device=DEVICE), torch.zeros(3, 8, device=DEVICE, dtype=torch.float32)]
        cairn.torch.load({"w": cairn.torch.Shards((6, 8), [((3, 0), pieces[1]), ((0, 0), pieces[0])])}, self.path("1"))
        self.assertTrue(torch.equal(torch.cat(pieces), want))
        # A value becomes a tensor under its name, and a tensor a value.
        for n, w in enumerate((5, cairn.torch.Shards((6, 8), parts), 5)):
            cairn.torch.save({"w": w}, self.path(f"turn-{n}"))
        with cairn.open(self.path("turn-1"), framework="torch") as c:
            self.assertTrue(torch.equal(c["w"].torch().to(DEVICE), want))
        with cairn.open(self.path("turn-2")) as c:
            self.assertEqual(c["w"], 5)

    def test_shards_that_do_not_fit(self):
        t = torch.zeros(2, 3, device=DEVICE)
        for shape, parts in (((3, 3), [((2, 0), t)]), ((2, 3), [((0,), t)]), ((2, 3), [((-1, 0), t)]),
                             ((4, 3), [((0, 0), t), ((2, 0), t.bfloat16())])):
            with self.assertRaisesRegex(cairn.StateError, "is not a part of"):
                cairn.torch.Shards(shape, parts)
        with self.assertRaisesRegex(cairn.CairnError, "w"):  # the rest of it is nowhere
            cairn.torch.save({"w": cairn.torch.Shards((3, 3), [((0, 0), t)])}, self.path())

    def test_lazy_views(self):
        z = torch.randn(33, 17, dtype=torch.complex64, device=DEVICE)
        self.round_trip({"conjugated": z.conj(), "negative": z.conj().imag, "both": z.t().conj()})

    def test_a_shared_storage_is_staged_once(self):
        base = noise((4 << 20,), "uint8")
        self.round_trip({"a": base, "b": base, "first": base[:1000], "last": base[-1000:].view(torch.int16)})
        cairn.torch.close()
        path = self.path()
        cairn.torch.save({f"{i}": base for i in range(8)}, path)
        for whole in (cairn.open(path, framework="torch").load(), load_whole(path)):
            self.assertEqual(len({t.data_ptr() for t in whole.values()}), 1, "tensors")
            self.assertTrue(torch.equal(whole["7"], base.cpu()))
        backed = sum(hi - lo for lo, hi in cairn.torch._job.job().arena.backed)
        self.assertLess(backed, 2 * base.nbytes, "bytes of shared memory")

    def test_requires_grad(self):
        w = torch.randn(16, 16, device=DEVICE, requires_grad=True)
        got = self.round_trip({"w": w, "twice": w * 2})
        self.assertTrue(got["w"].requires_grad and got["w"].is_leaf)
        self.assertIsNone(got["w"].grad)

    def test_empty(self):
        self.round_trip({"none": torch.empty(0, device=DEVICE),
                         "within": torch.empty(3, 0, 2, dtype=torch.bfloat16, device=DEVICE),
                         "scalar": torch.tensor(3.5, device=DEVICE), "values": [1, None, "x"]})

    def test_cpu_and_gpu_in_one_state(self):
        state = {"here": noise((1000, 1000)), "there": noise((1000, 1000), device="cpu", seed=1), "small": noise((3,)),
                 "small there": noise((3,), device="cpu"), "step": 12,
                 "list": [noise((5, 5)), {"x": noise((4,), device="cpu")}]}
        if CUDA:
            state["pinned"] = noise((333,), device="cpu").pin_memory()
        self.round_trip(state)

    def test_modules_and_optimizers(self):
        def made():
            net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128),
                                      torch.nn.Linear(128, 8)).to(DEVICE)
            return net, torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(net, opt, seed):
            opt.zero_grad()
            batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
            net(batch.to(DEVICE)).square().mean().backward()
            opt.step()

        net, opt = made()
        step(net, opt, 1)
        cairn.torch.save({"model": net, "optim": opt}, self.path())
        again, again_opt = made()
        step(again, again_opt, 2)
        cairn.torch.load({"model": again, "optim": again_opt}, self.path())
        self.assert_same(net.state_dict(), again.state_dict())
        self.assert_same(opt.state_dict(), again_opt.state_dict())

    def test_thousands_of_small_tensors(self):
        self.round_trip({f"t{i}": noise((i % 50,), "int16", seed=i) for i in range(3000)})

    @slow
    def test_larger_than_the_shared_memory(self):
        self.environment(CAIRN_ARENA_BYTES=str(32 << 20))
        state = {f"part {i}": noise((9 << 20,), "uint8", seed=i) for i in range(12)}
        state["large"] = noise((100 << 20,), "uint8", seed=99)  # does not fit by itself
        state["small"] = noise((5,), "int16")
        self.round_trip(state)

    def test_views_larger_than_the_shared_memory(self):
        self.environment(CAIRN_ARENA_BYTES=str(24 << 20))
        state = {f"part {i}": noise((1000, 3000), "uint8", seed=i).t() for i in range(8)}
        state |= {f"odd {i}": noise((3 << 20,), "uint8", seed=i)[3:].as_strided((511, 333, 3), (6, 6 * 511, 2))
                  for i in range(4)}
        state["large"] = noise((2000, 4000), "int64").t()  # does not fit by itself
        state["shared"] = (base := noise((1 << 20,), "int32"))[7:]
        state["bytes of shared"] = base.view(torch.uint8)[3:300_003].reshape(-1, 3)[:, ::2]
        self.round_trip(state)


class Loads(Case):
    def test_conversion_and_targets_that_are_not_contiguous(self):
        x = torch.arange(-300, 300, device=DEVICE).reshape(20, 30)
        cairn.torch.save({"x": x.to(torch.float32)}, self.path())
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            targets = {
                "contiguous": torch.zeros(20, 30, dtype=dtype, device=DEVICE),
                "transposed": torch.zeros(30, 20, dtype=dtype, device=DEVICE).t(),
                "steps": torch.zeros(40, 60, dtype=dtype, device=DEVICE)[::2, ::2],
            }
            for kind, t in targets.items():
                with self.subTest(dtype=dtype, target=kind):
                    cairn.torch.load({"x": t}, self.path())
                    self.assert_same(x.to(torch.float32).to(dtype), t)

    @slow
    def test_pieces_of_a_large_tensor(self):
        state = {"large": noise((50 << 20,), "int32"), "odd": noise((3, 7, 1 << 20), "uint8", seed=1)}
        cairn.torch.save(state, self.path())
        self.environment(CAIRN_ARENA_BYTES=str(32 << 20))
        cairn.torch.close()
        got = blank(state)
        cairn.torch.load(got, self.path())
        self.assert_same(state, got)

    def test_work_that_is_queued_on_the_target_comes_first(self):
        state = {"x": noise((8 << 20,), "int32")}
        cairn.torch.save(state, self.path())
        for kind in ("current", "other"):
            got = {"x": torch.zeros(8 << 20, dtype=torch.int32, device=DEVICE)}
            with self.subTest(stream=kind), on_stream(kind == "other"):
                busy()
                got["x"].fill_(5)
                cairn.torch.load(got, self.path())
                if CUDA:
                    torch.cuda.synchronize()
                self.assert_same(state, got)

    def test_damage_is_found(self):
        state = {"a": noise((1 << 20,), "uint8"), "b": noise((1 << 20,), "uint8", seed=1)}
        cairn.torch.save(state, self.path())
        largest = max((f for f in glob.glob(self.path() + "/**", recursive=True) if os.path.isfile(f)),
                      key=os.path.getsize)
        with open(largest, "r+b") as f:
            f.seek(os.path.getsize(largest) // 2)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        with self.assertRaises(cairn.CorruptError):
            cairn.torch.load(blank(state), self.path())
        cairn.torch.save(state, self.path())  # the job goes on
        got = blank(state)
        cairn.torch.load(got, self.path())
        self.assert_same(state, got)

    def test_names_that_are_one_tensor_here(self):
        a = noise((300, 7), "bfloat16", seed=1)
        different = noise((300, 7), "bfloat16", seed=2)
        for name, saved in {"tied": {"a": a, "b": a}, "equal": {"a": a, "b": a.clone()},
                            "different": {"a": a, "b": different}}.items():
            cairn.torch.save(saved, self.path(name))
            for form in "row-major", "column-major":
                with self.subTest(name, form=form):
                    t = torch.zeros_like(a) if form == "row-major" else torch.zeros_like(a).t().contiguous().t()
                    if name != "different":
                        cairn.torch.load({"a": t, "b": t}, self.path(name))
                        self.assert_same(a, t.contiguous())
                        continue
                    with self.assertRaisesRegex(cairn.MismatchError, "'a' and 'b' are one tensor in memory"):
                        cairn.torch.load({"a": t, "b": t}, self.path(name))
                    with self.assertRaisesRegex(cairn.MismatchError, "'x' and 'y' are one tensor in memory"):
                        cairn.torch.load({"x": t, "y": t}, self.path(name), rename={"x": "b", "y": "a"})
                    cairn.torch.load({"b": t}, self.path(name))
                    self.assert_same(different, t.contiguous())
        t = torch.zeros_like(a)
        report = cairn.torch.load({"a": t, "b": t}, self.path("tied"))
        self.assertLess(report.bytes_read, 1.5 * a.nbytes)
        with self.assertRaisesRegex(cairn.MissingError, "'c'"):
            cairn.torch.load({"a": t, "c": t}, self.path("tied"))
        for t in torch.zeros_like(a), torch.zeros_like(a).t().contiguous().t():
            self.assertEqual(cairn.torch.load({"a": t, "c": t}, self.path("tied"), strict=False).missing, ("c",))
            self.assert_same(a, t.contiguous())

    def test_missing_names_stay_as_they_are(self):
        cairn.torch.save({"a": torch.zeros(3, device=DEVICE)}, self.path())
        x = noise((300, 7))
        for t in x.clone(), x.t().contiguous().t():
            self.assertEqual(cairn.torch.load({"t": t}, self.path(), strict=False).missing, ("t",))
            self.assert_same(x, t.contiguous())

    def test_autograd_knows_of_the_change(self):
        w = torch.ones(3 << 20, device=DEVICE, requires_grad=True)
        cairn.torch.save({"w": w}, self.path())
        loss = (w * w).sum()
        cairn.torch.load({"w": w}, self.path())
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_a_module_with_tied_weights(self):
        def model(tie):
            m = torch.nn.ModuleDict({"e": torch.nn.Embedding(8, 4), "h": torch.nn.Linear(4, 8, bias=False)}).to(DEVICE)
            if tie:
                m["h"].weight = m["e"].weight
            return m

        cairn.torch.save({"model": model(False)}, self.path("untied"))
        saved = model(True)
        cairn.torch.save({"model": saved}, self.path("tied"))
        got = model(True)
        with self.assertRaisesRegex(cairn.MismatchError, "'model.e.weight' and 'model.h.weight'"):
            cairn.torch.load({"model": got}, self.path("untied"))
        cairn.torch.load({"model": got}, self.path("tied"))
        self.assert_same(dict(saved.state_dict()), dict(got.state_dict()))
        self.assertIs(got["h"].weight, got["e"].weight)

    def test_open_on_the_device(self):
        x = noise((1000, 64), "bfloat16")
        cairn.torch.save({"x": x, "step": 3}, self.path())
        with cairn.open(self.path(), framework="torch") as c:
            self.assert_same(x[10:20, 3:], c["x"][10:20, 3:])
            got = c.load(device=DEVICE)
            self.assertEqual(got["x"].device.type, DEVICE)
            self.assert_same({"step": 3, "x": x}, got)


if __name__ == "__main__":
    unittest.main()
