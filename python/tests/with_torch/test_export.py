"""Exports after saves: the checkpoint in the form of Hugging Face, made without the job."""

import json
import os
import shutil
import time
import unittest

import torch

import cairn
import cairn.torch
from device import Case, join, spawn

CONFIG = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 24,
          "tie_word_embeddings": False}


def model_of(seed):
    """Returns the weights of a small Llama under the names of Hugging Face."""
    torch.manual_seed(seed)
    c = CONFIG
    h, kv = c["hidden_size"], c["num_key_value_heads"] * c["head_dim"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,),
              "lm_head.weight": (c["vocab_size"], h)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {"self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
                            "self_attn.o_proj": (h, h), "mlp.gate_proj": (c["intermediate_size"], h),
                            "mlp.up_proj": (c["intermediate_size"], h), "mlp.down_proj": (h, c["intermediate_size"]),
                            "input_layernorm": (h,), "post_attention_layernorm": (h,)}.items():
            shapes[f"{at}{name}.weight"] = shape
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


def state_of(model, step):
    """Returns the state of a job that trains model."""
    moments = {name: torch.zeros_like(w) for name, w in model.items()}
    return {"model": model, "optimizer": {"exp_avg": moments, "step": step}, "step": step}


class Export(Case):
    def setUp(self):
        super().setUp()
        self.addCleanup(cairn.torch.close)
        self.llama = self.path("llama")
        os.makedirs(self.llama)
        with open(os.path.join(self.llama, "config.json"), "w") as f:
            json.dump(CONFIG, f)
        with open(os.path.join(self.llama, "tokenizer.json"), "w") as f:
            f.write("{}")

    def assert_exported(self, folder, model):
        """Checks that folder has model, with its configuration and its tokenizer, and nothing else."""
        with cairn.open(folder, framework="torch") as c:
            self.assertEqual(sorted(c), sorted(model))
            for name, w in model.items():
                self.assertTrue(torch.equal(c[name][...].view(torch.int16), w.view(torch.int16)), name)
        for name in "config.json", "tokenizer.json", "cairn-manifest.json":
            self.assertTrue(os.path.exists(os.path.join(folder, name)), name)

    def run_of(self, **options):
        """Returns a run that exports to the folder models."""
        export = f"hf to {self.path('models')} with {self.llama}"
        return cairn.Run(self.path("run"), export=export, **options)

    def exports(self, run):
        return [(c.step, *(x.state for x in c.exports)) for c in run.checkpoints()]

    def test_checkpoints_of_a_run(self):
        run = self.run_of(every=2, keep="last 1")
        models = {step: model_of(step) for step in range(1, 5)}
        for step, model in models.items():
            cairn.torch.save(state_of(model, step), run, step=step)
        cairn.torch.close()  # waits for the exports
        self.assertEqual(run.export_all(), ())
        self.assertEqual(sorted(os.listdir(self.path("models"))), ["step-000000002", "step-000000004"])
        for step in 2, 4:
            self.assert_exported(os.path.join(self.path("models"), f"step-{step:09}"), models[step])
        self.assertEqual(self.exports(run)[-1], (4, "done"))

    def test_a_failure_does_not_harm_the_save_and_is_repeated(self):
        blocker = os.path.join(self.path("models"), "step-000000001")
        os.makedirs(blocker)
        with open(os.path.join(blocker, "model.safetensors"), "wb") as f:  # a checkpoint of somebody else
            f.write(b"\x02\0\0\0\0\0\0\0{}")
        run = self.run_of()
        first, second = model_of(1), model_of(2)
        handle = cairn.torch.async_save(state_of(first, 1), run, step=1)
        with self.assertLogs("cairn", "WARNING"):
            handle.result()  # the save itself succeeds
            end = time.monotonic() + 60
            while not handle.warnings and time.monotonic() < end:
                time.sleep(0.05)
        self.assertIn("it is no export of", handle.warnings[0])
        with self.assertRaisesRegex(cairn.CairnError, "it is no export of"):
            run.export_all()
        cairn.torch.close()
        self.assertEqual(self.exports(run), [(1, "failed")])
        self.assertIn("it is no export of", run.checkpoints()[0].exports[0].problem)
        shutil.rmtree(blocker)
        cairn.torch.save(state_of(second, 2), run, step=2)
        cairn.torch.close()
        self.assertEqual(self.exports(run), [(1, "done"), (2, "done")])
        self.assert_exported(blocker, first)

    def test_one_save(self):
        model = model_of(7)
        to = self.path("model")
        export = f"hf/llama to {to} with {self.llama}"
        cairn.torch.async_save({"model": model}, self.path("ckpt"), step=7, export=export).result()
        cairn.torch.close()
        self.assert_exported(to, model)

    def test_after_an_upload(self):
        run = self.run_of(remote=self.path("remote"))
        model = model_of(3)
        cairn.torch.save(state_of(model, 3), run, step=3)
        cairn.torch.close()
        self.assert_exported(os.path.join(self.path("models"), "step-000000003"), model)
        self.assertEqual([(c.copies, c.exports[0].done) for c in run.checkpoints()], [("both", True)])

    def test_two_ranks(self):
        spawn(2, saves_with_two_ranks, self.path("."), self.path("run"), self.path("models"), self.llama)
        cairn.Run(self.path("run")).export_all()
        self.assert_exported(os.path.join(self.path("models"), "step-000000001"), model_of(1))

    def test_wrong_arguments(self):
        for options, want in (
                ({"export": "hf/llama"}, "want a form and an address"),
                ({"every": 5}, "without export"),
                ({"export": "hf to /x", "every": "last 3"}, "does not say when"),
                ({"export": "hf to /x", "every": 0}, "every 0 steps")):
            with self.assertRaisesRegex(cairn.OptionsError, want):
                cairn.Run(self.path("run"), **options)
        for export, want in (("hf to s3://key:secret@bucket/x", "password"), ("hf to memory://x", "no place")):
            with self.assertRaisesRegex(cairn.OptionsError, want):
                cairn.torch.save({"w": torch.ones(1)}, self.path("ckpt"), export=export)


def saves_with_two_ranks(rank, meet, run, models, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    join("gloo", meet, rank, 2)
    mesh = init_device_mesh("cpu", (2,))
    model = {name: DTensor.from_local(w.chunk(2)[rank], mesh, [Shard(0)]) for name, w in model_of(1).items()}
    cairn.torch.save({"model": model, "step": 1}, cairn.Run(run, export=f"hf to {models} with {folder}"), step=1)
    cairn.torch.close()


if __name__ == "__main__":
    unittest.main()
