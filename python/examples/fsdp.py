"""Trains a small transformer with FSDP2, saves in the background, and continues with the newest checkpoint.

    torchrun --nproc-per-node 2 fsdp.py --folder run --steps 200

Kill it at any time and start it again, with any number of ranks that divides the batch.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import cairn
import cairn.torch

SYMBOLS, WIDTH, TIME, BATCH = 64, 64, 32, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True,
                                       norm_first=True)
            for _ in range(2))
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, rows):
        """Returns the loss of predicting each symbol from the symbols before it."""
        x = self.tokens(rows[:, :-1]) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(TIME, device=rows.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return functional.cross_entropy(self.head(x).flatten(0, 1), rows[:, 1:].flatten())


def batch(step, device):
    """Returns this rank's part of the batch of a step: the same batch however many ranks there are."""
    g = torch.Generator().manual_seed(step)
    start, stride = torch.randint(0, SYMBOLS, (BATCH, 1), generator=g), torch.randint(1, 4, (BATCH, 1), generator=g)
    rows = (start + stride * torch.arange(TIME + 1)) % SYMBOLS
    return rows.chunk(dist.get_world_size())[dist.get_rank()].to(device)


def state_of(model, optimizer, step):
    """Returns the state to save: tensors of this rank, and values."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "step": step}


def resume(run, model, optimizer):
    """Loads the newest complete checkpoint, if there is one. Returns the step to continue with."""
    found = [run.latest(wait=True)]  # if the job was killed, its savers may still be writing
    dist.broadcast_object_list(found)  # the result of rank 0 counts
    if found[0] is None:
        return 0
    state = state_of(model, optimizer, 0)
    cairn.torch.load(state, found[0])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    if dist.get_rank() == 0:
        print("resume", found[0], flush=True)
    return state["step"] + 1


def succeeds(wait):
    """Waits for a save and reports whether it succeeds. If not, training goes on: the next save may succeed."""
    try:
        wait()
        return True
    except cairn.CairnError as e:
        print("the save failed:", e, file=sys.stderr, flush=True)
        return False


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--folder", default="run", help="the folder of the checkpoints, which all ranks see")
    args.add_argument("--steps", type=int, default=200, help="the step to end at")
    args.add_argument("--every", type=int, default=10, help="the number of steps from save to save")
    args.add_argument("--keep", type=int, default=3, help="the number of checkpoints to keep")
    args = args.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = Model().to(device)
    mesh = init_device_mesh(device.type, (ranks,))
    for layer in [*model.blocks, model]:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    run = cairn.Run(args.folder, keep=cairn.last(args.keep))
    save = None  # the save that may be under way
    for step in range(resume(run, model, optimizer), args.steps):
        loss = model(batch(step, device))
        loss.backward()
        # The copy was made during the forward and backward pass. When it is complete, the state may change.
        if save is not None and not succeeds(save.staged.result):
            save = None
        optimizer.step()
        optimizer.zero_grad()

        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item():.6f}", flush=True)

        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            if save is not None:
                succeeds(save.result)  # training waits here only if the disk is slow
            save = cairn.torch.async_save(state_of(model, optimizer, step), run, step=step,
                                          metrics={"loss": mean.item()}, overlap=True)

    if save is not None:
        succeeds(save.result)
    cairn.torch.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
