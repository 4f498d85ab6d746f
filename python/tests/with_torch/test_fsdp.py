"""Ranked files of FSDP, of verl and accelerate, which neither cairn nor this test has installed."""

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
FIXTURES = pathlib.Path(__file__).resolve().parent / "fsdp"
if not FIXTURES.exists():
    FIXTURES = FIXTURES.parents[3] / "testdata" / "fixtures" / FIXTURES.name


def items(fixture):
    """Returns the expected contents of a checkpoint, by name."""
    return json.loads((FIXTURES / fixture / "expected.json").read_text())["items"]


def model_of(held):
    """Returns a model with the parameters of a checkpoint."""
    net = torch.nn.Module()
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
        at.register_parameter(last, torch.nn.Parameter(t))
    return net


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
    rate = float(held["optimizer.param_groups.0.lr"]["repr"])
    if [group["lr"] for group in optimizer.param_groups] != [rate]:
        raise AssertionError(f"rates {optimizer.param_groups}; want {rate}")


def resume(rank, folder, size, fixture):
    """A run continues under FSDP 2 on another number of ranks."""
    join("nccl" if CUDA else "gloo", folder, rank, size)
    held = items(fixture)
    net = model_of(held)
    fully_shard(net, mesh=init_device_mesh(DEVICE, (size,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=7)
    weights, moments = get_state_dict(net, optimizer)
    cairn.torch.load({"model": weights, "optimizer": moments}, FIXTURES / fixture / "ckpt")
    set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=moments)
    check(held, net, optimizer)
    dist.destroy_process_group()


class FSDP(Case):
    def test_tensor_parallel_ranks_continue(self):
        size = 1 if CUDA else 2
        spawn(size, resume, self.path("."), size, "fsdp2-tp-4")

    def test_a_flat_optimizer_continues(self):
        size = 1 if CUDA else 3
        spawn(size, resume, self.path("."), size, "fsdp1-flat-2")

    def test_a_model_by_itself(self):
        for fixture in ("fsdp2-bf16-3", "fsdp2-hsdp-torch27-4", "accelerate-fsdp1-2"):
            held = items(fixture)
            net = model_of(held)
            cairn.torch.load({"model": net}, FIXTURES / fixture / "ckpt")
            for name, t in net.state_dict().items():
                self.assertEqual(digest(t), held[f"model.{name}"]["sha256"], f"{fixture}: {name}")


if __name__ == "__main__":
    unittest.main()
