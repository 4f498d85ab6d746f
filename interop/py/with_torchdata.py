"""The example python/examples/dataloader.py: the state kept when a training goes on with another number of ranks."""

import json
import logging
import os
import sys

import torch.distributed as dist

import cairn.torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "examples"))


def train(folder, name, steps, workers=0):
    """Trains in the run of that name, on these ranks. The work of each rank is added to a file. Returns the log."""
    import dataloader

    said = []
    logging.getLogger("cairn").addHandler(_List(said))
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{name}-{rank}-of-{ranks}.jsonl", "a", encoding="utf-8") as f:
        for step, epoch, numbers, data in dataloader.train(f"{folder}/{name}", steps, workers=workers):
            print(json.dumps([step, epoch, numbers, data.tolist()]), file=f)
    cairn.torch.close()
    return said


class _List(logging.Handler):
    def __init__(self, to):
        super().__init__()
        self.to = to

    def emit(self, record):
        self.to.append(record.getMessage())


def compared(folder, name, ranks, first, end, noise):
    """Compares the steps of a run from first to end with those of the undisturbed run, which had two ranks.

    The samples of a step are the same, and no sample comes twice in an epoch. noise: so is the data of each rank.
    """
    wrong = []
    want, got = _steps(folder, "undisturbed", 2), _steps(folder, name, ranks)
    if sorted(got) != list(range(first, end)):
        wrong.append(f"{name} on {ranks} ranks has made the steps {sorted(got)}, not {first} to {end - 1}")
    for step in got:
        epoch, samples, data = got[step]
        if (epoch, sorted(samples)) != (want[step][0], sorted(want[step][1])):
            wrong.append(f"{name}, step {step}: epoch {epoch}, samples {samples}; want {want[step][:2]}")
        if noise and data != want[step][2]:
            wrong.append(f"{name}, step {step}: the data differs: {data} and {want[step][2]}")
    for epoch in {epoch for epoch, _, _ in want.values()}:
        seen = [n for e, samples, _ in want.values() if e == epoch for n in samples]
        if len(seen) != len(set(seen)):
            wrong.append(f"a sample of epoch {epoch} comes twice: {sorted(seen)}")
    return wrong


def _steps(folder, name, ranks):
    """Returns the epoch, the samples of all ranks and their data, by step."""
    out = {}
    for rank in range(ranks):
        with open(f"{folder}/{name}-{rank}-of-{ranks}.jsonl", encoding="utf-8") as f:
            for step, epoch, numbers, data in map(json.loads, f):
                _, samples, all_data = out.setdefault(step, (epoch, [], []))
                samples += numbers
                all_data.append(data)
    return out
