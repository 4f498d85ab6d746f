"""torch.distributed.checkpoint with Writer, Reader and Stager, FSDP2, and several ranks on one GPU."""

import gc
import inspect
import os
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

import cairn
import cairn.torch
from device import CUDA, DEVICE, Case, blank, copy_of, differs, join, local, noise, slow, spawn


def state_of(seed=0):
    base = noise((64, 96), "int32", seed=seed)
    return {"model": {"w": noise((1 << 20,), seed=seed).nan_to_num(), "half": noise((333,), "bfloat16", seed=seed),
                      "part": base[3:9, 2:], "turned": base.t(),
                      "cpu": noise((1000,), "int16", device="cpu", seed=seed),
                      "empty": torch.empty(0, 3, device=DEVICE)},
            "list": [noise((7,), seed=seed), {"x": noise((8,), "int8", seed=seed)}], "step": seed}


def check(want, got, what):
    if difference := differs(want, got):
        raise AssertionError(f"{what}: {difference}")


class Storage(Case):
    def test_save_and_load(self):
        state = state_of()
        dcp.save(state, storage_writer=cairn.torch.Writer(self.path()))
        got = blank(state)
        dcp.load(got, storage_reader=cairn.torch.Reader(self.path()))
        self.assert_same(state, got)
        got = blank(state)
        cairn.torch.load(got, self.path())
        self.assert_same(state, got)

    def test_a_checkpoint_of_pytorch(self):
        state = {"w": noise((1 << 18,), "int32"), "x": {"y": noise((5, 6), "bfloat16")}}
        dcp.save(state, checkpoint_id=self.path())
        got = blank(state)
        cairn.torch.load(got, self.path())
        self.assert_same(state, got)
        got = blank(state)
        dcp.load(got, storage_reader=cairn.torch.Reader(self.path()))
        self.assert_same(state, got)

    @slow
    def test_async_save(self):
        spawn(1, save_async, self.folder)

    @slow
    @unittest.skipUnless(CUDA or hasattr(torch.cpu.Stream, "record_event"),
                         "FSDP2 of this PyTorch cannot train on a CPU")
    def test_fsdp_on_one_gpu(self):
        spawn(1, train_fsdp, self.folder)

    @slow
    def test_two_ranks_share_a_gpu(self):
        spawn(2, save_two, self.folder)
        rows = noise((10, 1000), "int64", seed=1)
        with cairn.open(self.path("step-1"), framework="torch") as c:
            self.assert_same(rows, c["rows"][:])
            self.assert_same(noise((1 << 20,), seed=2), c["same"][:])
        got = {"rows": torch.zeros_like(rows)}
        cairn.torch.load(got, self.path("step-1"))
        self.assert_same({"rows": rows}, got)


def save_async(rank, folder):
    """dcp.async_save with Stager, three times; the state changes at once."""
    join("cpu:gloo,cuda:nccl" if CUDA else "gloo", folder, rank, 1)
    stager = cairn.torch.Stager()
    options = {"async_stager": stager} if "async_stager" in inspect.signature(dcp.async_save).parameters else {}
    for step in (1, 2, 3):
        state = state_of(step)
        want = copy_of(state)
        future = dcp.async_save(state, storage_writer=cairn.torch.Writer(os.path.join(folder, f"step-{step}")),
                                **options)
        for t in (*list(state["model"].values()), state["list"][0], state["list"][1]["x"]):
            t.zero_()
        future.result(200)
        got = blank(want)
        dcp.load(got, storage_reader=cairn.torch.Reader(os.path.join(folder, f"step-{step}")))
        check(want, got, f"step {step}")
        del future, state
    gc.collect()
    memory = cairn.torch._job.job().memory
    memory.reclaim()
    if memory.arena.largest() != memory.arena.window:
        raise AssertionError("shared memory is still in use")
    dist.destroy_process_group()


