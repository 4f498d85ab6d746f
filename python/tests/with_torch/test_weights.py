"""cairn.torch.weights, and loads with ranks that read for each other."""

import gc
import json
import os
import threading
import time
import unittest

import torch
import torch.distributed as dist

import cairn
import cairn.torch
from cairn import errors
from cairn.torch import _job
from device import DEVICE, Case, bits, join, noise, slow, spawn

FORMATS = {"native": {}, "hf": {}, "torchdcp": {}, "torch": {"file": "model.pt"}}


def model(layers=4, width=96):
    """Returns the weights of a model, with tied ones, one without elements and one without dimensions."""
    shapes = {"q": (width, width), "down": (width, 2 * width), "norm": (width,)}
    out = {f"model.layers.{i}.{kind}.weight": noise(shape, "bfloat16", "cpu", seed=100 * i + k)
           for i in range(layers) for k, (kind, shape) in enumerate(shapes.items())}
    out["model.embed.weight"] = noise((5 * width, width), "float32", "cpu", seed=7)
    out["none"] = torch.empty(0, 3)
    out["scale"] = torch.tensor(2.5)
    return out


class Weights(Case):
    def save(self, format="native", state=None):
        state = model() if state is None else state
        cairn.torch.save(state, self.path(format), format=format, format_options=FORMATS[format])
        return state

    def test_every_format(self):
        for format in FORMATS:
            with self.subTest(format):
                state = self.save(format)
                with cairn.torch.weights(self.path(format), DEVICE) as found:
                    got = dict(found)
                self.assert_same(dict(sorted(state.items())), {n: got[n].cpu() for n in sorted(got)})
                self.assertEqual({t.device.type for t in got.values()}, {DEVICE})
                self.assertEqual(found.report.bytes, sum(t.nbytes for t in state.values()))

    def test_order_of_the_files(self):
        # Names that are not in the order in which Hugging Face's files have them.
        state = {name: noise((64, 8), device="cpu", seed=i) for i, name in enumerate("zyxabc")}
        self.save("hf", state)
        with cairn.open(self.path("hf")) as c:
            order = sorted(state, key=lambda name: c.entry(name).get("order", 0))
        self.assertEqual([name for name, _ in cairn.torch.weights(self.path("hf"))], order)
        self.assertEqual(sorted(c.entry(name).get("order", 0) for name in state), list(range(6)))

    def test_names(self):
        state = self.save()
        path = self.path("native")

        def chosen(names):
            return sorted(name for name, _ in cairn.torch.weights(path, names=names))

        self.assertEqual(chosen("scale"), ["scale"])
        self.assertEqual(chosen("model.layers.1.*"), [n for n in sorted(state) if n.startswith("model.layers.1.")])
        self.assertEqual(chosen(["*.norm.weight", "scale"]), [n for n in sorted(state) if "norm" in n] + ["scale"])
        self.assertEqual(chosen(lambda name: name.endswith("q.weight")), [n for n in sorted(state) if ".q." in n])
        self.assertEqual(chosen([]), [])
        for names in ("model.layers.9.*", ["scale", "scales"]):
            with self.assertRaisesRegex(errors.MissingError, "scales|layers.9"):
                cairn.torch.weights(path, names=names)
        with self.assertRaisesRegex(errors.MissingError, "2 of the 3 names for weights are not in the checkpoint: "
                                                         "'x', 'y[*]'"):
            cairn.torch.weights(path, names=["scale", "x", "y*"])

    def test_slices(self):
        for format in FORMATS:
            state = self.save(format)
            for index in (slice(10, 20), (slice(None), slice(3, 9)), (..., slice(0, 96, 5)), (4, slice(2, 7))):
                with self.subTest(format=format, index=index):
                    found = dict(cairn.torch.weights(self.path(format), DEVICE, "*.down.weight",
                                                     lambda name, shape, index=index: index))
                    for name, t in found.items():
                        self.assertEqual(bits(t).tolist(), bits(state[name][index]).tolist())
        found = dict(cairn.torch.weights(self.path("native"), slices={"scale": None, "model.embed.weight": slice(2)}))
        self.assertEqual(tuple(found["model.embed.weight"].shape), (2, 96))
        with self.assertRaisesRegex(errors.MissingError, "'nothing', which .* does not have"):
            cairn.torch.weights(self.path("native"), slices={"nothing": None})
        with self.assertRaisesRegex(errors.MissingError, "'scale', which names does not choose"):
            cairn.torch.weights(self.path("native"), names="*.weight", slices={"scale": None})
        with self.assertRaisesRegex(IndexError, "the slice of 'scale'"):
            cairn.torch.weights(self.path("native"), slices={"scale": slice(2)})
        with self.assertRaisesRegex(IndexError, "negative step"):
            cairn.torch.weights(self.path("native"), slices={"model.embed.weight": slice(None, None, -1)})

    def test_tied_tensors_are_one(self):
        w = noise((30, 4), device="cpu")
        self.save("native", {"head": w, "a": noise((3,), device="cpu"), "tail": w})
        got = dict(cairn.torch.weights(self.path("native")))
        self.assertIs(got["head"], got["tail"])
        self.assert_same(w, got["head"])

    def test_recipe(self):
        state = self.save("native", {"up.weight": noise((8, 3), device="cpu", seed=1)})
        recipe = self.path("split.toml")
        with open(recipe, "w") as f:
            f.write("""
about = "A fused matrix and its two halves"
sides = ["fused", "split"]
[variables]
rows = "config.rows"
[[rule]]
fused = "up.weight [rows + rows, 3]"
split = ["left.weight [rows, 3]", "right.weight [rows, 3]"]
""")
        found = cairn.torch.weights(self.path("native"), recipe=recipe, variables={"rows": 4},
                                    slices={"right.weight": slice(1, 3)})
        self.assert_same({"left.weight": state["up.weight"][:4], "right.weight": state["up.weight"][5:7]}, dict(found))

    def test_a_small_window_and_a_slow_caller(self):
        state = self.save("native", {f"w{i}": noise((1 << 18,), "uint8", "cpu", seed=i) for i in range(12)})
        found = cairn.torch.weights(self.path("native"), window=600 << 10)
        got = {}
        for name, t in found:
            time.sleep(0.01)
            self.assertLessEqual(found._stream._ahead, 600 << 10)
            got[name] = t
        self.assert_same(dict(sorted(state.items())), dict(sorted(got.items())))

    def test_tensor_that_is_larger_than_window_and_memory(self):
        self.environment(CAIRN_ARENA_BYTES=str(4 << 20))
        state = self.save("native", {"a": noise((9 << 20,), "uint8", "cpu"), "b": noise((3,), device="cpu")})
        self.assert_same(state, dict(sorted(cairn.torch.weights(self.path("native"), window=1 << 20))))

    def test_damage(self):
        self.save("native", {f"w{i}": noise((1 << 20,), "uint8", "cpu", seed=i) for i in range(6)})
        data = max((os.path.join(d, f) for d, _, files in os.walk(self.path("native")) for f in files),
                   key=os.path.getsize)
        with open(data, "r+b") as f:
            f.seek(os.path.getsize(data) * 3 // 4)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        good = []
        with self.assertRaises(errors.CorruptError):
            for name, t in cairn.torch.weights(self.path("native"), window=1 << 20):
                good.append(bits(t).tolist() == bits(noise((1 << 20,), "uint8", "cpu", seed=int(name[1:]))).tolist())
        self.assertTrue(all(good))

    def test_early_end(self):
        self.save("native", {f"w{i}": noise((1 << 20,), "uint8", "cpu", seed=i) for i in range(20)})
        before = threading.active_count()
        arena = _job.job().arena
        for end in ("close", "with", "forget"):
            free = arena.largest()
            found = cairn.torch.weights(self.path("native"), window=3 << 20)
            next(found)
            if end == "close":
                found.close()
                self.assertEqual(list(found), [])
                found.close()
            elif end == "with":
                with found:
                    next(found)
            del found
            gc.collect()
            limit = time.monotonic() + 20
            while threading.active_count() > before and time.monotonic() < limit:
                time.sleep(0.01)
            self.assertEqual(threading.active_count(), before)
            self.assertEqual(arena.largest(), free)

    def test_options(self):
        self.save()
        with self.assertRaises(errors.OptionsError):
            cairn.torch.weights(self.path("native"), window=0)
        with self.assertRaises(errors.OptionsError):
            cairn.torch.weights(self.path("native"), share=True, alone=True)
        with self.assertRaises(errors.NotFoundError):
            cairn.torch.weights(self.path("nothing"))
        with self.assertRaises(errors.OptionsError):
            cairn.torch.weights(None)


# Ranks.


def part(kind, rank, size):
    """Returns the slices of a rank."""
    def index(name, shape):
        dim = {"rows": 0, "columns": 1}.get(kind, 9)
        if len(shape) <= dim or not shape[dim]:
            return None
        n = shape[dim] // size
        return (slice(None),) * dim + (slice(rank * n, (rank + 1) * n),)

    return index


def read(rank, size, folder, paths, state):
    """Reads all of the weights, some rows and some columns, and writes the bytes of all ranks to a file."""
    join("gloo", folder, rank, size)
    out = {}
    for format, path in paths.items():
        for kind in ("replicated", "rows", "columns"):
            index = part(kind, rank, size)
            found = cairn.torch.weights(path, slices=index, share=True)
            for name, t in found:
                want = index(name, tuple(state[name].shape))
                assert bits(t).equal(bits(state[name] if want is None else state[name][want])), (format, kind, name)
            said = [None] * size
            dist.all_gather_object(said, (found.report.bytes, found.report.bytes_read, found.report.bytes_received))
            out[f"{format} {kind}"] = list(zip(*said))
    if rank == 0:
        with open(os.path.join(folder, "result"), "w") as f:
            json.dump(out, f)


def fail(rank, folder, path, how):
    join("gloo", folder, rank, 4)
    try:
        with cairn.torch.weights(path, share=True, window=1 << 20,
                                 names="nothing" if how == "names" and rank == 2 else None) as found:
            for i, _ in enumerate(found):
                if how == "close" and rank == 2 and i == 3:
                    return
                if how == "raise" and rank == 2 and i == 3:
                    raise ValueError("a bug of rank 2")
        raise AssertionError(f"rank {rank} has read everything")
    except (errors.CairnError, ValueError) as e:
        if rank != 2:
            assert "rank 2" in str(e), e
            assert how != "close" or "rank 2: the trainer cancelled the load" in str(e), e
    finally:
        dist.barrier()
        if how != "names":  # the group can be used again
            assert len(list(cairn.torch.weights(path, share=True))) == 20


def load(rank, folder, path):
    join("gloo", folder, rank, 2)
    state = {"w": torch.zeros(1 << 20), "b": torch.zeros(3 if rank == 0 else 4)}
    try:
        cairn.torch.load(state, path, share=True)
        raise AssertionError("a state of another shape was loaded")
    except errors.MismatchError:
        pass
    state["b"] = torch.zeros(3)
    report = cairn.torch.load(state, path, share=True)
    assert torch.equal(state["w"], torch.full((1 << 20,), 2.0)), state
    read = [None, None]
    dist.all_gather_object(read, report.bytes_read)
    assert sum(read) < 1.5 * (4 << 20), read
    first = cairn.torch.weights(path, share=True)
    try:
        cairn.torch.weights(path, share=True)
        raise AssertionError("two shared loads at once")
    except errors.OptionsError as e:
        assert "another shared load" in str(e), e
    first.close()


class Ranks(Case):
    def test_each_byte_is_read_once(self):
        state = model(2, 1024) | {"wide": noise((512, 8192), "bfloat16", "cpu", seed=5)}
        paths = {format: self.path(format) for format in ("native", "hf")}
        for format, path in paths.items():
            cairn.torch.save(state, path, format=format)
        spawn(4, read, 4, self.folder, paths, state)
        with open(self.path("result")) as f:
            found = json.load(f)
        total = sum(t.nbytes for t in state.values())
        for what, (needed, got, received) in found.items():
            with self.subTest(what):
                times = 4 if "replicated" in what else 1
                self.assertAlmostEqual(sum(needed) / total, times, delta=0.01)
                # Rows are rounded up to tiles of about a mebibyte, which is much for tensors of a few.
                self.assertLess(sum(got), (1.4 if what == "native rows" else 1.1) * total)
                self.assertLess(max(got), 0.6 * total)
                self.assertGreaterEqual(sum(got) + sum(received), sum(needed))

    @slow
    def test_one_rank_fails(self):
        cairn.torch.save({f"w{i}": noise((1 << 19,), "uint8", "cpu", seed=i) for i in range(20)}, self.path())
        for how in ("names", "close", "raise"):
            with self.subTest(how):
                os.mkdir(self.path(how))
                spawn(4, fail, self.path(how), self.path(), how)

    def test_load(self):
        cairn.torch.save({"w": torch.full((1 << 20,), 2.0), "b": torch.ones(3)}, self.path())
        spawn(2, load, self.folder, self.path())


if __name__ == "__main__":
    unittest.main()
