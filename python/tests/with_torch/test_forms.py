"""Loading a folder of Hugging Face into a model that has the names of torchtitan."""

import json
import os
import struct
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn
import cairn.torch
from device import CUDA, DEVICE, Case, bits, differs, join, noise, slow, spawn

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2, 256, 4, 2, 64, 512, 3000
CONFIG = {"model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS,
          "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "tie_word_embeddings": False}
RECIPE = "hf-to-titan/llama"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv_linear = nn.ModuleDict({"wq": linear(HEADS * HEAD, HIDDEN), "wk": linear(KV_HEADS * HEAD, HIDDEN),
                                         "wv": linear(KV_HEADS * HEAD, HIDDEN)})
        self.wo = linear(HIDDEN, HEADS * HEAD)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.feed_forward = nn.ModuleDict({"w1": linear(FFN, HIDDEN), "w2": linear(HIDDEN, FFN),
                                           "w3": linear(FFN, HIDDEN)})
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)


class Titan(nn.Module):
    """The parameters of torchtitan's Llama."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.RMSNorm(HIDDEN)
        self.lm_head = linear(VOCAB, HIDDEN)
        self.register_buffer("freqs_cis", torch.zeros(3), persistent=False)


def linear(out, into):
    return nn.Linear(into, out, bias=False)


def weights():
    """Returns the weights of a model of Hugging Face."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes |= {at + "self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
                   at + "self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
                   at + "self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
                   at + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD), at + "mlp.gate_proj.weight": (FFN, HIDDEN),
                   at + "mlp.up_proj.weight": (FFN, HIDDEN), at + "mlp.down_proj.weight": (HIDDEN, FFN),
                   at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,)}
    return {name: noise(shape, "bfloat16", device="cpu", seed=i).nan_to_num() for i, (name, shape)
            in enumerate(shapes.items())}


