"""Checkpoints of DeepSpeed, which neither cairn nor this test has installed."""

import hashlib
import json
import pathlib
import unittest

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn.torch
from device import CUDA, DEVICE, Case, join, spawn

# The cases with a real PyTorch copy the fixtures to the folder of the tests.
FIXTURES = pathlib.Path(__file__).resolve().parent / "deepspeed-0.19"
if not FIXTURES.exists():
    FIXTURES = FIXTURES.parents[3] / "testdata" / "fixtures" / FIXTURES.name


def items(fixture):
    """Returns the expected contents of a checkpoint, by name."""
    return json.loads((FIXTURES / fixture / "expected.json").read_text())["items"]


def model_of(held):
    """Returns a model with the parameters and buffers of a checkpoint, and an optimizer with its groups."""
    net = torch.nn.Module()
    trained = [held[f"optimizer.param_groups.{i}.params"]["repr"] for i in range(2)]
    trained = [json.loads(names.replace("'", '"')) for names in trained]
    for name, item in held.items():
        if not name.startswith("model."):
            continue
        *path, last = name.removeprefix("model.").split(".")
        at = net
        for step in path:
            if not hasattr(at, step):
                at.add_module(step, torch.nn.Module())
            at = getattr(at, step)
        t = torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"]), device=DEVICE)
        if name in ("model.steps_seen", "model.running"):
            at.register_buffer(last, t)
        else:
            at.register_parameter(last, torch.nn.Parameter(t, "frozen" not in name))

    def optimizer():  # made later, because fully_shard replaces the parameters
        return torch.optim.AdamW([{"params": [net.get_parameter(n) for n in names]} for names in trained], lr=7)

    return net, optimizer


def digest(t):
    t = t.full_tensor() if hasattr(t, "full_tensor") else t
    return hashlib.sha256(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def check(held, net, optimizer):
    """Checks that a model and its optimizer have the contents of the checkpoint."""
    weights, moments = get_state_dict(net, optimizer)
    got = {f"model.{k}": v for k, v in weights.items()}
    for name, state in moments["state"].items():
        got.update({f"optimizer.state.{name}.{k}": v for k, v in state.items()})
    want = {k: v for k, v in held.items() if v["kind"] == "tensor"}
    if set(got) != set(want):
        raise AssertionError(set(got) ^ set(want))
    for name, t in got.items():
        if digest(t) != want[name]["sha256"]:
            raise AssertionError(f"{name} differs")
    rates = [float(held[f"optimizer.param_groups.{i}.lr"]["repr"]) for i in range(2)]
    if [group["lr"] for group in optimizer.param_groups] != rates:
        raise AssertionError(f"rates {optimizer.param_groups}; want {rates}")


def resume(rank, folder, size):
    """A run of ZeRO 3 on two ranks continues under FSDP2 on another number of ranks."""
    join("nccl" if CUDA else "gloo", folder, rank, size)
    held = items("zero3-fp32-subgroups-2")
    net, optimizer_of = model_of(held)
    fully_shard(net, mesh=init_device_mesh(DEVICE, (size,)))
    optimizer = optimizer_of()
    weights, moments = get_state_dict(net, optimizer)
    cairn.torch.load({"model": weights, "optimizer": moments}, FIXTURES / "zero3-fp32-subgroups-2" / "ckpt")
    set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=moments)
    check(held, net, optimizer)
    dist.destroy_process_group()


class DeepSpeed(Case):
    def test_zero3_continues_under_fsdp2(self):
        spawn(1 if CUDA else 3, resume, self.path("."), 1 if CUDA else 3)

    def test_a_model_by_itself(self):
        for fixture in ("zero1-bf16-2", "zero3-bf16-2", "universal3-bf16-2"):
            held = items(fixture)
            net, _ = model_of(held)
            cairn.torch.load({"model": net}, FIXTURES / fixture / "ckpt")
            for name, t in net.state_dict().items():
                self.assertEqual(digest(t), held[f"model.{name}"]["sha256"], f"{fixture}: {name}")


if __name__ == "__main__":
    unittest.main()
