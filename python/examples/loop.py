"""A training loop that saves in the background, and goes on with the newest checkpoint when it is started again.

    python loop.py RUN STEPS
"""

import sys

import torch

import cairn
import cairn.torch


def train(model, optimizer, loss_of, steps, run="run"):              # import cairn, cairn.torch
    state = {"model": model, "optim": optimizer, "step": -1}         # modules, optimizers, nested dicts, DTensors
    if path := cairn.latest(run, wait=True):                         # None if there is no checkpoint yet
        cairn.torch.load(state, path)                                # any number of ranks, any sharding, any format
    save = None
    for step in range(state["step"] + 1, steps):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            if save:
                save.result()                                        # the checkpoint is complete, or this raises
            state["step"] = step
            save = cairn.torch.async_save(state, f"{run}/step-{step}", step=step)    # returns once the state is copied
    if save:
        save.result()


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def loss_of(model, step):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        return loss

    train(model, torch.optim.AdamW(model.parameters()), loss_of, int(sys.argv[2]), sys.argv[1])


if __name__ == "__main__":
    main()