def interleaved(w):
    """Returns the rows of q or k in the order of torchtitan's rotary embedding: pairs of both halves of a head."""
    return w.unflatten(0, (-1, 2, HEAD // 2)).transpose(1, 2).flatten(0, 2)


def expected(hf):
    """Returns the same weights with torchtitan's names."""
    out = {"tok_embeddings.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"],
           "lm_head.weight": hf["lm_head.weight"]}
    for i in range(LAYERS):
        old, new = f"model.layers.{i}.", f"layers.{i}."
        out |= {new + "attention.qkv_linear.wq.weight": interleaved(hf[old + "self_attn.q_proj.weight"]),
                new + "attention.qkv_linear.wk.weight": interleaved(hf[old + "self_attn.k_proj.weight"]),
                new + "attention.qkv_linear.wv.weight": hf[old + "self_attn.v_proj.weight"],
                new + "attention.wo.weight": hf[old + "self_attn.o_proj.weight"],
                new + "feed_forward.w1.weight": hf[old + "mlp.gate_proj.weight"],
                new + "feed_forward.w2.weight": hf[old + "mlp.down_proj.weight"],
                new + "feed_forward.w3.weight": hf[old + "mlp.up_proj.weight"],
                new + "attention_norm.weight": hf[old + "input_layernorm.weight"],
                new + "ffn_norm.weight": hf[old + "post_attention_layernorm.weight"]}
    return {name: t.float() for name, t in out.items()}  # the type of the modules


def write(folder, tensors, config=True):
    """Writes a folder of Hugging Face."""
    os.makedirs(folder)
    header, data = {}, b""
    for name, t in tensors.items():
        raw = t.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    if config:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(CONFIG, f)


FP8 = """\
sides = ["trainer", "server"]
[[rule]]
trainer = "{rest*}_proj.weight"
server = "{rest*}_proj.weight"
quantize = { server = { dtype = "float8_e4m3fn", block = [128, 128], scale = "_scale_inv" } }
[[rule]]
optional = true
trainer = "{rest*}"
server = "{rest*}"
"""


def quantized(w):
    """Returns a weight in fp8 and the scales of its blocks, computed by PyTorch. Its sizes are multiples of 128."""
    blocks = w.float().unflatten(1, (-1, 128)).unflatten(0, (-1, 128))  # [rows, 128, columns, 128]
    scales = blocks.abs().amax((1, 3)) / 448
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    stored = (blocks / scales[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return stored.reshape(w.shape), scales


class Quantized(Case):
    """Weights in fp8 with a scale for each block."""

    def setUp(self):
        super().setUp()
        g = torch.Generator().manual_seed(5)
        self.plain = {name: torch.randn(w.shape, generator=g).mul(0.02).bfloat16() for name, w in weights().items()}
        self.plain["model.layers.0.mlp.up_proj.weight"][:128] = 0
        write(self.path(), self.plain)
        self.recipe = self.path("fp8.toml")
        with open(self.recipe, "w") as f:
            f.write(FP8)
        self.want = {}
        for name, w in self.plain.items():
            if name.endswith("_proj.weight"):
                self.want[name], self.want[name + "_scale_inv"] = quantized(w)
            else:
                self.want[name] = w

    def test_like_the_cast_of_pytorch(self):
        state = {name: torch.zeros_like(t, device=DEVICE) for name, t in self.want.items()}
        cairn.torch.load(state, self.path(), recipe=self.recipe)
        self.assert_same(self.want, {name: t.cpu() for name, t in state.items()})

    def test_all_numbers(self):
        """All bfloat16 numbers that are finite, each beside a largest number that decides the scale."""
        bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
        w = bits[bits.isfinite()].unflatten(0, (-1, 128)).repeat_interleave(128, 0)
        w[1::128, 0] = torch.logspace(-30, 30, len(w) // 128).bfloat16()
        write(self.path("all"), {"x_proj.weight": w})
        state = {"x_proj.weight": torch.zeros_like(w, dtype=torch.float8_e4m3fn, device=DEVICE),
                 "x_proj.weight_scale_inv": torch.zeros(len(w) // 128, 1, device=DEVICE)}
        cairn.torch.load(state, self.path("all"), recipe=self.recipe)
        stored, scales = quantized(w)
        self.assert_same({"x_proj.weight": stored, "x_proj.weight_scale_inv": scales},
                         {name: t.cpu() for name, t in state.items()})

    def test_versions(self):
        """A trainer publishes bfloat16, and a server in fp8 follows."""
        run, name = self.path("run"), "model.layers.0.mlp.up_proj.weight"
        state = {n: torch.zeros_like(t, device=DEVICE) for n, t in self.want.items()}
        versions = cairn.torch.follow(run, recipe=self.recipe)
        for version in 1, 2, 3:
            self.plain[name][130 + version, 7] = version  # the largest number of its block
            self.want[name], self.want[name + "_scale_inv"] = quantized(self.plain[name])
            cairn.torch.publish(self.plain, run, version=version).result()
            report = versions.update(state)
            self.assert_same(self.want, {n: t.cpu() for n, t in state.items()})
        self.assertLess(report.bytes_read, report.bytes / 4)
        self.assertLess(report.elements_changed, 129 * 128)
        self.plain[name][0, 0] = torch.nan
        cairn.torch.publish(self.plain, run, version=4).result()
        with self.assertRaisesRegex(cairn.MismatchError, r"element at \[0 0\] is infinite or NaN"):
            versions.update(state)
        self.assertEqual(versions.version, 3)

    def test_numbers_without_their_scales(self):
        name = "model.layers.0.mlp.up_proj.weight"
        scales = self.want[name + "_scale_inv"]
        run = self.path("run")
        cairn.torch.publish(self.plain, os.path.join(run, "plain"), version=1).result()
        cairn.torch.publish(self.want, os.path.join(run, "fp8"), version=1).result()
        cairn.convert(self.path(), self.path("hf"), self.recipe, format="hf")
        for path, options in ((os.path.join(run, "fp8", "step-000000001"), {}), (self.path("hf"), {}),
                              (self.path(), {"recipe": self.recipe})):
            with self.subTest(path):
                t = torch.zeros_like(self.plain[name], device=DEVICE)
                with self.assertRaisesRegex(cairn.MismatchError, f"without their scales .*{name}_scale_inv"):
                    cairn.torch.load({name: t}, path, **options)
                self.assertFalse(t.any())
                raw = torch.zeros_like(self.want[name], device=DEVICE)
                cairn.torch.load({name: raw}, path, **options)
                self.assert_same(self.want[name], raw.cpu())
        t = torch.zeros_like(self.plain[name], dtype=torch.float32, device=DEVICE)
        cairn.torch.load({name: t}, self.path("hf"), format="hf", format_options={"dequantize": True})
        want = self.want[name].float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        self.assert_same(want, t.cpu())

        for folder, options in ("fp8", {}), ("plain", {"recipe": self.recipe}):
            with self.subTest(folder):
                versions = cairn.torch.follow(os.path.join(run, folder), **options)
                t = torch.zeros_like(self.plain[name], device=DEVICE)
                with self.assertRaisesRegex(cairn.MismatchError, f"without their scales .*{name}_scale_inv"):
                    versions.update({name: t})
                raw = torch.zeros_like(self.want[name], device=DEVICE)
                with self.assertRaisesRegex(cairn.StateError, f"does not have its scales, '{name}_scale_inv'"):
                    versions.update({name: raw})
                self.assertFalse(bits(t).any() or bits(raw).any())
                versions.update({name: raw, name + "_scale_inv": torch.zeros_like(scales, device=DEVICE)})
                self.assert_same(self.want[name], raw.cpu())

    def test_back(self):
        cairn.convert(self.path(), self.path("fp8"), self.recipe, format="hf")
        state = {name: torch.zeros_like(t, device=DEVICE) for name, t in self.plain.items()}
        cairn.torch.load(state, self.path("fp8"), recipe=self.recipe, reverse=True)
        for name, t in state.items():
            want = self.want[name]
            if name.endswith("_proj.weight"):
                scales = self.want[name + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
                want = (want.float() * scales).bfloat16()
            self.assert_same({name: want}, {name: t.cpu()})


class Forms(Case):
    def setUp(self):
        super().setUp()
        self.hf = weights()
        self.want = expected(self.hf)
        write(self.path(), self.hf)

    def check(self, model):
        got = model.state_dict()
        self.assertEqual(sorted(got), sorted(self.want))
        self.assert_same({n: self.want[n] for n in got}, {n: t.cpu() for n, t in got.items()})

    def test_a_module(self):
        model = Titan().to(DEVICE)
        report = cairn.torch.load(model, self.path(), recipe=RECIPE)
        self.check(model)
        self.assertEqual((report.missing, report.bytes), ((), sum(t.nbytes for t in self.hf.values())))

    def test_a_module_made_for_inference(self):
        with torch.inference_mode():
            model = Titan().to(DEVICE)
        cairn.torch.load(model, self.path(), recipe=RECIPE)
        self.check(model)

    def test_the_ways_to_name_a_state(self):
        for state, rename in ((lambda m: m.state_dict(), None), (lambda m: {"model": m}, {"model.": ""}),
                              (lambda m: {"model": m.state_dict()}, {"model.": ""}),
                              (lambda m: {"a": {"b": m.state_dict()}}, {"a.b.": ""}),
                              (lambda m: nn.ModuleDict({"module": m}), "wrappers")):
            model = Titan().to(DEVICE)
            cairn.torch.load(state(model), self.path(), recipe=RECIPE, rename=rename)
            self.check(model)

    def test_a_key_that_the_form_lacks(self):
        with self.assertRaisesRegex(cairn.MissingError, r"rename=\{'model\.': ''\}"):
            cairn.torch.load({"model": Titan().to(DEVICE)}, self.path(), recipe=RECIPE)

    def test_configurations(self):
        os.remove(self.path() + "/config.json")
        with open(self.path("other.json"), "w") as f:
            json.dump(CONFIG, f)
        for options in ({"config": CONFIG}, {"config": self.path("other.json")},
                        {"config": {**CONFIG, "num_attention_heads": 1}, "variables": {"heads": HEADS}}):
            model = Titan().to(DEVICE)
            cairn.torch.load(model, self.path(), recipe=RECIPE, **options)
            self.check(model)
        with self.assertRaises(cairn.CairnError):
            cairn.torch.load(Titan().to(DEVICE), self.path(), recipe="hf-to-titan")

    def test_back_from_a_save(self):
        model = Titan().to(DEVICE)
        cairn.torch.load(model, self.path(), recipe=RECIPE)
        cairn.torch.save(model.state_dict(), self.path("step-1"))
        names = {n.replace(".", "_"): n for n in self.hf}
        state = {key: torch.zeros_like(self.hf[n]) for key, n in names.items()}
        cairn.torch.load(state, self.path("step-1"), recipe=RECIPE, reverse=True, config=CONFIG, rename=names.get)
        self.assert_same({key: self.hf[n] for key, n in names.items()}, state)

    def test_a_model_that_does_not_fit(self):
        model = Titan().to(DEVICE)
        del model.layers["1"]
        with self.assertRaisesRegex(cairn.MismatchError, r"9 names that the module lacks: 'layers\.1\."):
            cairn.torch.load(model, self.path(), recipe=RECIPE)
        cairn.torch.load(model, self.path(), recipe=RECIPE, strict=False)
        model.extra = nn.Linear(2, 2).to(DEVICE)
        with self.assertRaisesRegex(cairn.MissingError, "'extra.bias'"):
            cairn.torch.load(model, self.path(), recipe=RECIPE)
        self.assertEqual(sorted(cairn.torch.load(model, self.path(), recipe=RECIPE, strict=False).missing),
                         ["extra.bias", "extra.weight"])

    def test_errors(self):
        for error, options in ((cairn.OptionsError, {"recipe": "hf-to-titan/no_such"}),
                               (cairn.OptionsError, {"recipe": RECIPE, "variables": {"colour": 1}}),
                               (cairn.OptionsError, {"variables": {"heads": 1}}),
                               (cairn.MismatchError, {"recipe": RECIPE, "variables": {"layers": 1}})):
            with self.subTest(options=options), self.assertRaises(error):
                cairn.torch.load(Titan().to(DEVICE), self.path(), **options)

    def test_contents_that_contradict_the_recipe(self):
        write(self.path("tied"), self.hf)
        with self.assertRaises(cairn.MismatchError) as raised:
            cairn.torch.load(Titan().to(DEVICE).state_dict(), self.path("tied"), recipe=RECIPE,
                             config={**CONFIG, "tie_word_embeddings": True})
        self.assertIn("recipe.check", raised.exception.codes)

    def test_a_module_without_a_recipe(self):
        model, other = Titan().to(DEVICE), Titan().to(DEVICE)
        cairn.torch.save({"model": model, "step": 3}, self.path("step-3"))
        with self.assertRaisesRegex(cairn.MissingError, r"rename=\{'': 'model\.'\}"):
            cairn.torch.load(other, self.path("step-3"))
        cairn.torch.load(other, self.path("step-3"), rename={"": "model."})
        self.assert_same(model.state_dict(), other.state_dict())

    @slow
    @unittest.skipIf(CUDA, "two ranks of nccl need two GPUs")
    def test_fsdp(self):
        spawn(2, load_fsdp, self.folder)


def load_fsdp(rank, folder):
    """Each rank reads its rows."""
    join("gloo", folder, rank, 2)
    model = Titan().to(DEVICE)
    mesh = init_device_mesh(DEVICE, (2,))
    for layer in [*model.layers.values(), model]:
        fully_shard(layer, mesh=mesh)
    hf = os.path.join(folder, "checkpoint")
    report = cairn.torch.load(model, hf, recipe=RECIPE)
    got = {name: t.full_tensor() for name, t in model.state_dict().items()}
    want = expected(weights())
    if difference := differs({name: want[name] for name in got}, got):
        raise AssertionError(difference)
    total = sum(t.nbytes for t in weights().values())
    if not 0.4 * total < report.bytes < 0.6 * total or report.bytes_read > 0.7 * total:
        raise AssertionError(f"rank {rank} needs {report.bytes} and reads {report.bytes_read} bytes of {total}")
    try:  # rank 0 finds it, and all ranks raise it
        cairn.torch.load(model, hf, recipe=RECIPE, config={**CONFIG, "tie_word_embeddings": True})
    except cairn.MismatchError as e:
        if "recipe.check" not in e.codes:
            raise
    else:
        raise AssertionError("two tensors that differ were loaded as one")
    dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
