"""Answers the requests of the Go tests: one JSON object a line, in and out.

PyTorch takes seconds to import, so that is done once; each request then runs
in processes of its own, which are forked from this one. A request names a
function of a module beside this file, its arguments, and how many ranks call
it; with several they are a gloo group. The answer holds the result of rank 0,
or the errors of all ranks. Paths are relative to the working directory.
The arguments are modules to import once, too.
"""

import compileall
import contextlib
import datetime
import faulthandler
import importlib
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings

import numpy  # noqa: F401 -- imported before the forks
import safetensors.torch  # noqa: F401
import torch
import torch.distributed
import torch.distributed.checkpoint
import torch.distributed.tensor

# Modules that each process would otherwise import late, again and again.
EAGER = ("torch._dynamo", "torch.distributed.checkpoint._fsspec_filesystem", "torch.utils.serialization", "saves",
         "loads", "cairn.torch.dcp", "device")
LIMIT = 900  # seconds that a request may take, also on a busy machine


def main():
    compileall.compile_dir("py", quiet=2)
    sys.path.insert(1, os.path.abspath(os.path.join("py", "with_torch")))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for module in (*EAGER, *sys.argv[1:]):
        with contextlib.suppress(Exception):  # a request that needs it says why
            importlib.import_module(module)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints does not disturb the answers
    for number, line in enumerate(sys.stdin):
        print(json.dumps(answer(number, json.loads(line), out.fileno())), file=out, flush=True)


def answer(number, request, out):
    ranks = request["ranks"]
    pipes = {}
    end, alive = os.pipe()
    for rank in range(ranks):
        receive, send = os.pipe()
        stack = tempfile.TemporaryFile()  # noqa: SIM115 -- the child writes to it
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(LIMIT - 10, file=stack)
            for fd in (receive, alive, out):
                os.close(fd)
            child(number, request, rank, ranks, send, end)
        os.close(send)
        pipes[receive] = (rank, pid, stack)
    said = gather(pipes)
    os.close(end)
    os.close(alive)
    errors = [f"rank {rank}: {said[rank].get('error')}" for rank in range(ranks) if "result" not in said[rank]]
    if errors:
        return {"error": "\n".join(errors)}
    return {"result": said[0]["result"]}


def child(number, request, rank, ranks, send, end):
    """Performs the request and says so; then waits for its end, or its parent's."""
    try:
        said = {"result": perform(number, request, rank, ranks)}
    except BaseException:  # PyTorch's CheckpointException is no Exception
        said = {"error": traceback.format_exc()}
    with os.fdopen(send, "w", encoding="utf-8") as f:
        json.dump(said, f)
    sys.stderr.flush()
    os.read(end, 1)  # a rank that leaves before the others would disturb gloo
    os._exit(0)


def perform(number, request, rank, ranks):
    module, function = request["call"].split(".")
    call = getattr(importlib.import_module(module), function)
    if ranks == 1:
        return call(**request["args"])
    torch.distributed.init_process_group(
        "gloo",
        init_method="file://" + os.path.abspath(f".group-{os.getppid()}-{number}"),  # two workers may share the folder
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=LIMIT / 2),
    )
    return call(**request["args"])


def gather(pipes):
    """Returns the answer of each rank, by rank. No rank outlives the call."""
    end = time.monotonic() + LIMIT
    data = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as wait:
        for fd in pipes:
            wait.register(fd, selectors.EVENT_READ)
        while wait.get_map() and time.monotonic() < end:
            for key, _ in wait.select(max(0, end - time.monotonic())):
                more = os.read(key.fd, 1 << 20)
                data[key.fd] += more
                if not more:
                    wait.unregister(key.fd)
    said = {}
    for fd, (rank, pid, stack) in pipes.items():
        os.close(fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        try:
            said[rank] = json.loads(data[fd])
        except ValueError:
            why = "died" if time.monotonic() < end else f"took more than {LIMIT} seconds"
            stack.seek(0)
            said[rank] = {"error": f"{why}, after {len(data[fd])} bytes of an answer\n{stack.read().decode()}"}
        stack.close()
    return said


if __name__ == "__main__":
    main()
