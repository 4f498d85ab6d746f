"""Runs a program that trains with FSDP2: example.py PROGRAM ARGS.

FSDP2 of PyTorch 2.6 lacks something on a CPU: streams with events, and weights that are
gathered again for the backward pass. This adds the one and leaves out the other.
"""

import functools
import runpy
import sys

import torch
import torch.distributed.fsdp

if not hasattr(torch.cpu.Stream, "record_event"):
    torch.cpu.Stream.record_event = lambda self, event=None: event or torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda self, event: None
    torch.distributed.fsdp.fully_shard = functools.partial(torch.distributed.fsdp.fully_shard, reshard_after_forward=False)

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
