"""Follows versions of weights: tensors in use are brought from one version to the next."""

import glob
import os
import shutil
import subprocess
import threading
import time
import unittest
import unittest.mock
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import cairn
import cairn.torch
from cairn.torch import _follow
from device import CUDA, DEVICE, DTYPES, Case, bits, blank, copy_of, differs, join, noise, spawn, start

RECIPE = """sides = ["trainer", "server"]

[[rule]]
trainer = ["q [n, hidden]", "k [n, hidden]"]
server = "qk [n + n, hidden]"

[[rule]]
trainer = "norm"
server = "final_norm"
"""


def changed(state, seed, part=0.01):
    """Returns a copy of a state in which a part of the bytes of each tensor has changed."""
    out = {}
    for i, (name, t) in enumerate(state.items()):
        raw = bits(t).clone()
        n = int(len(raw) * part) or min(1, len(raw))
        if n:
            g = torch.Generator().manual_seed(1000 * seed + i)
            at = torch.randperm(len(raw), generator=g)[:n]
            raw[at] = raw[at] ^ 1
        out[name] = raw.view(t.dtype).reshape(t.shape).to(t.device)
    return out


def quantized():
    """Returns a tensor of a dtype that checkpoints do not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)


class Versions(Case):
    """A run with versions of a state."""

    def setUp(self):
        super().setUp()
        self.run_ = cairn.Run(self.path("weights"))
        self.states = {}

    def publish(self, version, state, **options):
        self.states[version] = copy_of(state)
        cairn.torch.save(state, self.run_, step=version, **options)
        return state

    def chain(self, state, versions):
        """Publishes versions, each with a small change."""
        for v in versions:
            state = changed(state, v)
            self.publish(v, state)
        return state

    def folder_of(self, version):
        return self.run_.path_of(version)

    def damage(self, version):
        """Changes a byte in the middle of the largest file of a version."""
        file = max(glob.glob(os.path.join(self.folder_of(version), "*")), key=os.path.getsize)
        with open(file, "r+b") as f:
            f.seek(os.path.getsize(file) // 2)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 0x10]))

    def follow(self, **options):
        return cairn.torch.follow(self.run_, **options)


class Follow(Versions):
    def test_from_version_to_version(self):
        state = {"w": noise((300, 700), "bfloat16", seed=1), "b": noise((700,), seed=2), "n": noise((), "int64"),
                 "empty": noise((0, 3))}
        self.chain(state, range(1, 6))
        weights = self.follow()
        params = blank(state)
        self.assertIsNone(weights.version)
        for v in range(1, 6):
            report = weights.update(params, version=v)
            self.assert_same(self.states[v], params)
            self.assertEqual((report.version, report.from_version, weights.version), (v, v - 1 if v > 1 else None, v))
            self.assertEqual(report.full, v == 1)
            self.assertEqual((report.tried, report.elements), ((), sum(t.numel() for t in state.values())))
            self.assertEqual(report.bytes, sum(t.nbytes for t in state.values()))
            if v > 1:
                self.assertLess(report.bytes_changed, report.bytes / 20)
                self.assertGreater(report.elements_changed, 1000)
            self.assertLessEqual(report.pause_seconds, report.seconds)
        self.assertEqual(weights.newest(), 5)
        report = weights.update(params, version=2)  # back
        self.assert_same(self.states[2], params)
        self.assertEqual((report.version, report.from_version), (2, 5))
        self.assertEqual(weights.update(params).version, 5)
        self.assert_same(self.states[5], params)

    def test_only_changes_are_read(self):
        state = {"w": noise((1 << 22,), "uint8")}
        self.chain(state, range(1, 5))
        weights, params = self.follow(), blank(state)
        read = [weights.update(params, version=v).bytes_read for v in range(1, 5)]
        self.assertGreaterEqual(read[0], 1 << 22)
        self.assertLess(max(read[2:]), (1 << 22) / 10, read)
        self.assert_same(self.states[4], params)
        without = self.follow(cache_bytes=0)
        cairn.torch.close()
        self.assertGreaterEqual(without.update(params).bytes_read, 1 << 22)

    def test_all_dtypes(self):
        dtypes = [d for d in DTYPES if hasattr(torch, d)]
        state = {d: noise((33, 7), d, seed=i) for i, d in enumerate(dtypes)}
        new = {d: t if d == "bool" else changed({d: t}, 3)[d] for d, t in state.items()}
        new["bool"] = ~state["bool"]
        self.publish(1, state)
        self.publish(2, new)
        weights, params = self.follow(), blank(state)
        for v in 1, 2:
            weights.update(params, version=v)
            self.assert_same(self.states[v], params)

    def test_bits_count(self):
        """NaNs with other payloads, and the sign of zero."""
        first = torch.tensor([0x7fc00000, 0x7fc00001, 0, -(1 << 31), 0x7f800001], dtype=torch.int32)
        second = torch.tensor([0x7fc00002, 0x7fc00001, -(1 << 31), 0, -1], dtype=torch.int32)
        params = {"w": torch.zeros(5, device=DEVICE)}
        weights = self.follow()
        for v, (raw, differing) in enumerate(((first, 4), (second, 4)), 1):
            self.publish(v, {"w": raw.view(torch.float32).to(DEVICE)})
            self.assertEqual(weights.update(params).elements_changed, differing)
            self.assertTrue(torch.equal(bits(params["w"]).view(torch.int32), raw))

    def test_other_dtypes(self):
        self.publish(1, {"w": torch.arange(12.0, device=DEVICE).reshape(3, 4)})
        params = {"w": torch.zeros(3, 4, dtype=torch.bfloat16, device=DEVICE)}
        self.follow().update(params)
        self.assert_same({"w": self.states[1]["w"].bfloat16()}, params)
        with self.assertRaises(cairn.CastError):
            self.follow(cast="none").update(params)
        self.assert_same({"w": self.states[1]["w"].bfloat16()}, params)

    def test_strides(self):
        state = {"t": noise((40, 60), "int16", seed=1), "s": noise((10, 9, 8), "int32", seed=2),
                 "c": noise((6, 5), "complex128", seed=3)}
        self.chain(state, (1, 2))
        params = {"t": torch.zeros(60, 40, dtype=torch.int16, device=DEVICE).t(),
                  "s": torch.zeros(20, 9, 16, dtype=torch.int32, device=DEVICE)[::2, :, 3:11],
                  "c": torch.zeros(5, 6, dtype=torch.complex128, device=DEVICE).t()}
        around = params["s"]._base
        weights = self.follow()
        for v in 1, 2:
            weights.update(params, version=v)
            self.assert_same(self.states[v], params)
        around[::2, :, 3:11] = 0
        self.assertEqual(int(around.count_nonzero()), 0)

    def test_large_tensors_come_in_pieces(self):
        self.environment(CAIRN_ARENA_BYTES=str(1 << 20))
        state = {"w": noise((3000, 1000), "int16", seed=1), "t": noise((1100, 1000), "float32", seed=2)}
        params = {"w": torch.zeros_like(state["w"]), "t": torch.zeros(1000, 1100, device=DEVICE).t()}
        self.chain(state, (1, 2))
        weights = self.follow()
        for v in 1, 2:
            weights.update(params, version=v)
            self.assert_same(self.states[v], params)

    def test_many_changes(self):
        """Pieces that are kept whole, and pieces that are not."""
        state = {"w": noise((50_000,), "int32")}
        weights, params = self.follow(), blank(state)
        for v, part in enumerate((1, 0.9, 0.2, 0.02, 0.0001), 1):
            state = self.publish(v, changed(state, v, part))
            weights.update(params)
            self.assert_same(state, params)

    def test_modules(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
        model[0].register_buffer("scratch", torch.ones(2), persistent=False)
        self.publish(1, {"model": model.state_dict()})
        other = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
        weight = other[0].weight
        self.follow(rename={"": "model."}).update(other)
        self.assert_same(model.state_dict(), other.state_dict())
        self.assertIs(other[0].weight, weight)
        self.assertTrue(weight.requires_grad)
        other[0].weight.data.zero_()
        self.follow().update({"model": other})
        self.assert_same(model.state_dict(), other.state_dict())

    def test_a_state_dict_of_copies_is_refused(self):
        class Copies(torch.nn.Linear):
            def state_dict(self, *args, **kwargs):
                return {name: t.clone() for name, t in super().state_dict(*args, **kwargs).items()}

        self.publish(1, {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
        with self.assertRaisesRegex(cairn.StateError, "is a copy"):
            self.follow().update(Copies(2, 2).to(DEVICE))

    def test_tied(self):
        state = {"embed": noise((20, 10), seed=1), "norm": noise((10,), seed=2)}
        self.chain(state, (1, 2))
        table = torch.zeros(20, 10, device=DEVICE)
        for names in ("embed", "head"), ("head", "embed"):
            params = {**dict.fromkeys(names, table), "norm": torch.zeros(10, device=DEVICE)}
            weights = self.follow()
            for v in 1, 2:
                report = weights.update(params, version=v)
                self.assert_same(self.states[v], {"embed": table, "norm": params["norm"]})
            self.assertEqual(report.elements, 210)

    def test_tied_here_and_not_in_the_version(self):
        for size in 200, 3 << 20:  # the larger one comes in several pieces
            with self.subTest(size):
                state = {"embed": noise((size, 2), seed=1), "norm": noise((10,), seed=2)}
                equal = {**state, "head": state["embed"].clone()}
                new = changed(equal, 7)
                new["head"] = new["embed"].clone()
                other = copy_of(new)
                other["head"].view(torch.uint8).reshape(-1)[size] ^= 1
                for v, versions in enumerate((equal, new, other), 10 * (size > 200)):
                    self.publish(v, versions)
                first = 10 * (size > 200)
                weights, table = self.follow(), torch.zeros(size, 2, device=DEVICE)
                params = {"head": table, "norm": torch.zeros(10, device=DEVICE), "embed": table}
                for v in first, first + 1:
                    report = weights.update(params, version=v)
                    self.assertEqual(report.elements, table.numel() + 10)
                    self.assert_same(self.states[v], {k: params[k] for k in ("embed", "norm", "head")})
                with self.assertRaisesRegex(cairn.MismatchError, "'head' and 'embed' are one tensor"):
                    weights.update(params, version=first + 2)
                self.assertEqual(weights.version, first + 1)
                self.assert_same(new["embed"], table)
                self.assert_same(new["norm"], params["norm"])
                weights.update({"head": table}, version=first + 2)  # one of the names
                self.assert_same(other["head"], table)

    def test_a_tied_version_is_read_once(self):
        table = noise((1 << 20,), "uint8")
        self.publish(1, {"embed": table, "head": table})
        here = torch.zeros_like(table)
        report = self.follow(cache_bytes=0).update({"embed": here, "head": here})
        self.assert_same(table, here)
        self.assertLess(report.bytes_read, 1.5 * table.nbytes)

    def test_tensors_that_share_a_part_of_their_memory(self):
        state = {name: noise((64, 8), seed=i) for i, name in enumerate("abc")}
        self.publish(1, state)

        def check(big, *places):
            params = {name: big.as_strided((64, 8), strides, at) for name, (strides, at) in zip("abc", places)}
            big.zero_()
            try:
                self.follow().update(params)
            except cairn.StateError as e:
                self.assertFalse(big.any())
                return [name for name in params if f"'{name}'" in str(e)]
            self.assert_same({k: state[k] for k in params}, {k: params[k].contiguous() for k in params})
            return []

        big, rows, columns = torch.zeros(2000, device=DEVICE), (8, 1), (24, 1)
        for places, want in (
            ([(rows, 0), (rows, 512), (rows, 1024)], []),  # one after the other
            ([(rows, 0), (rows, 1024), (rows, 1024 + 256)], ["b", "c"]),
            ([(rows, 0), (rows, 511)], ["a", "b"]),
            ([(columns, 0), (columns, 8), (columns, 16)], []),  # columns of one matrix
            ([(columns, 0), (columns, 8), (columns, 15)], ["b", "c"]),
            ([((1, 64), 0), ((1, 64), 512)], []),
            ([(rows, 0), ((1, 64), 0)], ["a", "b"]),  # transposed
            ([((24, 3), 0), ((24, 3), 1), ((24, 3), 2)], []),  # every third element
            ([((24, 3), 0), (columns, 24), ((24, 3), 2)], ["a", "b"]),
        ):
            with self.subTest(places):
                self.assertEqual(check(big, *places), want)
        with self.assertRaisesRegex(cairn.StateError, "share a part"):
            self.follow().update({"a": big[:512].view(64, 8), "b": big[:512].view(64, 8).view(torch.int32)})

    def test_a_recipe(self):
        with open(self.path("recipe.toml"), "w") as f:
            f.write(RECIPE)
        state = {"q": noise((30, 50), "bfloat16", seed=1), "k": noise((30, 50), "bfloat16", seed=2),
                 "norm": noise((50,), "bfloat16", seed=3)}
        self.chain(state, (1, 2, 3))
        weights = self.follow(recipe=self.path("recipe.toml"))
        params = {"qk": torch.zeros(60, 50, dtype=torch.bfloat16, device=DEVICE),
                  "final_norm": torch.zeros(50, dtype=torch.bfloat16, device=DEVICE)}
        for v in 1, 2, 3:
            weights.update(params, version=v)
            want = self.states[v]
            self.assert_same({"qk": torch.cat([want["q"], want["k"]]), "final_norm": want["norm"]}, params)

    def test_other_formats(self):
        state = {"w": noise((100, 10), "bfloat16")}
        for v in 1, 2, 12:
            state = changed(state, v)
            cairn.torch.save(state, os.path.join(self.path("hf"), f"checkpoint-{v}"), format="hf")
        weights, params = cairn.torch.follow(self.path("hf")), blank(state)
        self.assertEqual((weights.newest(), weights.wait(10)), (12, 12))
        self.assertEqual(weights.update(params).version, 12)
        self.assert_same(state, params)
        self.assertEqual(weights.update(params, version=2).version, 2)

    def test_inference_mode(self):
        state = {"w": noise((1000,), "int32")}
        self.chain(state, (1, 2))
        with torch.inference_mode():
            params = blank(state)
            weights = self.follow()
            weights.update(params, version=1)
        self.assert_same(self.states[1], params)
        weights.update(params, version=2)
        self.assert_same(self.states[2], params)

    def test_a_tensor_that_a_graph_uses(self):
        self.chain({"w": noise((100,), "float32")}, (1,))
        w = torch.nn.Parameter(torch.zeros(100, device=DEVICE))
        loss = (w * 2).sum()
        self.follow().update({"w": w})
        self.assert_same(self.states[1], {"w": w})
        loss.backward()
        self.assertTrue(w.is_leaf and w.requires_grad)


class PrepareAndCommit(Versions):
    def test_nothing_changes_before_commit(self):
        state = {"w": noise((1000, 100), "int16")}
        self.chain(state, (1, 2))
        weights, params = self.follow(), blank(state)
        weights.update(params, version=1)
        prepared = weights.prepare(params)
        self.assert_same(self.states[1], params)
        self.assertEqual((prepared.version, weights.version), (2, 1))
        self.chain(self.states[2], (3,))  # a newer version meanwhile
        self.assertEqual(prepared.commit().version, 2)
        self.assert_same(self.states[2], params)
        with self.assertRaisesRegex(cairn.OptionsError, "committed before"):
            prepared.commit()
        self.assert_same(self.states[2], params)

    def test_a_stale_preparation_is_refused(self):
        state = {"w": noise((1000,), "int16")}
        self.chain(state, (1, 2))
        weights, params = self.follow(), blank(state)
        one, two = weights.prepare(params, 1), weights.prepare(params, 2)
        one.commit()
        with self.assertRaises(cairn.OptionsError):
            two.commit()
        self.assert_same(self.states[1], params)
        self.assertEqual(weights.version, 1)

    def test_a_commit_that_fails_is_completed_by_the_next(self):
        state = {"a": noise((1000,), "int16", seed=1), "b": noise((1000,), "int16", seed=2)}
        self.chain(state, (1, 2))
        weights, params = self.follow(), blank(state)
        weights.update(params, version=1)
        prepared, write, calls = weights.prepare(params), _follow._Target.write, []

        def fails(target):
            calls.append(target)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("on purpose")
            write(target)

        with unittest.mock.patch.object(_follow._Target, "write", fails), \
                self.assertRaises(torch.OutOfMemoryError):
            prepared.commit()
        self.assertIsNone(weights.version)
        self.assertTrue(differs(self.states[2], params) and differs(self.states[1], params))
        report = weights.update(params)
        self.assertEqual((report.version, report.from_version), (2, None))
        self.assert_same(self.states[2], params)

    def test_params_that_do_not_fit(self):
        self.publish(1, {"w": noise((4,)), "b": noise((4,), seed=1)})
        weights = self.follow()
        w = torch.zeros(4, device=DEVICE)
        for params, error in (({"w": w, "x": w.clone()}, cairn.MissingError),
                              ({"w": torch.zeros(5, device=DEVICE)}, cairn.MismatchError),
                              ({"w": w, "b": 3}, cairn.StateError),
                              ({"w": torch.zeros(1, device=DEVICE).expand(4)}, cairn.StateError),
                              ({"w": torch.zeros(5, device=DEVICE).as_strided((2, 2), (1, 1))}, cairn.StateError),
                              ({"w": quantized()}, cairn.RepresentError),
                              ([w], cairn.StateError)):
            with self.subTest(error), self.assertRaises(error):
                weights.update(params)
        self.assertEqual(int(w.count_nonzero()), 0)
        weights.update({"w": w})  # a part of the version
        self.assert_same(self.states[1]["w"], w)

    def test_what_is_refused(self):
        with self.assertRaisesRegex(cairn.NotFoundError, "no complete version"):
            self.follow().update({"w": torch.zeros(1)})
        self.assertIsNone(self.follow().newest())
        self.publish(1, {"w": torch.zeros(1)})
        with self.assertRaisesRegex(cairn.NotFoundError, "no complete version 7"):
            self.follow().update({"w": torch.zeros(1)}, version=7)
        with self.assertRaises(cairn.OptionsError):
            self.follow(config="config.json")
        with self.assertRaises(cairn.OptionsError):
            self.follow(base=self.path("base"), format="hf")
        with self.assertRaises(cairn.OptionsError):
            self.follow(base=self.path("base"), format_options={"dequantize": True})
        with self.assertRaises(cairn.OptionsError):
            self.follow(cache_bytes=-1)
        for version in "1", 1.0:
            with self.subTest(version), self.assertRaises(TypeError):
                self.follow().update({"w": torch.zeros(1)}, version=version)
        with self.assertRaisesRegex(cairn.MissingError, r"follow\(…, rename=\{'x\.': ''\}\) finds them$"):
            self.follow().update({"x.w": torch.zeros(1)})


class Wait(Versions):
    def test_wait(self):
        self.publish(1, {"w": torch.zeros(10)})
        weights, params = self.follow(), {"w": torch.ones(10)}
        self.assertEqual(weights.wait(), 1)
        weights.update(params)
        begun = time.monotonic()
        with self.assertRaisesRegex(TimeoutError, "newer than 1"):
            weights.wait(0.3, interval=0.01)
        self.assertGreaterEqual(time.monotonic() - begun, 0.3)
        timer = threading.Timer(0.3, self.publish, [2, {"w": torch.full((10,), 2.0)}])
        timer.start()
        self.assertEqual(weights.wait(100, interval=0.02), 2)
        timer.join()

    def test_a_version_that_is_saved_again(self):
        self.publish(1, {"w": torch.zeros(10)})
        weights, params = self.follow(), {"w": torch.ones(10)}
        weights.update(params)
        self.publish(1, {"w": torch.full((10,), 3.0)})
        self.assertEqual(weights.wait(10), 1)
        weights.update(params)
        self.assert_same(self.states[1], params)
        with self.assertRaises(TimeoutError):
            weights.wait(0.1)

    def test_a_version_that_does_not_fit(self):
        """wait does not return it again, but update tries it."""
        self.publish(1, {"w": torch.zeros(10), "b": torch.zeros(3)})
        weights, params = self.follow(), {"w": torch.ones(10), "b": torch.ones(3)}
        weights.update(params)
        for version, state, error in ((2, {"w": torch.zeros(10)}, cairn.MissingError),
                                      (3, {"w": torch.zeros(9), "b": torch.zeros(3)}, cairn.MismatchError)):
            for again in "published", "saved again":
                with self.subTest(version, again=again):
                    self.publish(version, state)
                    self.assertEqual(weights.wait(10), version)
                    for _ in 1, 2:
                        with self.assertRaises(error):
                            weights.update(params)
                        with self.assertRaises(TimeoutError):
                            weights.wait(0)
                    self.assertEqual((weights.version, weights.newest()), (1, version))
        self.publish(4, {"w": torch.full((10,), 4.0), "b": torch.zeros(3)})
        self.assertEqual(weights.wait(10), 4)
        self.assertEqual(weights.update(params).version, 4)
        self.assert_same(self.states[4], params)

    def test_the_first_version_does_not_fit(self):
        """An older one is no reason to try the newest again."""
        for v, state in (1, {"w": torch.zeros(10)}), (2, {"x": torch.zeros(10)}):
            self.publish(v, state)
        weights, params = self.follow(), {"w": torch.ones(10)}
        self.assertEqual(weights.wait(), 2)
        with self.assertRaises(cairn.MissingError):
            weights.update(params)
        with self.assertRaises(TimeoutError):
            weights.wait(0)
        weights.update({"x": torch.ones(10)})  # other tensors
        self.assertEqual(weights.version, 2)

    def test_a_run_that_does_not_exist_yet(self):
        weights = self.follow()
        self.assertIsNone(weights.newest())
        with self.assertRaisesRegex(TimeoutError, "has no complete version after 0.1 seconds"):
            weights.wait(0.1)
        self.publish(3, {"w": torch.zeros(10)})
        self.assertEqual(weights.wait(10), 3)


class Damage(Versions):
    def test_a_damaged_version(self):
        state = {"w": noise((1 << 20,), "uint8")}
        state = self.chain(state, (1, 2))
        weights, params = self.follow(), blank(state)
        weights.update(params)
        shutil.copytree(self.folder_of(2), self.path("saved"))
        self.publish(3, changed(state, 3, 0.5))
        self.damage(3)
        with self.assertRaisesRegex(cairn.CorruptError, "stay at version 2"):
            weights.update(params)
        self.assert_same(self.states[2], params)
        self.assertEqual((weights.version, weights.newest()), (2, 2))
        with self.assertRaises(TimeoutError):  # it does not return a version that cannot be loaded
            weights.wait(0.1)
        self.assertEqual(weights.update(params).version, 2)
        cairn.torch.save(changed(state, 4, 0.5), cairn.Run(self.run_.path, alone=True), step=4)
        self.assertEqual(weights.wait(10), 4)
        report = weights.update(params)
        self.assert_same(changed(state, 4, 0.5), params)
        self.assertEqual((report.version, report.from_version, report.tried), (4, 2, ()))

    def test_the_newest_older_one_that_can_be_loaded(self):
        run = cairn.Run(self.run_.path, alone=True)
        state = {"w": noise((1 << 18,), "uint8")}
        for v in 1, 2, 3, 4:
            state = changed(state, v, 0.3)
            self.states[v] = copy_of(state)
            cairn.torch.save(state, run, step=v)
        weights, params = self.follow(), blank(state)
        weights.update(params, version=1)
        self.damage(4)
        self.damage(3)
        report = weights.update(params)
        self.assertEqual((report.version, report.from_version, report.full), (2, 1, True))
        self.assert_same(self.states[2], params)
        self.assertEqual([t.split(":")[0] for t in report.tried],
                         ["version 4", "version 4, read again", "version 3", "version 3, read again"])
        with self.assertRaisesRegex(cairn.CorruptError, "stay at version 2"):
            weights.update(params, version=3)
        self.assert_same(self.states[2], params)

    def test_a_damaged_version_is_saved_again(self):
        state = self.publish(1, {"w": noise((1 << 18,), "uint8")})
        self.damage(1)
        weights, params = self.follow(), blank(state)
        with self.assertRaisesRegex(cairn.CorruptError, "stay as they were"):
            weights.update(params)
        self.assertIsNone(weights.newest())
        self.publish(1, state)
        self.assertEqual((weights.wait(10), weights.update(params).version), (1, 1))
        self.assert_same(state, params)

    def test_versions_that_cannot_be_opened(self):
        """They are named, and the weights stay as they are."""
        run, state = cairn.Run(self.run_.path, alone=True), {"w": noise((1000,))}
        cairn.torch.save(state, run, step=1)
        weights, params = self.follow(), blank(state)
        weights.update(params)
        for version, pattern, damage in ((2, "*-index.cairn", lambda name: os.truncate(name, 20)),
                                         (3, "cairn.json", lambda name: os.truncate(name, 20)),
                                         (4, "*.safetensors", os.unlink)):
            cairn.torch.save(state, run, step=version)
            for name in glob.glob(os.path.join(self.folder_of(version), pattern)):
                damage(name)
        cairn.torch.save(state, run, step=5)
        os.unlink(os.path.join(self.folder_of(5), "cairn.json"))  # as a save that did not finish
        report = weights.update(params)
        self.assertEqual((report.version, report.full), (1, False))
        self.assertEqual([t.split(":")[0] for t in report.tried], ["version 4", "version 3", "version 2"])
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in 1, 2:
                with self.assertRaises(TimeoutError):
                    weights.wait(0)
        self.assertEqual(len(warned), 3, warned)
        for version in 2, 3, 4:
            with self.subTest(version), self.assertRaisesRegex(cairn.CorruptError, f"step-{version:09}"):
                weights.update(params, version=version)
        with self.assertRaisesRegex(cairn.NotFoundError, "has no complete version 5"):
            weights.update(params, version=5)
        self.assertEqual((weights.version, weights.newest()), (1, 1))
        shutil.rmtree(self.folder_of(1))  # now there are only damaged ones
        self.assertIsNone(weights.newest())
        with self.assertRaises(cairn.CorruptError):
            weights.update(params)
        with warnings.catch_warnings(record=True) as warned, self.assertRaises(TimeoutError):
            warnings.simplefilter("always")
            weights.wait(0)
        self.assertEqual(len(warned), 1, warned)
        self.assert_same(state, params)

    def test_a_chain_of_slime_with_a_gap(self):
        state, base, published = {"w": noise((1000,), "bfloat16")}, self.path("base"), self.path("published")
        cairn.torch.save(state, base, format="hf")
        for v in 1, 2, 3:
            state = changed(state, v)
            cairn.torch.save(state, os.path.join(published, f"weight_v{v:06}"), format="slime",
                             format_options={"base": base})
            self.states[v] = copy_of(state)
        os.unlink(os.path.join(published, "weight_v000002", "model.safetensors.index.json"))
        weights, params = cairn.torch.follow(published, base=base), blank(state)
        report = weights.update(params)
        self.assertEqual((report.version, len(report.tried)), (1, 1))
        self.assertRegex(report.tried[0], "^version 3: .*broken chain of versions: weight_v000002")
        self.assert_same(self.states[1], params)
        with self.assertRaisesRegex(cairn.CorruptError, "broken chain of versions: weight_v000002"):
            weights.update(params, version=3)

    def test_a_base_that_is_gone(self):
        state = self.chain({"w": noise((1 << 20,), "uint8")}, (1, 2, 3))
        weights, params = self.follow(), blank(state)
        weights.update(params, version=1)
        for name in glob.glob(os.path.join(self.folder_of(1), "*.safetensors")):
            os.unlink(name)
        cairn.torch.close()  # a new saver process has no files in memory
        with self.assertRaises(cairn.CairnError):
            weights.update(params)
        self.assert_same(self.states[1], params)
        cairn.torch.save(state, cairn.Run(self.run_.path, alone=True), step=4)
        self.assertEqual(weights.update(params).version, 4)
        self.assert_same(state, params)

    def test_a_version_that_is_removed_meanwhile(self):
        run = cairn.Run(self.run_.path, alone=True)
        for v in 1, 2, 3:
            self.states[v] = {"w": noise((1000,), seed=v)}
            cairn.torch.save(self.states[v], run, step=v)
        weights, params = self.follow(), {"w": torch.zeros(1000, device=DEVICE)}
        load, calls = _follow.Follower._load, []

        def removed(self_, params, found):
            calls.append(found["step"])
            if found["step"] == 3:
                shutil.rmtree(self.folder_of(3), ignore_errors=True)
            return load(self_, params, found)

        with unittest.mock.patch.object(_follow.Follower, "_load", removed):
            report = weights.update(params)
            self.assertEqual((report.version, calls), (2, [3, 2]))
            self.assert_same(self.states[2], params)
            cairn.torch.save(self.states[3], run, step=3)
            with self.assertRaisesRegex(cairn.NotFoundError, "has no complete version 3$"):
                weights.update(params, version=3)

    def test_a_version_that_is_replaced_meanwhile(self):
        """A trainer that was killed publishes the same version again, with other contents."""
        state = self.publish(1, {"w": noise((1000,))})
        weights, params = self.follow(), blank(state)
        load, calls = _follow.Follower._load, []

        def replaced(self_, params, found):
            calls.append(found["step"])
            if len(calls) in (1, 2, 4):
                self.publish(1, {"w": noise((1000,), seed=len(calls))})
            return load(self_, params, found)

        with unittest.mock.patch.object(_follow.Follower, "_load", replaced):
            report = weights.update(params)
            self.assertEqual((report.version, len(report.tried), calls), (1, 2, [1, 1, 1]))
            self.assert_same(self.states[1], params)
            report = weights.update(params, version=1)
            self.assertEqual((report.version, len(report.tried), len(calls)), (1, 1, 5))
            self.assert_same(self.states[1], params)

    def test_versions_that_the_trainer_removes_quickly(self):
        """While a version is read, the trainer publishes the next one and removes it."""
        run = cairn.Run(self.run_.path, alone=True)
        weights, params = self.follow(), {"w": torch.zeros(1000, device=DEVICE)}

        def publish(v):
            self.states[v] = {"w": noise((1000,), seed=v)}
            cairn.torch.save(self.states[v], run, step=v)

        publish(1)
        weights.update(params)
        publish(2)
        load, calls = _follow.Follower._load, []

        def overtaken(self_, params, found):
            calls.append(found["step"])
            if calls in ([2], [2, 3]):
                publish(found["step"] + 1)
                shutil.rmtree(self.folder_of(found["step"]))
            return load(self_, params, found)

        with unittest.mock.patch.object(_follow.Follower, "_load", overtaken):
            report = weights.update(params)
        self.assertEqual((report.version, calls), (4, [2, 3, 4]))
        self.assert_same(self.states[4], params)

    def test_versions_do_not_go_back(self):
        """If all newer versions are gone, an older one is not taken for the newest."""
        state = self.chain({"w": noise((1 << 20,), "uint8")}, (1, 2, 3))
        weights, params = self.follow(), blank(state)
        weights.update(params)
        shutil.rmtree(self.folder_of(3))
        self.assertEqual(weights.newest(), 2)
        with self.assertRaisesRegex(cairn.NotFoundError, r"no complete version 3 or newer: .* version=…\) goes back"):
            weights.update(params)
        self.assert_same(self.states[3], params)
        self.assertEqual(weights.update(params, version=2).from_version, 3)
        self.assert_same(self.states[2], params)

    def test_the_saver_process_is_killed(self):
        state = self.chain({"w": noise((1 << 20,), "uint8")}, (1, 2))
        weights, params = self.follow(), blank(state)
        weights.update(params, version=1)
        saver = cairn.torch._job.job().own()
        saver.process.kill()
        saver.process.wait()
        for _ in range(50):
            try:
                report = weights.update(params)
                break
            except cairn.SaverError:  # it has not noticed yet
                time.sleep(0.1)
        self.assertEqual((weights.version, report.full), (2, True))
        self.assert_same(self.states[2], params)

    def test_a_server_that_is_killed_comes_back(self):
        state = self.chain({"w": noise((1 << 16,), "uint8")}, (1,))
        program = ("import sys, torch, cairn.torch\n"
                   "weights, params = cairn.torch.follow(sys.argv[1]), {'w': torch.zeros(1 << 16, dtype=torch.uint8)}\n"
                   "while True:\n"
                   "    weights.wait()\n"
                   "    print(weights.update(params).version, int(params['w'].sum()), flush=True)\n")
        for v in 1, 2:
            if v > 1:
                state = self.chain(state, (v,))
            p = start(program, self.run_.path, stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(p.stdout.readline().split(), [str(v), str(int(self.states[v]["w"].sum()))])
            finally:
                p.kill()
                p.wait()
                p.stdout.close()


@unittest.skipIf(CUDA, "two ranks of nccl need two GPUs")
class Ranks(Versions):
    def test_rows_become_columns(self):
        spawn(2, trainer, self.folder)
        spawn(2, server, self.folder)

    def test_all_ranks_or_none(self):
        run = cairn.Run(self.run_.path, alone=True)
        for v in 1, 2, 3:
            cairn.torch.save({"a": noise((1 << 18,), "uint8", seed=v), "b": noise((1 << 18,), "uint8", seed=-v)}, run,
                             step=v)
        cairn.torch.close()
        spawn(2, one_rank_fails, self.folder)

    def test_ranks_with_different_arguments(self):
        run = cairn.Run(self.run_.path, alone=True)
        for v in 1, 2:
            cairn.torch.save({"w": noise((10,), seed=v)}, run, step=v)
        cairn.torch.close()
        os.symlink("weights", self.path("other"))
        os.mkdir(self.path("mount"))
        os.symlink("../weights", self.path("mount/weights"))
        spawn(2, different_arguments, self.folder)


SHAPE = (64, 96)


def weights_of(version):
    """Returns the weights of a version."""
    state = {"w": noise(SHAPE, "bfloat16", seed=1), "v": noise((50,), "float32", seed=2)}
    for v in range(version):
        state = changed(state, v)
    return state


def trainer(rank, folder):
    """Two ranks publish versions of rows."""
    join("gloo", folder, rank, 2)
    mesh = init_device_mesh(DEVICE, (2,))
    run = cairn.Run(os.path.join(folder, "weights"))
    for version in range(1, 6):
        state = weights_of(version)
        rows = DTensor.from_local(state["w"].chunk(2)[rank].contiguous(), mesh, [Shard(0)], run_check=False)
        v = DTensor.from_local(state["v"], mesh, [Replicate()], run_check=False)
        cairn.torch.async_save({"w": rows, "v": v}, run, step=version).result()
    dist.destroy_process_group()


def server(rank, folder):
    """Two ranks follow with columns."""
    join("gloo", os.path.join(folder, "weights"), rank, 2)
    mesh = init_device_mesh(DEVICE, (2,))
    local = torch.zeros(SHAPE[0], SHAPE[1] // 2, dtype=torch.bfloat16)
    params = {"w": DTensor.from_local(local, mesh, [Shard(1)], run_check=False), "v": torch.zeros(50)}
    weights = cairn.torch.follow(os.path.join(folder, "weights"))
    assert weights.wait(60) == 5
    for version in 1, 2, 4, None:
        report = weights.update(params, version=version)
        want = weights_of(version or 5)
        got = {"w": params["w"].to_local(), "v": params["v"]}
        if difference := differs({"w": want["w"].chunk(2, 1)[rank], "v": want["v"]}, got):
            raise AssertionError(f"version {report.version}: {difference}")
        assert report.elements == 64 * 48 + 50, report
    try:
        weights.wait(0.2)
    except TimeoutError:
        pass
    else:
        raise AssertionError("there is no newer version")
    dist.destroy_process_group()


def one_rank_fails(rank, folder):
    """A rank finds version 3 damaged, and both ranks take version 2. Then a rank's tensors do not fit."""
    join("gloo", folder, rank, 2)
    weights = cairn.torch.follow(os.path.join(folder, "weights"))
    name = "ab"[rank]
    params = {name: torch.zeros(1 << 18, dtype=torch.uint8)}
    weights.update(params, version=1)
    load = _follow.Follower._load

    def damaged(self, params, found):
        if rank == 1 and found["step"] == 3:
            raise cairn.CorruptError("on purpose", ("storage.corrupt",))
        return load(self, params, found)

    with unittest.mock.patch.object(_follow.Follower, "_load", damaged):
        report = weights.update(params)
    assert (report.version, report.from_version, len(report.tried)) == (2, 1, 2), report
    assert "on purpose" in report.tried[0], report
    if difference := differs(noise((1 << 18,), "uint8", seed=(2, -2)[rank]), params[name]):
        raise AssertionError(difference)
    wrong = {"x": torch.zeros(3)} if rank == 0 else params
    before = copy_of(params)
    try:
        weights.update(wrong, version=1)
    except cairn.MissingError:
        pass
    else:
        raise AssertionError("a rank has loaded a name that the version lacks")
    if weights.version != 2 or differs(before, params):
        raise AssertionError("a rank has changed its tensors although another could not")
    dist.destroy_process_group()


