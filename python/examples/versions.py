"""Sends weights from a trainer to servers, version by version, and compares them to the last bit.

    python3 versions.py

A trainer of 2 processes publishes versions of a small model. Two servers follow: one of 2 processes with columns, and
one process with whole tensors. The program kills a server and the trainer, starts them again, and damages a version.
Every version that a server reports must be the trainer's.
"""

import argparse
import collections
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, zeros
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import cairn
import cairn.torch

SHAPES = {"embed": (512, 384), "layers.0.w": (384, 384), "layers.1.w": (384, 384), "norm": (384,)}
LIMIT = 400  # seconds


def model_of(placement):
    """Returns the tensors of this rank: DTensors, or whole tensors without a placement."""
    if placement is None:
        return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: zeros(shape, dtype=torch.bfloat16, device_mesh=mesh,
                        placements=[placement if len(shape) > 1 else Shard(0)]) for name, shape in SHAPES.items()}


def each(model):
    """Yields the number of each tensor, the bits that this rank has, and their places in the whole tensor."""
    for number, (name, shape) in enumerate(SHAPES.items()):
        t = model[name]
        offsets = [0] * len(shape)
        if hasattr(t, "device_mesh"):
            _, offsets = compute_local_shape_and_global_offset(t.shape, t.device_mesh, t.placements)
            t = t.to_local()
        places = torch.arange(offsets[0], offsets[0] + t.shape[0])
        if len(shape) > 1:
            places = places[:, None] * shape[1] + torch.arange(offsets[1], offsets[1] + t.shape[1])
        yield number, t.view(torch.int16), places


def mix(*numbers):
    """Returns numbers that look random and depend on all bits of the arguments, which are integers and tensors."""
    h = torch.tensor(0x1e3779b97f4a7c15)
    for n in numbers:
        h = (h ^ n) * -0x40a7b892e31b1a47
        h = (h ^ (h >> 27)) * -0x6b2fb644ecceee15
        h = h ^ (h >> 31)
    return h


def train_step(model, step):
    """Changes about one element in a hundred, and all of them in the first step."""
    for number, bits, places in each(model):
        r = mix(step, number, places)
        if step == 1:
            bits.copy_((0x3c00 + r % 512).to(torch.int16))
        else:
            bits ^= torch.where(r % 100 == 0, 1 + (r >> 32) % 7, 0).to(torch.int16)


def digest(model):
    """Returns the sum of a hash of each element and its place: of all ranks, it does not depend on the sharding."""
    return sum(int(mix(number, places, bits.to(torch.int64)).sum()) for number, bits, places in each(model))


def say(**message):
    print(json.dumps(message), flush=True)


def join(meet):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size)


def train(args):
    """Is a rank of the trainer: it continues from its newest checkpoint, and publishes its weights."""
    join(args.meet)
    model = model_of(Shard(0))
    run, state = os.path.join(args.folder, "weights"), {"model": model, "step": 0}
    checkpoints = cairn.Run(os.path.join(args.folder, "checkpoints"), keep="last 2", alone=True)
    # Versions ascend. A killed trainer's savers may still complete one.
    found = [None if (path := cairn.latest(run, wait=True)) is None else cairn.open(path).step]
    dist.broadcast_object_list(found)
    first = (found[0] or 0) + 1
    try:
        cairn.torch.load(state, checkpoints)
        say(event="resumed", version=first, step=state["step"])
    except cairn.NotFoundError:
        pass
    for version in range(first, args.versions + 1):
        state["step"] += 1
        train_step(model, state["step"])
        say(event="trained", version=version, digest=digest(model))
        cairn.torch.publish(model, run, version=version).result()
        if state["step"] % 4 == 0:
            cairn.torch.save(state, checkpoints, step=state["step"])
        say(event="published", version=version)
        while version == args.hold and not os.path.exists(os.path.join(args.folder, "go")):
            time.sleep(0.02)
    dist.destroy_process_group()


def serve(args):
    """Is a rank of a server: it follows until the last version."""
    if args.layout == "columns":
        join(args.meet)
    model = model_of(Shard(1) if args.layout == "columns" else None)
    weights = cairn.torch.follow(os.path.join(args.folder, "weights"))
    while weights.version != args.versions:
        weights.wait(interval=0.02)
        try:
            report = weights.update(model)
        except (cairn.CorruptError, cairn.NotFoundError, cairn.ChangedError) as e:
            say(event="failed", error=str(e))  # the model stays as it is, and serves on
            continue
        say(event="updated", version=report.version, digest=digest(model), read=report.bytes_read,
            pause=report.pause_seconds, tried=report.tried)
    if args.layout == "columns":
        dist.destroy_process_group()


class Job:
    """The ranks of a trainer or a server."""

    def __init__(self, name, ranks, *words):
        self.name, self.ranks, self.words, self.turn, self.processes = name, ranks, words, 0, []

    def start(self, args, events):
        self.turn += 1
        meet = os.path.join(args.folder, f"meet-{self.name}-{self.turn}")
        self.killed, self.processes = False, []
        for rank in range(self.ranks):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.ranks), "GLOO_SOCKET_IFNAME": "lo",
                   "OMP_NUM_THREADS": "1"}
            p = subprocess.Popen([sys.executable, __file__, *self.words, f"--folder={args.folder}", f"--meet={meet}",
                                  f"--versions={args.versions}"], stdout=subprocess.PIPE, text=True, env=env)
            self.processes.append(p)
            threading.Thread(target=self._read, args=(p, self.turn, rank, events), daemon=True).start()

    def _read(self, p, turn, rank, events):
        for line in p.stdout:
            if line.startswith("{"):
                events.put((self, turn, rank, json.loads(line)))
        p.stdout.close()
        events.put((self, turn, rank, {"event": "ended", "status": p.wait()}))

    def kill(self):
        self.killed = True
        for p in self.processes:
            p.kill()


