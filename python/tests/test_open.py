"""Reading checkpoints: every format, and errors."""

import ast
import gc
import hashlib
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import cairn
from cairn import _address, _saver as saver
from cairn.checkpoint import element_size
from saving import checkpoint, join, save

try:
    import numpy
except ImportError:
    numpy = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "testdata" / "fixtures"


class Fixtures(unittest.TestCase):
    """Every checkpoint of the fixtures has the bytes and the values that its writer listed."""

    def test_fixtures(self):
        cases = sorted(FIXTURES.glob("*/*/expected.json"))
        self.assertGreater(len(cases), 30)
        formats = set()
        for expected in cases:
            for place in (expected.parent / "ckpt", expected.parent / "consolidated"):
                if not place.is_dir():
                    continue
                with self.subTest(place=str(place.relative_to(FIXTURES))), cairn.open(place, framework="memory") as c:
                    formats.add(c.format.split()[0])
                    self.compare(c, json.loads(expected.read_text())["items"])
        self.assertGreaterEqual(len(formats), 4, formats)

    def compare(self, c, items):
        self.assertEqual(c.missing, [])
        tensors = {n: i for n, i in items.items() if i["kind"] == "tensor"}
        self.assertEqual(c.shapes(), {n: tuple(i["shape"]) for n, i in tensors.items()})
        loaded = c.load()
        self.assertEqual(list(loaded), list(c))
        for n, i in tensors.items():
            self.assertEqual((c[n].dtype, c[n].nbytes), (i["dtype"], i["nbytes"]))
            data = bytes(loaded[n].cast("B"))
            self.assertEqual(hashlib.sha256(data).hexdigest(), i["sha256"], n)
            if not i["nbytes"]:
                self.assertEqual(bytes(c[n][...].cast("B")), b"")
            elif i["shape"]:
                # Only some rows of the tensor.
                lo, hi = i["shape"][0] // 3, i["shape"][0] // 3 + 1
                row = element_size(i["dtype"]) * math.prod(i["shape"][1:])
                self.assertEqual(bytes(c[n][lo:hi].cast("B")), data[lo * row:hi * row])
        for n, i in items.items():
            if i["kind"] == "object":
                self.assertIn(n, c)
                if len(i["repr"]) == 400:  # and perhaps more
                    self.assertEqual(repr(c[n])[:400], i["repr"])
                elif i["type"] in ("int", "str", "bool", "list", "tuple", "bytes", "NoneType", "set"):
                    self.assertEqual(c[n], ast.literal_eval(i["repr"]))
                elif i["type"] == "float" or i["type"] == "datetime":
                    self.assertEqual(repr(c[n]), i["repr"])


