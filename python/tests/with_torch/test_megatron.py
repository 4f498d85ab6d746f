"""Checkpoints of Megatron with its distributed optimizer: moments arrive in PyTorch's optimizers."""

import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import cairn.torch
from device import DEVICE, Case

BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_{}.{}"
NORM, LAYER = "decoder.final_layernorm.weight", "decoder.layers.{}.mlp.linear_fc1.weight"
SHAPES = {LAYER.format(0): [10, 3], LAYER.format(1): [10, 3], NORM: [3]}
TO_HF = """\
sides = ["megatron", "hf"]

[variables]
ffn = 5

[captures]
i = 2

[[rule]]
megatron = "decoder.layers.{i}.mlp.linear_fc1.weight [ffn + ffn, hidden]"
hf = ["layers.{i}.gate.weight [ffn, hidden]", "layers.{i}.up.weight [ffn, hidden]"]

[[rule]]
megatron = "decoder.final_layernorm.weight"
hf = "norm.weight"

[[drop]]
megatron = ["optimizer.*", "content_metadata*", "checkpoint_version"]
reason = "state of training"
"""


class Model(torch.nn.Module):
    """Hugging Face's form, in which gate and up are apart."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({name: torch.nn.Linear(3, 5, bias=False) for name in ("gate", "up")}) for _ in range(2))
        self.norm = torch.nn.RMSNorm(3)

    def forward(self, x):
        return sum(layer["gate"](self.norm(x)) * layer["up"](x) for layer in self.layers)


class Megatron(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(3)
        self.states = {name: {s: torch.rand(shape) for s in ("param", "exp_avg", "exp_avg_sq")}
                       for name, shape in SHAPES.items()}
        self.weights = {name: states["param"].bfloat16() for name, states in self.states.items()}
        self.save()

    def save(self, name="saved"):
        """Saves what Megatron saves in the form dp_reshardable. Each parameter has a bucket, the last one the first."""
        state = dict(self.weights)
        for number, states in enumerate(reversed(self.states.values())):
            state.update({BUCKET.format(number, s): x.flatten() for s, x in states.items()})
        dcp.save(state, checkpoint_id=self.path(name))

    def test_states_by_name(self):
        state = {"optimizer": {"state": {s: {n: torch.zeros(shape, device=DEVICE) for n, shape in SHAPES.items()}
                                         for s in ("param", "exp_avg", "exp_avg_sq")}},
                 **{n: torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE) for n, shape in SHAPES.items()}}
        cairn.torch.load(state, self.path("saved"), recipe="megatron-optimizer")
        for name, states in self.states.items():
            self.assertTrue(torch.equal(state[name].cpu(), self.weights[name]), name)
            for s, x in states.items():
                self.assertTrue(torch.equal(state["optimizer"]["state"][s][name].cpu(), x), f"{s} of {name}")

    def test_moments_in_another_form(self):
        cairn.convert(self.path("saved"), self.path("named"), "megatron-optimizer")
        with open(self.path("hf.toml"), "w") as f:
            f.write(TO_HF)
        model = Model().to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.rand(2, 3, device=DEVICE)).sum().backward()
        optimizer.step()
        # The tensors are the optimizer's own. It keeps its step: a recipe carries moments only.
        own = get_optimizer_state_dict(model, optimizer)["state"]
        moments = {name: {s: x for s, x in states.items() if s != "step"} for name, states in own.items()}
        cairn.torch.load({**model.state_dict(), "optimizer": {"state": moments}}, self.path("named"),
                         recipe=self.path("hf.toml"), variables={"optimizer_states": True})

        for i in range(2):
            name = LAYER.format(i)
            for part, rows in (("gate", slice(0, 5)), ("up", slice(5, 10))):
                p = model.layers[i][part].weight
                self.assertTrue(torch.equal(p.cpu(), self.weights[name][rows].float()), f"{part} {i}")
                for s in "exp_avg", "exp_avg_sq":
                    got = optimizer.state[p][s].cpu()
                    self.assertTrue(torch.equal(got, self.states[name][s][rows]), f"{part} {i} {s}")
        self.assertTrue(torch.equal(optimizer.state[model.norm.weight]["exp_avg"].cpu(), self.states[NORM]["exp_avg"]))

    def test_wrong_states_are_refused(self):
        self.states[NORM]["param"][1] += 1
        self.save("wrong")
        state = {"optimizer": {"state": {"exp_avg": {NORM: torch.zeros(3, device=DEVICE)}}}}
        with self.assertRaisesRegex(cairn.MismatchError, f"wrong states of {NORM}, .*right are the states of"):
            cairn.torch.load(state, self.path("wrong"), recipe="megatron-optimizer", strict=False)
        with self.assertRaisesRegex(cairn.MismatchError, f"wrong states of {NORM}"):
            cairn.convert(self.path("wrong"), self.path("result"), "megatron-optimizer")
        with self.assertRaisesRegex(cairn.OptionsError, "expert_parallel is 0"):
            cairn.convert(self.path("saved"), self.path("result"), "megatron-optimizer", expert_parallel=0)


if __name__ == "__main__":
    unittest.main()
