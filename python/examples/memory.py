"""Trains, with checkpoints in the memory of the hosts. After a failure it goes on from a few steps before.

    torchrun --nnodes 4 --nproc-per-node 8 --max-restarts 3 --rdzv-id job-17 --rdzv-backend c10d \
        --rdzv-endpoint host0:29500 memory.py --folder /shared/run --steps 100000

Start it again with any number of ranks that divides the batch, also on other hosts. One host may be lost with its
memory.
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist

import cairn
import cairn.torch

BATCH = 12


def train_step(model, optimizer, step):
    """Makes a step with this rank's part of the batch, and returns the loss of the whole batch."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
    loss = (model(x) - x.sum(1, keepdim=True)).square().sum() / BATCH
    optimizer.zero_grad()
    loss.backward()
    loss = loss.detach()
    for t in [loss, *(p.grad for p in model.parameters())]:
        if ranks > 1:
            dist.all_reduce(t)
    optimizer.step()
    return loss.item()


def train(args, model, optimizer):
    """Trains from the newest checkpoint on. The loss of each step is printed."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    state, loss = {"model": model, "optim": optimizer}, 0.0
    run = cairn.Run(args.folder, save=f"every {args.every} steps", memory=f"every {args.memory_every} steps",
                    keep_if=lambda: math.isfinite(loss))      # a state that has gone bad replaces no good one
    try:
        step = cairn.torch.load(state, run).step              # the newest one, in memory or in the folder
        if first:
            print("resume", step, flush=True)
    except cairn.NotFoundError:
        step = 0
    while step < args.steps:
        step += 1
        loss = train_step(model, optimizer, step)
        if first:
            print(f"step {step} loss {loss:.6f}", flush=True)
        run.save_if_due(state, step)
        time.sleep(args.pause)
    cairn.torch.close(forget=True)                            # the training is complete: free the memory


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--folder", default="run", help="the folder of the durable checkpoints, which all ranks see")
    args.add_argument("--steps", type=int, default=1000, help="the step to end at")
    args.add_argument("--every", type=int, default=500, help="the number of steps from one durable save to the next")
    args.add_argument("--memory-every", type=int, default=10, help="the same for saves to memory")
    args.add_argument("--pause", type=float, default=0, help="seconds to sleep in each step, to try it out")
    args = args.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    train(args, model, torch.optim.AdamW(model.parameters()))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