def model():
    """Returns a model that is sharded by FSDP2, and its optimizer."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(4)),
                              torch.nn.Linear(256, 8))
    net = net.to(DEVICE)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def step(net, opt, seed):
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    net(x).square().mean().backward()
    opt.step()
    opt.zero_grad()


def train_fsdp(rank, folder):
    """A training that is saved and resumed has the weights of one that was not."""
    join("nccl" if CUDA else "gloo", folder, rank, 1)

    def states(net, opt):
        weights, moments = get_state_dict(net, opt)
        return {"model": weights, "optim": moments}

    def full(net, opt):
        return {k: {n: local(t).detach().clone() for n, t in _tensors(v)} for k, v in states(net, opt).items()}

    net, opt = model()
    for seed in (1, 2):
        step(net, opt, seed)
    here = full(net, opt)
    cairn.torch.save({**states(net, opt), "step": 2}, os.path.join(folder, "ours"), step=2)
    dcp.save(states(net, opt), storage_writer=cairn.torch.Writer(os.path.join(folder, "dcp")))
    handle = cairn.torch.async_save(states(net, opt), os.path.join(folder, "overlap"), overlap=True)
    net(torch.ones(16, 256, device=DEVICE)).square().mean().backward()
    opt.zero_grad()
    handle.staged.result(200)
    step(net, opt, 3)
    handle.result(200)
    after = full(net, opt)
    for name in ("ours", "dcp", "overlap"):
        again, again_opt = model()
        step(again, again_opt, 99)
        state = states(again, again_opt)
        if name == "dcp":
            dcp.load(state, storage_reader=cairn.torch.Reader(os.path.join(folder, name)))
        else:
            cairn.torch.load(state, os.path.join(folder, name))
        set_state_dict(again, again_opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
        check(here, full(again, again_opt), name)
        step(again, again_opt, 3)
        torch.testing.assert_close(full(again, again_opt), after)  # kernels need not repeat bits
    dist.destroy_process_group()


def _tensors(v, at=""):
    if isinstance(v, torch.Tensor):
        yield at, v
    elif isinstance(v, dict):
        for k, x in v.items():
            yield from _tensors(x, f"{at}.{k}")


def save_two(rank, folder):
    """Two ranks save shards, tied shards and copies that lie on the same GPU, and load them."""
    join("gloo", folder, rank, 2)
    if CUDA:
        torch.cuda.set_device(0)
    mesh = init_device_mesh(DEVICE, (2,))
    rows = noise((10, 1000), "int64", seed=1)

    def made(rows, same):
        part = rows.chunk(2)[rank].clone()
        rows = DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=rows.shape, stride=rows.stride())
        return {"rows": rows, "tied": rows, "same": DTensor.from_local(same, mesh, [Replicate()], run_check=False),
                "plain": same[:100].clone(), "step": 1}

    state = made(rows, noise((1 << 20,), seed=2))
    want = {k: local(v).clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
    handle = cairn.torch.async_save(state, os.path.join(folder, "step-1"), step=1)
    local(state["rows"]).zero_()
    local(state["same"]).zero_()
    handle.result(200)
    dcp.save(made(rows, noise((1 << 20,), seed=2)), storage_writer=cairn.torch.Writer(os.path.join(folder, "step-2")))
    for name in ("step-1", "step-2"):
        got = made(torch.zeros_like(rows), torch.zeros(1 << 20, device=DEVICE))
        cairn.torch.load(got, os.path.join(folder, name))
        check(want, {k: local(v) if isinstance(v, torch.Tensor) else v for k, v in got.items()}, f"rank {rank}, {name}")
        got = made(torch.zeros_like(rows), torch.zeros(1 << 20, device=DEVICE))
        dcp.load(got, storage_reader=cairn.torch.Reader(os.path.join(folder, name)))
        check(want, {k: local(v) if isinstance(v, torch.Tensor) else v for k, v in got.items()},
              f"rank {rank}, {name} by Reader")
    cairn.torch.save(made(rows, noise((1 << 20,), seed=2)), os.path.join(folder, "step-3"))
    if not cairn.torch._job.job().remembered[0].usable:
        raise AssertionError("the description of sharded tensors is not remembered")
    with cairn.open(os.path.join(folder, "step-1"), framework="torch") as c:
        whole = c.load()
        if whole["rows"].data_ptr() != whole["tied"].data_ptr():
            raise AssertionError("shards with two names are not stored once")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
