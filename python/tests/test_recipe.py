"""Checkpoints in another form: open and convert through recipes of cairn and of a file."""

import functools
import itertools
import json
import math
import os
import pathlib
import random
import struct
import tempfile
import unittest

import cairn
from cairn import _saver as saver

SPLIT = """\
about = "A fused matrix and its two halves"
sides = ["fused", "split"]

[variables]
rows = "config.rows"

[[rule]]
fused = "up.weight [rows + rows, 3]"
split = ["left.weight [rows, 3]", "right.weight [rows, 3]"]

[[rule]]
fused = "norm"
split = "scale"
"""


def safetensors(path, tensors):
    """Writes tensors, {name: (shape, floats)}, as float32."""
    header, data = {}, b""
    for name, (shape, floats) in tensors.items():
        raw = struct.pack(f"<{len(floats)}f", *floats)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def flat(c, name):
    """Returns all elements of a tensor."""
    return list(c[name][:].cast("B").cast("f"))


def tearDownModule():
    if saver._shared is not None:
        saver._shared.close()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.src = self.folder / "src"
        self.src.mkdir()

    def open(self, path, **options):
        c = cairn.open(path, framework="memory", **options)
        self.addCleanup(c.close)
        return c


class OwnRecipe(Case):
    """A recipe that a user has written."""

    def setUp(self):
        super().setUp()
        self.up = [float(i) for i in range(24)]
        safetensors(self.src / "model.safetensors", {"up.weight": ([8, 3], self.up), "norm": ([2], [1.5, 2.5])})
        self.recipe = self.folder / "split.toml"
        self.recipe.write_text(SPLIT)

    def test_open(self):
        (self.src / "config.json").write_text('{"rows": 4}')
        (self.folder / "config.json").write_text('{"rows": 4}')
        for options in ({}, {"config": {"rows": 4}}, {"config": self.folder},
                        {"config": str(self.folder / "config.json")}, {"variables": {"rows": 4}},
                        {"variables": {"rows": "4"}, "config": {"rows": 5}}):
            with self.subTest(options=options):
                c = self.open(self.src, recipe=self.recipe, **options)
                self.assertEqual(c.shapes(), {"left.weight": (4, 3), "right.weight": (4, 3), "scale": (2,)})
                self.assertEqual(c["right.weight"][1:3, 1:].tolist(), [[16.0, 17.0], [19.0, 20.0]])
                self.assertEqual({n: bytes(t.cast("B")) for n, t in c.load("left").items()},
                                 {"left.weight": struct.pack("<12f", *self.up[:12])})

    def test_backwards(self):
        place = self.folder / "split"
        report = cairn.convert(self.src, place, self.recipe, format="native", rows=4)
        self.assertEqual((report.format, report.tensors, report.values, report.bytes, report.skipped),
                         ("native", 3, 0, 104, ()))
        self.assertEqual(list(self.open(place)), ["left.weight", "right.weight", "scale"])
        c = self.open(place, recipe=self.recipe, reverse=True, variables={"rows": 4})
        self.assertEqual(c.shapes(), {"norm": (2,), "up.weight": (8, 3)})
        self.assertEqual(flat(c, "up.weight"), self.up)
        again = self.folder / "again.safetensors"
        self.assertEqual(cairn.convert(place, again, self.recipe, reverse=True, config={"rows": 4}).format, "hf")
        self.assertEqual(flat(self.open(again), "up.weight"), self.up)

    def test_a_relative_path_of_a_recipe(self):
        self.addCleanup(os.chdir, os.getcwd())
        self.open(self.src)  # the saver process is there, with its own working directory
        os.chdir(self.folder)
        c = self.open("src", recipe="split.toml", variables={"rows": 4})
        os.chdir("/")
        self.assertEqual(flat(c, "left.weight"), self.up[:12])
        os.chdir(self.folder)
        cairn.convert("src", "dst", "split.toml", rows=4, format="hf")
        self.assertEqual(list(self.open("dst")), ["left.weight", "right.weight", "scale"])

    def test_what_is_wrong_with_a_recipe(self):
        broken = self.folder / "broken.toml"
        broken.write_text(SPLIT + "\n[[rule]]\nfused = 3\n")
        partial = self.folder / "partial.toml"
        partial.write_text(SPLIT[:SPLIT.rindex("[[rule]]")])
        fine = {"recipe": self.recipe}
        for error, text, options in (
            (cairn.OptionsError, "unknown recipe", {"recipe": self.folder / "nothing.toml"}),
            (cairn.OptionsError, "unknown recipe.*nearest are hf-to-titan/llama.*docs/recipes.md",
             {"recipe": "hf-to-titan/lama"}),
            (cairn.OptionsError, "family", {"recipe": "auto"}),
            (cairn.OptionsError, "broken.toml.*line", {"recipe": broken}),
            (cairn.OptionsError, "no variable colour; it has .*rows", {**fine, "variables": {"rows": 4, "colour": 1}}),
            (cairn.OptionsError, "the variable rows.*nan", {**fine, "variables": {"rows": float("nan")}}),
            (cairn.OptionsError, "JSON", {**fine, "config": {(1, 2): 3}}),
            (cairn.MismatchError, "up.weight", {**fine, "variables": {"rows": 5}}),
            (cairn.MismatchError, "norm", {"recipe": partial, "variables": {"rows": 4}}),
            (FileNotFoundError, "nowhere", {**fine, "config": "/nowhere/config.json"}),
        ):
            with self.subTest(text=text):
                with self.assertRaisesRegex(error, text) as opened:
                    cairn.open(self.src, **options)
                variables = options.pop("variables", {})
                place = self.folder / "never"
                with self.assertRaisesRegex(error, text) as converted:
                    cairn.convert(self.src, place, **options, format="native", **variables)
                self.assertEqual(type(opened.exception), type(converted.exception))
                self.assertEqual(opened.exception.codes, converted.exception.codes)
                self.assertFalse(place.exists())

    def test_options_of_a_recipe_need_one(self):
        for options in ({"config": {}}, {"reverse": True}, {"variables": {"rows": 4}}):
            with self.subTest(options=options), self.assertRaisesRegex(cairn.OptionsError, "name it"):
                cairn.open(self.src, **options)
        with self.assertRaisesRegex(cairn.OptionsError, "name it"):
            cairn.convert(self.src, self.folder / "dst", format="native", over_write=True)

    def test_configurations_of_transformers(self):
        """They may have objects and infinities, which JSON lacks, where no recipe looks."""
        c = self.open(self.src, recipe=self.recipe,
                      config={"rows": 4, "dtype": object(), "limit": float("inf"), "id2label": {0: "a"}})
        self.assertEqual(len(c), 3)

    def test_convert_without_a_recipe(self):
        place = self.folder / "plain.safetensors"
        report = cairn.convert(self.src, place, dtype="bfloat16")
        self.assertEqual((report.format, report.tensors, report.bytes, report.files), ("hf", 2, 52, 1))
        self.assertEqual(self.open(place)["norm"].dtype, "bfloat16")
        with self.assertRaises(cairn.ExistsError):
            cairn.convert(self.src, place)
        cairn.convert(self.src, place, overwrite=True)
        self.assertEqual(self.open(place)["norm"].dtype, "float32")
        with self.assertRaises(cairn.OptionsError):
            cairn.convert(self.src, self.folder / "x", format="zip")
        with self.assertRaises(cairn.NotFoundError):
            cairn.convert(self.folder / "nothing", self.folder / "x", format="native")

    def test_a_recipe_that_the_contents_contradict(self):
        recipe = self.folder / "tied.toml"
        recipe.write_text('about = "A tied tensor"\nsides = ["two", "one"]\n[[rule]]\ntie = true\n'
                          'two = ["a", "b"]\none = "x"\n')
        for b, error in (([1.0, 2.0], None), ([1.0, 3.0], "copies|differ")):
            safetensors(self.src / "model.safetensors", {"a": ([2], [1.0, 2.0]), "b": ([2], b)})
            with self.subTest(b=b):
                if error is None:
                    self.assertEqual(flat(self.open(self.src, recipe=recipe), "x"), [1.0, 2.0])
                    continue
                with self.assertRaisesRegex(cairn.MismatchError, error) as raised:
                    cairn.open(self.src, recipe=recipe)
                self.assertIn("recipe.check", raised.exception.codes)