def different_arguments(rank, folder):
    """The ranks ask for different versions, and follow and publish to different runs."""
    join("gloo", folder, rank, 2)
    params = {"w": torch.zeros(10)}

    def refused(call, *texts):
        try:
            call()
        except cairn.OptionsError as e:
            assert all(text in str(e) for text in texts), e
        else:
            raise AssertionError(f"the ranks have called for {texts}")

    # The ranks have other paths to the run.
    weights = cairn.torch.follow(os.path.join(folder, ("weights", "mount/weights")[rank]))
    refused(lambda: weights.update(params, version=1 + rank), "version 1 of", "version 2 of")
    refused(lambda: weights.update(params, version=(1, None)[rank]), "version 1 of", "the newest version of")
    assert weights.version is None and not params["w"].count_nonzero()
    different = cairn.torch.follow(os.path.join(folder, ("weights", "other")[rank]))
    refused(lambda: different.update(params), "'weights'", "'other'")
    refused(lambda: different.wait(5), "'weights'", "'other'")
    assert weights.update(params, version=2).version == 2
    if difference := differs(noise((10,), seed=2), params["w"]):
        raise AssertionError(difference)
    refused(lambda: cairn.torch.publish(params, os.path.join(folder, f"run{rank}"), 3), "run0/", "run1/")
    for v in 3, 4:
        refused(lambda v=v: cairn.torch.publish(params, os.path.join(folder, "run"), v + rank), f"step {v}",
                f"step {v + 1}")
    assert cairn.torch.publish(params, os.path.join(folder, "run"), 6).result().step == 6
    assert not glob.glob(os.path.join(folder, "run[01]", "*"))
    cairn.torch.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