class Versions(unittest.TestCase):
    """Delta versions of slime: the chains of testdata/slime, and one that is saved here."""

    compare = Fixtures.compare

    def test_chains(self):
        cases = sorted((ROOT / "testdata" / "slime").glob("*/published/weight_v*"))
        self.assertGreater(len(cases), 20)
        for place in cases:
            chain = place.parent.parent
            full = "delta_encoding" not in (place / "model.safetensors.index.json").read_text()
            options = {} if full else {"format": "slime", "format_options": {"base": str(chain / "base")}}
            with self.subTest(place=str(place)), cairn.open(place, framework="memory", **options) as c:
                self.compare(c, json.loads((chain / "expected" / f"{place.name}.json").read_text())["items"])

    def test_without_a_base(self):
        chain = ROOT / "testdata" / "slime" / "xor-blake3"
        with self.assertRaisesRegex(cairn.CairnError, "weight_v000001 changes version 0"):
            cairn.open(chain / "published" / "weight_v000003", framework="memory")
        self.assertEqual(cairn.latest(chain / "published"), str(chain / "published" / "weight_v000003"))

    def test_save(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        folder = pathlib.Path(folder.name)
        s = saver.Saver(ceiling=4 << 20)
        self.addCleanup(s.close)
        join(s)
        save(s, folder / "base", {"a": ("int8", (3,), b"abc"), "b": ("int8", (1,), b"x")}, format="hf")
        options = {"base": str(folder / "base"), "encoding": "overwrite", "checksum": "blake3"}
        place = folder / "published" / "weight_v000001"
        save(s, place, {"a": ("int8", (3,), b"aXc"), "b": ("int8", (1,), b"x")}, format="slime", format_options=options)
        with cairn.open(place, framework="memory", format="slime", format_options={"base": options["base"]}) as c:
            self.assertEqual({n: bytes(v.cast("B")) for n, v in c.load().items()}, {"a": b"aXc", "b": b"x"})
            self.assertEqual((c.format, c.step), ("slime delta", 1))


class Numbers(unittest.TestCase):
    """Adapters merged into their base, and quantised weights as numbers."""

    def assert_same(self, path, options, want):
        with cairn.open(path, framework="memory", **options) as c, \
                cairn.open(want, framework="memory") as w:
            self.assertEqual(c.shapes(), w.shapes())
            loaded = w.load()
            for name, data in c.load().items():
                self.assertEqual(c[name].dtype, w[name].dtype, name)
                self.assertEqual(bytes(data.cast("B")), bytes(loaded[name].cast("B")), name)

    def test_adapters(self):
        cases = sorted((ROOT / "storage" / "adapter" / "testdata").glob("*/input"))
        self.assertGreater(len(cases), 12)
        for place in cases:
            with self.subTest(place=place.parent.name):
                options = {"format_options": {"base": str(place / "base")}}
                self.assert_same(place / "adapter", options, place.parent / "expected" / "merged.safetensors")

    def test_slice_of_an_adapter(self):
        place = ROOT / "storage" / "adapter" / "testdata" / "plain_bf16"
        name = "model.layers.0.self_attn.q_proj.weight"
        options = {"base": str(place / "input" / "base")}
        with cairn.open(place / "input" / "adapter", framework="memory", format_options=options) as c, \
                cairn.open(place / "expected" / "merged.safetensors", framework="memory") as w:
            self.assertEqual(bytes(c[name][3:7].cast("B")), bytes(w[name][3:7].cast("B")))

    def test_quantised(self):
        cases = sorted((ROOT / "storage" / "hf" / "testdata" / "quant").glob("*/input"))
        self.assertGreater(len(cases), 12)
        for place in cases:
            with self.subTest(place=place.parent.name):
                options = {"format": "hf", "format_options": {"dequantize": True}}
                self.assert_same(place, options, place.parent / "expected")

    def test_convert(self):
        adapters, quant = ROOT / "storage" / "adapter" / "testdata", ROOT / "storage" / "hf" / "testdata" / "quant"
        with tempfile.TemporaryDirectory() as folder:
            for place, src, options in (
                (adapters / "dora_bf16", "input/base", {"adapter": adapters / "dora_bf16" / "input" / "adapter"}),
                (quant / "ct_nvfp4", "input", {"dequantize": True}),
            ):
                with self.subTest(place=place.name):
                    to = pathlib.Path(folder) / place.name
                    cairn.convert(place / src, to, format="hf", **options)
                    want = "expected/merged.safetensors" if place.parent == adapters else "expected"
                    self.assert_same(to, {}, place / want)

    def test_adapter_of_another_base(self):
        place = ROOT / "storage" / "adapter" / "testdata"
        with self.assertRaisesRegex(cairn.CairnError, 'the base has no "transformer.h.0.attn.c_attn.weight"'):
            cairn.open(place / "gpt2_fan_in_fan_out" / "input" / "adapter", framework="memory",
                       format_options={"base": str(place / "plain_f32" / "input" / "base")})


class Native(unittest.TestCase):
    def test_first_version_of_the_format(self):
        with cairn.open(ROOT / "storage" / "native" / "testdata" / "compat" / "v1", framework="memory") as c:
            self.assertEqual((c.format, len(c)), ("cairn 1", 10))
            self.assertEqual(c["rows"].shape, (9, 7))
            self.assertEqual(c["rows"][3:5, 2:4].tolist(), [r[2:4] for r in c["rows"][:].tolist()[3:5]])
            self.assertEqual(c["__cairn__/0"].dtype, "int32")
            self.assertEqual(type(c["big"]), bytes)
            self.assertGreater(len(c["big"]), 29_000)
            self.assertIsInstance(c["small"], int)


class Open(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.place = cls.folder / "c"
        cls.elements = [[float(10 * i + j) for j in range(6)] for i in range(8)]
        data = b"".join(struct.pack("<6f", *row) for row in cls.elements)
        checkpoint(cls.place, {"model.w": ("float32", (8, 6), data),
                               "model.half": ("bfloat16", (2, 2), bytes(range(8))),
                               "model.none": ("int64", (0, 3), b""), "other": ("bool", (3,), b"\x01\x00\x01")},
                   {"step": 12, "long": "x" * 200_000, "raw": b"\x00\xff"}, step=12, tags={"run": "7"}, writer="a test")

    def open(self, **options):
        c = cairn.open(self.place, **{"framework": "memory", **options})
        self.addCleanup(c.close)
        return c

    def test_what_it_says_of_itself(self):
        c = self.open()
        self.assertEqual((c.step, c.tags, c.writer, c.world_size, c.format), (12, {"run": "7"}, "a test", 1, "cairn 1"))
        self.assertEqual(sorted(c.keys()), ["long", "model.half", "model.none", "model.w", "other", "raw", "step"])
        self.assertEqual(len(c), 7)
        self.assertIn("step", c)
        self.assertNotIn("nothing", c)
        self.assertEqual(c.shapes(), {"model.w": (8, 6), "model.half": (2, 2), "model.none": (0, 3), "other": (3,)})
        self.assertEqual(repr(c), f"<{c.path}: cairn 1, 7 names>")
        self.assertEqual((len(c["model.w"]), c["model.w"].nbytes, repr(c["model.w"])),
                         (8, 192, "<model.w: float32[8, 6]>"))

    def test_values(self):
        c = self.open()
        self.assertEqual((c["step"], c["long"], c["raw"]), (12, "x" * 200_000, b"\x00\xff"))
        self.assertEqual(c.get("nothing", 3), 3)

    def test_slices_as_memory(self):
        c, e = self.open(), self.elements
        w = c["model.w"]
        self.assertEqual(w[:].tolist(), e)
        self.assertEqual(w[2:4, 1:3].tolist(), [r[1:3] for r in e[2:4]])
        self.assertEqual(w[-1].tolist(), e[-1])
        self.assertEqual(w[..., 2].tolist(), [r[2] for r in e])
        self.assertEqual(w[3, 4].tolist(), e[3][4])
        self.assertEqual(w[5:5].nbytes, 0)
        self.assertEqual(c["other"][:].tolist(), [True, False, True])
        self.assertEqual(bytes(c["model.half"][1:]), bytes([4, 5, 6, 7]))
        self.assertEqual(bytes(c["model.half"][:, 1]), bytes([2, 3, 6, 7]))
        with self.assertRaises(TypeError):
            w[::2]
        with self.assertRaises(IndexError):
            w[8]

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_slices_as_numpy(self):
        c, e = self.open(framework=None), numpy.array(self.elements, "float32")
        w = c["model.w"]
        for index in (slice(None), slice(1, 7, 2), (slice(None, None, -1), 2), (..., slice(4, None, -2)), (3, 4), 0,
                      slice(5, 5)):
            with self.subTest(index=index):
                numpy.testing.assert_array_equal(w[index], e[index])
                self.assertEqual(w[index].dtype, e.dtype)
        numpy.testing.assert_array_equal(w.numpy(), e)
        self.assertEqual(c["model.none"].numpy().shape, (0, 3))
        with self.assertRaises(cairn.CastError):
            c["model.half"].numpy()

    def test_load(self):
        c = self.open()
        got = c.load("model.")
        self.assertEqual(sorted(got), ["model.half", "model.none", "model.w"])
        self.assertEqual(got["model.w"].tolist(), self.elements)
        self.assertEqual(len(c.load()), 7)
        self.assertEqual(sorted(c.load("model", strip=True)), ["half", "none", "w"])
        with self.assertRaisesRegex(cairn.MissingError, "'modle.'; the nearest names are 'model.'"):
            c.load("modle.")

    def test_names_that_are_missing(self):
        c = self.open()
        for read in (lambda: c["nothing"], lambda: c.entry("nothing"), lambda: c.read([("nothing", None)])):
            with self.assertRaisesRegex(cairn.MissingError, "nothing"):
                read()
        with self.assertRaises(cairn.MismatchError):
            c.read([("step", None)])

    def test_a_closed_checkpoint(self):
        with self.open() as c:
            w = c["model.w"]
        for read in (lambda: w[:], lambda: c["step"], lambda: c.load(), lambda: c["long"]):
            with self.assertRaisesRegex(ValueError, "closed"):
                read()

    def test_no_checkpoint(self):
        (self.folder / "empty").mkdir(exist_ok=True)
        for place in (self.folder / "empty", self.folder / "nothing"):
            with self.subTest(place=place), self.assertRaises(cairn.NotFoundError):
                cairn.open(place)
        with self.assertRaisesRegex(FileNotFoundError, "nothing does not exist"):
            cairn.open(str(self.folder / "nothing"))

    def test_the_folder_of_a_run_is_closed(self):
        run = self.folder / "run-of-others"
        for i in range(3):
            (run / f"other-{i}").mkdir(parents=True)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with self.assertRaisesRegex(cairn.NotFoundError, "cairn.latest"):
                cairn.open(run)
            gc.collect()
        self.assertEqual([str(w.message) for w in seen], [])

    def test_values_are_at_hand(self):
        code = "import cairn, sys; assert 'cairn.values' not in sys.modules; cairn.values.Object('m', 'n')"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_options_that_do_not_exist(self):
        with self.assertRaises(cairn.OptionsError):
            cairn.open(self.place, framework="jax")
        with self.assertRaises(cairn.OptionsError):
            cairn.open(self.place, format="other")

    def test_a_damaged_file(self):
        place = self.folder / "damaged"
        shutil.copytree(self.place, place)
        for f in place.glob("*.safetensors"):
            data = bytearray(f.read_bytes())
            at = data.find(struct.pack("<6f", *self.elements[7]))
            if at >= 0:
                data[at] ^= 1
                f.write_bytes(data)
                break
        else:
            self.fail("the elements are in no file")
        c = cairn.open(place, framework="memory")
        with self.assertRaises(cairn.CorruptError):
            c["model.w"][7]
        with self.assertRaises(cairn.CorruptError):
            c.load()
        self.assertEqual(c["step"], 12)

    def test_a_file_of_names_that_are_not_known(self):
        place = self.folder / "ranked"
        shutil.copytree(FIXTURES / "torch_checkpointing" / "torch-sync-twice-2-1" / "ckpt", place)
        os.truncate(place / "fsdp_model_0.pt", 300)
        with cairn.open(place, framework="memory") as c:
            self.assertEqual(c.missing, ["fsdp_model.*"])
            for prefix in ("", "fsdp_model", "fsdp_model.layers", "fs"):
                with self.subTest(prefix=prefix), self.assertRaisesRegex(cairn.CorruptError, "fsdp_model"):
                    c.load(prefix)
            self.assertEqual(list(c.load("step")), ["step"])

    def test_a_damaged_record(self):
        place = self.folder / "record"
        shutil.copytree(self.place, place)
        (place / "cairn.json").write_text("{")
        with self.assertRaises(cairn.CorruptError):
            cairn.open(place)

    def test_a_file_that_is_gone(self):
        place = self.folder / "gone"
        shutil.copytree(self.place, place)
        for f in place.glob("*.safetensors"):
            f.unlink()
        with self.assertRaises(cairn.CorruptError):
            cairn.open(place, framework="memory")["model.w"][:]

    def test_paths(self):
        for path in (str(self.place), self.place, str(self.place).encode(), self.place.as_uri()):
            with self.subTest(path=path):
                self.assertEqual(cairn.open(path)["step"], 12)
        # Two paths that are not UTF-8 would become the same one.
        for path in ("gopher://user:hush@bucket/c?key=hush", pathlib.Path("s3://user:hush@bucket/c?key=hush"),
                     "file://host/c", "file:///c?x=1", bytes(self.place) + b"\xff", str(self.place) + "\udcff"):
            with self.subTest(path=path), self.assertRaises(cairn.OptionsError) as raised:
                cairn.open(path)
            self.assertNotIn("hush", str(raised.exception))

    def test_another_working_directory(self):
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.folder)
        c = cairn.open(self.place.name, framework="memory")
        os.chdir("/")
        self.assertEqual(c["model.w"][1, 2].tolist(), 12.0)
        self.assertEqual(c["long"], "x" * 200_000)

    def test_a_checkpoint_that_is_replaced(self):
        place = self.folder / "replaced"
        checkpoint(place, {"x": ("int8", (3,), b"abc")}, {"step": 1})
        c = cairn.open(place, framework="memory")
        self.assertEqual(bytes(c["x"][:2]), b"ab")
        checkpoint(place, {"x": ("int8", (3,), b"xyz")}, {"step": 2})
        with self.assertRaisesRegex(cairn.ChangedError, "replaced"):
            c["x"][2:]
        self.assertEqual(bytes(cairn.open(place, framework="memory")["x"][2:]), b"z")


@unittest.skipUnless(sys.platform == "linux", "only Linux has memfd_create")
class WithoutMemfdCreate(unittest.TestCase):
    """Pythons of conda and uv may lack os.memfd_create."""

    def test_open(self):
        tearDownModule()
        self.addCleanup(tearDownModule)
        place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, place)
        (pathlib.Path(place) / "model.safetensors").write_bytes(safetensors({"x": b"abc"}))
        with unittest.mock.patch.object(os, "memfd_create"):
            del os.memfd_create
            with cairn.open(place, framework="memory") as c:
                self.assertEqual(bytes(c["x"][:]), b"abc")


