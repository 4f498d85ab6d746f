"""Trains, and saves when a signal announces the end of the job. Started again, it goes on after the step that it saved.

    torchrun --nproc-per-node 2 preempt.py --folder run --steps 1000 --grace 90

It exits with 75 if a signal has ended it before the last step, so that a script can start it again.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import cairn
import cairn.torch


def train(args, model, optimizer, state):
    """Trains to the last step, or until a signal comes. It returns True if the last step was made."""
    save = None  # the save that may be under way
    with cairn.torch.on_signal([signal.SIGTERM, signal.SIGUSR1], grace=args.grace) as preempt:
        for step in range(state["step"] + 1, args.steps):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(args.pause)
            state["step"], last = step, step + 1 == args.steps
            if not dist.is_initialized() or dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.6f}", flush=True)

            if preempt.requested():                              # on all ranks, at the same step
                preempt.save(state, f"{args.folder}/step-{step}", step=step)
                return last
            if (step + 1) % args.every == 0 or last:
                if save:
                    save.result()
                save = cairn.torch.async_save(state, f"{args.folder}/step-{step}", step=step)
        if save:
            save.result()
    return True


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--folder", default="run", help="the folder of the checkpoints, which all ranks see")
    args.add_argument("--steps", type=int, default=1000, help="the step to end at")
    args.add_argument("--every", type=int, default=100, help="the number of steps from save to save")
    args.add_argument("--grace", type=float, help="the seconds from the signal to the end of the job")
    args.add_argument("--pause", type=float, default=0, help="seconds to sleep in each step, to try it out")
    args = args.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optim": optimizer, "step": -1}
    found = [cairn.latest(args.folder, wait=True)]               # savers of the job before may still be writing
    if dist.is_initialized():
        dist.broadcast_object_list(found)                        # the result of rank 0 counts
    if found[0]:
        cairn.torch.load(state, found[0])
    complete = train(args, model, optimizer, state)
    cairn.torch.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(0 if complete else 75)


if __name__ == "__main__":
    main()
