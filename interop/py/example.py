"""Runs a program that trains with FSDP2: example.py PROGRAM ARGS.

FSDP2 of PyTorch 2.6 cannot train on a CPU: its streams have no events, it cannot gather the
weights again for the backward pass, and gloo adds up gradients that it should average. This
corrects the first and the last, and keeps the weights.
"""

import functools
import runpy
import sys

import torch
import torch.distributed.fsdp

if not hasattr(torch.cpu.Stream, "record_event"):
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    torch.cpu.Stream.record_event = lambda self, event=None: event or torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda self, event: None
    torch.distributed.fsdp.fully_shard = functools.partial(torch.distributed.fsdp.fully_shard,
                                                           reshard_after_forward=False)
    _fsdp_collectives._get_gradient_divide_factors = lambda group, *_: (group.size(), 1)

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