@unittest.skipUnless("CAIRN_PORTABLE" in os.environ, "the Go test builds the program for systems without memory files")
class WithoutMemoryFiles(Fixtures):
    """The same on a system without memory files, such as macOS."""

    def setUp(self):
        tearDownModule()
        self.addCleanup(tearDownModule)
        patches = [unittest.mock.patch.dict(os.environ, CAIRN_BINARY=os.environ["CAIRN_PORTABLE"]),
                   unittest.mock.patch("cairn._arena.memory_file", return_value=None)]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def test_large_tensors(self):
        place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, place)
        data = os.urandom(3 << 20)
        (pathlib.Path(place) / "model.safetensors").write_bytes(safetensors({"x": data, "y": data[::-1]}))
        with cairn.open(place, framework="memory") as c:
            for _ in range(2):  # the memory is used again
                got = c.load()
                self.assertEqual((bytes(got["x"]), bytes(got["y"])), (data, data[::-1]))
        self.assertFalse(saver.shared().arena._in_memory)


def safetensors(tensors):
    """Returns a safetensors file of bytes."""
    head, at = {}, 0
    for name, data in tensors.items():
        head[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def tearDownModule():
    if saver._shared is not None:
        saver._shared.close()
        saver._shared = None


class Schemes(unittest.TestCase):
    def test_the_package_knows_the_schemes_of_the_program(self):
        said = subprocess.run([saver.binary(), "ls", "gopher://x"], capture_output=True, text=True, timeout=60).stderr
        known = said.strip().rpartition("knows the schemes ")[2].split(", ")
        self.assertIn("file", known)
        self.assertLessEqual(set(known), set(_address.SCHEMES))  # a program without cloud storage knows fewer


if __name__ == "__main__":
    unittest.main()