class Demo:
    """Starts the jobs, disturbs them, and notes their messages."""

    def __init__(self, args):
        self.args, self.events = args, queue.Queue()
        n = args.versions
        self.kill_server, self.damaged, self.kill_trainer = n // 5, n * 2 // 5, n * 7 // 10
        self.trainer = Job("trainer", 2, "--role=trainer", f"--hold={self.damaged}")
        self.columns = Job("columns", 2, "--role=server", "--layout=columns")
        self.whole = Job("whole", 1, "--role=server", "--layout=whole")
        self.parts, self.trained, self.reports = collections.defaultdict(list), {}, []
        self.failed, self.resumed, self.ended = 0, None, 0

    def run(self):
        jobs, end = (self.trainer, self.columns, self.whole), time.monotonic() + LIMIT
        try:
            for job in jobs:
                job.start(self.args, self.events)
            while {r["server"] for r in self.reports if r["version"] == self.args.versions} < {"columns", "whole"}:
                self.heard(*self.events.get(timeout=max(0.1, end - time.monotonic())))
        finally:
            for job in jobs:
                job.kill()
            for job in jobs:
                for p in job.processes:
                    p.wait()
        return self.compare()

    def heard(self, job, turn, rank, m):
        """Takes a message of a rank, and disturbs the jobs."""
        event, version = m["event"], m.get("version")
        if event == "ended" and turn == job.turn:
            if m["status"] and not job.killed:
                raise SystemExit(f"rank {rank} of the {job.name} has failed")
            self.ended += job is self.trainer and job.killed
            if self.ended == job.ranks:
                self.ended = 0
                job.start(self.args, self.events)
        elif event in ("trained", "updated"):
            parts = self.parts[job, turn, event, version]
            parts.append(m)
            if len(parts) == job.ranks:
                self.together(job, turn, event, version, parts)
                del self.parts[job, turn, event, version]
        elif event == "resumed":
            self.resumed = version
        elif event == "failed":
            self.failed += rank == 0
        elif event == "published" and rank == 0:
            self.published(version)

    def together(self, job, turn, event, version, parts):
        """Takes the messages of all ranks of a job about a version."""
        total = sum(p["digest"] for p in parts) % (1 << 64)
        if event == "trained":
            self.trained[version] = total
            return
        tried = [t for p in parts for t in p["tried"]]
        self.reports.append({"server": job.name, "turn": turn, "version": version, "digest": total, "tried": tried,
                             "read": sum(p["read"] for p in parts), "pause": max(p["pause"] for p in parts)})
        if job is self.whole and turn == 2 and not os.path.exists(go := os.path.join(self.args.folder, "go")):
            print(f"version {version}: the server with whole tensors is back, after {len(tried)} attempts", flush=True)
            with open(go, "w"):
                pass

    def published(self, version):
        first = self.trainer.turn == 1
        if first and version == self.kill_server:
            print(f"version {version}: kills the server with whole tensors", flush=True)
            self.whole.kill()
        elif first and version == self.damaged:
            print(f"version {version}: damages it, and starts the server with whole tensors again", flush=True)
            self.damage(version)
            self.whole.start(self.args, self.events)
        elif first and version == self.kill_trainer:
            print(f"version {version}: kills the trainer", flush=True)
            self.trainer.kill()

    def damage(self, version):
        """Changes a byte in the largest file of a version."""
        folder = os.path.join(self.args.folder, "weights", f"step-{version:09}")
        path = max((entry.path for entry in os.scandir(folder) if entry.is_file()), key=os.path.getsize)
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 0x20]))

    def compare(self):
        """Prints a table, and returns the problems."""
        wrong = [f"{r['server']} reports version {r['version']}, which is not the trainer's" for r in self.reports
                 if r["digest"] != self.trained.get(r["version"])]
        if self.resumed is None:
            wrong.append("the trainer has not resumed")
        if not any(r["tried"] for r in self.reports):
            wrong.append("no server has noticed the damaged version")
        print(f"the trainer has published {self.args.versions} versions, and has resumed with version {self.resumed}")
        print(f"{'server':>10} {'versions':>10} {'read first':>12} {'read later':>12} {'pause':>10}")
        for name in "columns", "whole":
            mine = [r for r in self.reports if r["server"] == name]
            later = sorted(r["read"] for r in mine[1:])
            pause = max(r["pause"] for r in mine)
            print(f"{name:>10} {len(mine):>10} {mine[0]['read']:>12} {later[len(later) // 2]:>12} {pause:>9.4f}s")
        print(f"updates that failed, after which a server kept its version: {self.failed}")
        print("(the server that was started again cannot read the damaged version, nor versions that refer to it,\n"
              "until a version is written in full; the other server has the damaged version in memory, and goes on)")
        print(f"versions that were compared: {len(self.reports)}, that differ: {len(wrong)}")
        return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--role", choices=("trainer", "server"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--layout", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        try:
            (train if args.role == "trainer" else serve)(args)
        finally:
            cairn.torch.close()
        return
    args.folder = tempfile.mkdtemp(prefix="cairn-versions-")
    try:
        if wrong := Demo(args).run():
            raise SystemExit("\n".join(wrong))
    finally:
        shutil.rmtree(args.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
