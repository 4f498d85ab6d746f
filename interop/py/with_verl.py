"""Trainings with the checkpoint managers of verl, and with cairn.verl in place of the one for FSDP.

The managers and the handler of verl are unchanged. verl imports packages that they do not use: these have stand-ins,
which are named in STAND_INS.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types

import torch
import torch.distributed as dist

STAND_INS = {"ray", "tensordict", "datasets", "PIL", "pandas", "orjson"}


class StandIn(types.ModuleType):
    """A module whose classes do nothing."""

    __version__ = "0.10.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **more: None, "__class_getitem__": lambda key: None})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager as Stock  # noqa: E402


def build(fsdp=2, tied=False):
    """Returns a model, its optimizer and its scheduler."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                         num_attention_heads=2, num_key_value_heads=2, attention_dropout=0.2,
                                         tie_word_embeddings=tied))
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    if fsdp == 2:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=fsdp == "1 with original parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def step(model, optimizer, scheduler, number):
    """Trains for a step, whose data does not depend on the number of ranks. Returns the loss of all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows = torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(number))
    rows = rows[rank * 4 // ranks:(rank + 1) * 4 // ranks]
    loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    mean = loss.detach() / ranks
    dist.all_reduce(mean)
    return mean.item()


def probe(folder):
    m = build()
    manager = Stock(*m, None, {})
    print("losses", [step(*m, n) for n in range(3)])
    path = os.path.abspath(folder) + "/global_step_3/actor"
    manager.save_checkpoint(path, None, 3)
    import cairn.torch
    from cairn.torch._sharded import Training
    m = build()
    print(Training(*m, ("model", "optimizer", "extra")).load(path))
    if dist.get_rank() == 0:
        os.system("find " + path)


def probe2(folder, async_save=False):
    import cairn.torch
    import cairn.verl
    m = build()
    manager = cairn.verl.FSDPCheckpointManager(*m, None, {"async_save": async_save, "save_contents": ["model", "optimizer", "extra", "hf_model"]})
    print("losses", [step(*m, n) for n in range(3)])
    root = os.path.abspath(folder)
    for n in range(3, 7):
        path = root + f"/global_step_{n}/actor"
        manager.save_checkpoint(path, None, n, max_ckpt_to_keep=2)
        if dist.get_rank() == 0:
            os.makedirs(root + f"/global_step_{n}", exist_ok=True); torch.save({}, root + f"/global_step_{n}/data.pt")
    import time
    time.sleep(3)
    if dist.get_rank() == 0:
        os.system(f"find {root} -maxdepth 3; cat {root}/lat*")
    print([step(*m, n) for n in range(3, 6)])
    m = build()
    manager = cairn.verl.FSDPCheckpointManager(*m, None, {})
    manager.load_checkpoint(root + "/global_step_6/actor")
    print([step(*m, n) for n in range(3, 6)])
