"""The recipe of docs/frameworks.md for accelerate."""

import os
import sys

import accelerate
import torch

import cairn
import cairn.torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "examples"))

import recipes


def resumed(folder):
    """Trains, saves, trains again from the checkpoint, and returns the differences."""
    def begin(compiled):
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        if compiled:
            model = torch.compile(model, backend="eager")
        return (accelerator, *accelerator.prepare(model, optimizer))

    def train(accelerator, model, optimizer, steps):
        losses = []
        for step in steps:
            loss = model(torch.full((2, 4), float(step))).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    job = begin(compiled=False)
    train(*job, range(5))
    recipes.with_accelerate(*job, folder + "/step-4", 4).result()
    want = train(*job, range(5, 9))
    wrong = []
    for compiled in (False, True):
        job = begin(compiled)
        first = recipes.from_accelerate(*job, folder + "/step-4")
        got = train(*job, range(first, 9))
        if got != want:
            wrong.append(f"compiled {compiled}: the losses {got}, not {want}")
    cairn.torch.close()
    return wrong
