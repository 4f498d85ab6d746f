"""Trains with the StatefulDataLoader of torchdata, and goes on with any number of ranks that divides the batch.

    torchrun --nproc-per-node 2 dataloader.py run 100
"""

import os
import sys

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

import cairn
import cairn.torch

BATCH = 8  # samples of all ranks together


class Data(torch.utils.data.Dataset):
    """Numbered samples, with noise that differs each time."""

    def __len__(self):
        return 100

    def __getitem__(self, number):
        return number, torch.full((4,), float(number)) + torch.rand(4)


class Order(torch.utils.data.Sampler):
    """The samples of a rank. All ranks share one order, and take its samples from start on in turns.

    So a global batch has the same samples for any number of ranks. All ranks have equally many: samples that do not
    fill the last batch are left out.
    """

    def __init__(self, length, rank, ranks, seed=0):
        self.length, self.rank, self.ranks, self.seed = length, rank, ranks, seed
        self.epoch = self.start = 0

    def __iter__(self):
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        return iter(order[self.start:self.start + len(self) * self.ranks][self.rank::self.ranks].tolist())

    def __len__(self):
        return (self.length - self.start) // BATCH * BATCH // self.ranks


def train(run, steps, every=5, workers=0):
    """Trains up to a number of steps. It yields the number of each, the epoch, the samples of this rank and data."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(1000 + rank)
    order = Order(len(Data()), rank, ranks)
    # The generator: otherwise the loader draws a seed from the global one whenever an iteration begins.
    loader = StatefulDataLoader(Data(), BATCH // ranks, sampler=order, drop_last=True, num_workers=workers,
                                generator=torch.Generator())
    data = {"epoch": 0, "start": 0, "consumed": 0}                   # of all ranks together
    state = {"data": data, "step": -1, "loader": cairn.torch.PerRank(loader), "random": cairn.torch.RandomState()}
    found = [cairn.latest(run, wait=True)]
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    if found[0]:
        cairn.torch.load(state, found[0])
        if not state["loader"].loaded:                               # another number of ranks
            data["start"] = data["consumed"]                         # the loader begins there
    step = state["step"]
    while step + 1 < steps:
        order.epoch, order.start = data["epoch"], data["start"]
        for numbers, batch in loader:
            step += 1
            data["consumed"] += BATCH
            yield step, data["epoch"], numbers.tolist(), batch       # a real job trains its model here
            if (step + 1) % every == 0 or step + 1 == steps:
                state["step"] = step
                cairn.torch.save(state, f"{run}/step-{step}", step=step)
            if step + 1 == steps:
                return
        data.update(epoch=data["epoch"] + 1, start=0, consumed=0)


def main():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    for step, epoch, numbers, _ in train(sys.argv[1], int(sys.argv[2])):
        print(f"step {step} epoch {epoch} samples {numbers}", flush=True)


if __name__ == "__main__":
    main()