def e4m3(byte):
    """Returns the number that a byte of float8_e4m3fn stands for."""
    sign, exponent, fraction = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, (byte & 7) / 8
    return sign * (fraction * 2.0**-6 if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - 7))


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def quantized(rows, block):
    """Quantises a matrix by blocks, as docs/recipes.md defines it. Returns lists of bytes and of scales."""
    numbers = [e4m3(b) for b in range(0x7f)]
    stored = [[0] * len(rows[0]) for _ in rows]
    scales = []
    for top in range(0, len(rows), block[0]):
        scales.append([])
        for left in range(0, len(rows[0]), block[1]):
            places = [(i, j) for i in range(top, min(top + block[0], len(rows)))
                      for j in range(left, min(left + block[1], len(rows[0])))]
            scale = float32(max(abs(rows[i][j]) for i, j in places) / 448) or 1.0
            scales[-1].append(scale)
            for i, j in places:
                quotient = min(abs(float32(rows[i][j] / scale)), 448.0)
                nearest = min(range(0x7f), key=lambda b: (abs(numbers[b] - quotient), b & 1))  # ties to even
                stored[i][j] = nearest | (0x80 if math.copysign(1, rows[i][j]) < 0 else 0)
    return stored, scales


class Quantized(Case):
    """Weights in fp8 with a scale for each block."""

    RECIPE = """\
sides = ["trainer", "server"]
[[rule]]
trainer = ["layers.{i}.gate [ffn, hidden]", "layers.{i}.up [ffn, hidden]"]
server = "model.{i}.gate_up [ffn + ffn, hidden]"
cast = { trainer = "float32" }
quantize = { server = { dtype = "float8_e4m3fn", block = [4, 5] } }
"""

    def test_open(self):
        numbers = random.Random(7)
        gate, up = ([[float32(numbers.gauss(0, 0.02)) for _ in range(12)] for _ in range(7)] for _ in range(2))
        up[6] = [0.0] * 12
        safetensors(self.src / "model.safetensors", {
            "layers.0.gate": ([7, 12], list(itertools.chain(*gate))),
            "layers.0.up": ([7, 12], list(itertools.chain(*up)))})
        recipe = self.folder / "fp8.toml"
        recipe.write_text(self.RECIPE)
        c = self.open(self.src, recipe=recipe)
        stored, scales = quantized(gate + up, (4, 5))
        self.assertEqual(c.shapes(), {"model.0.gate_up": (14, 12), "model.0.gate_up_scale_inv": (4, 3)})
        self.assertEqual(c["model.0.gate_up"].dtype, "float8_e4m3fn")
        self.assertEqual(bytes(c["model.0.gate_up"][:].cast("B")), bytes(itertools.chain(*stored)))
        self.assertEqual(c["model.0.gate_up_scale_inv"][:].tolist(), scales)
        self.assertEqual(bytes(c["model.0.gate_up"][5:11, 3:4].cast("B")), bytes(row[3] for row in stored[5:11]))
        self.assertEqual(c["model.0.gate_up_scale_inv"][1:3, 2:].tolist(), [row[2:] for row in scales[1:3]])

        place = self.folder / "fp8"
        cairn.convert(self.src, place, recipe, format="hf")
        back = self.open(place, recipe=recipe, reverse=True)
        self.assertEqual(back["layers.0.up"][2:5, 1:].tolist(), [
            [float32(e4m3(stored[i][j]) * scales[i // 4][j // 5]) for j in range(1, 12)] for i in range(9, 12)])

    def test_not_a_number(self):
        safetensors(self.src / "model.safetensors", {
            "layers.0.gate": ([1, 2], [1.0, float("nan")]), "layers.0.up": ([1, 2], [1.0, 2.0])})
        recipe = self.folder / "fp8.toml"
        recipe.write_text(self.RECIPE)
        c = self.open(self.src, recipe=recipe)
        with self.assertRaisesRegex(cairn.MismatchError, r"element at \[0 1\] is infinite or NaN") as raised:
            c["model.0.gate_up"][:]
        self.assertIn("recipe.check", raised.exception.codes)


class ShippedRecipe(Case):
    """A small Qwen3 of Hugging Face in the form of torchtitan."""

    CONFIG = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2,
              "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 6, "tie_word_embeddings": False}

    def setUp(self):
        super().setUp()
        shapes = {"model.embed_tokens.weight": [6, 4], "lm_head.weight": [6, 4], "model.norm.weight": [4]}
        for i in range(2):
            layer = f"model.layers.{i}."
            shapes |= {layer + "input_layernorm.weight": [4], layer + "post_attention_layernorm.weight": [4],
                       layer + "self_attn.q_proj.weight": [4, 4], layer + "self_attn.k_proj.weight": [2, 4],
                       layer + "self_attn.v_proj.weight": [2, 4], layer + "self_attn.o_proj.weight": [4, 4],
                       layer + "self_attn.q_norm.weight": [2], layer + "self_attn.k_norm.weight": [2],
                       layer + "mlp.gate_proj.weight": [5, 4], layer + "mlp.up_proj.weight": [5, 4],
                       layer + "mlp.down_proj.weight": [4, 5]}
        chance = random.Random(1)
        self.tensors = {}
        for name, shape in shapes.items():
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            self.tensors[name] = (shape, [float(chance.randrange(1000)) for _ in range(count)])
        safetensors(self.src / "model.safetensors", self.tensors)
        (self.src / "config.json").write_text(json.dumps(self.CONFIG))

    def test_open(self):
        for recipe in ("hf-to-titan/qwen3", "hf-to-titan", "to-titan", "to-titan/qwen3"):
            with self.subTest(recipe=recipe):
                c = self.open(self.src, recipe=recipe)
                self.assertEqual(len(c), len(self.tensors))
                self.assertEqual(flat(c, "layers.1.feed_forward.w2.weight"),
                                 self.tensors["model.layers.1.mlp.down_proj.weight"][1])
                self.assertEqual(c["tok_embeddings.weight"][2].tolist(),
                                 self.tensors["model.embed_tokens.weight"][1][8:12])

    def test_there_and_back(self):
        (self.src / "config.json").unlink()
        there, back = self.folder / "titan", self.folder / "hf"
        self.assertEqual(cairn.convert(self.src, there, "hf-to-titan/qwen3", config=self.CONFIG).format, "torchdcp")
        self.assertIn("layers.0.attention_norm.weight", self.open(there))
        self.assertEqual(cairn.convert(there, back, "titan-to-hf/qwen3", config=self.CONFIG).format, "hf")
        c = self.open(back)
        self.assertEqual(c.shapes(), {n: tuple(shape) for n, (shape, _) in self.tensors.items()})
        for name, (_, floats) in self.tensors.items():
            self.assertEqual(flat(c, name), floats, name)

    def test_errors_name_arguments(self):
        (self.src / "config.json").unlink()
        convert = functools.partial(cairn.convert, self.src, self.folder / "out")
        named = "hf-to-titan/llama"
        for want, call in [
            (r"^recipe='auto': .*give its config.json \(config\)", lambda: cairn.open(self.src, recipe="auto")),
            (r"variables={'\w+': VALUE}.* \(config\)", lambda: cairn.open(self.src, recipe=named)),
            (r"set it with \w+=VALUE, or .* \(config\)", lambda: convert(named)),
            (r"use hf-to-titan/qwen3, without reverse=True$", lambda: convert("hf-to-titan/qwen3", reverse=True)),
        ]:
            with self.assertRaisesRegex(ValueError, want) as raised:
                call()
            self.assertNotIn("--", str(raised.exception))

    def test_a_layer_too_few(self):
        with self.assertRaisesRegex(cairn.MismatchError, "layers.2"):
            cairn.open(self.src, recipe="hf-to-titan/qwen3", config={**self.CONFIG, "num_hidden_layers": 3})
        with self.assertRaisesRegex(cairn.MismatchError, "layers.1"):
            cairn.open(self.src, recipe="hf-to-titan/qwen3", variables={"layers": 1})


if __name__ == "__main__":
    unittest.main()
