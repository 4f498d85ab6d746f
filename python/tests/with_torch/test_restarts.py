"""Jobs with checkpoints in memory that are started again: under torchrun, and by the script for Slurm and the manifest
for Kubernetes of docs/memory.md, with stand-ins for srun, scontrol and the kubelet. Each rank is a host of its own.
"""

import contextlib
import os
import pathlib
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import unittest

import torch

from device import Case, join, slow, spawn
from test_schedulers import EXAMPLES, Scheduler, _has

# Runs a command once for each task, each on a node of its own. If a task fails, or the step is over, it kills all
# processes of the step, also those that tasks have left, as srun and Slurm do.
SRUN = """
import glob, os, signal, subprocess, sys, time
command = sys.argv[1:]
kill = "--kill-on-bad-exit=1" in command
while command[0].startswith("--"):
    command.pop(0)
step = f"STAND_IN_STEP={os.getpid()}"
os.environ["STAND_IN_STEP"] = str(os.getpid())
tasks = [subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0",
                                        "CAIRN_MEMORY": os.environ["STAND_IN_MEMORY"] + f"/node-{rank}"})
         for rank in range(int(os.environ["SLURM_NTASKS"]))]
while any(t.poll() is None for t in tasks) and not (kill and any(t.returncode for t in tasks)):
    time.sleep(0.02)
def left():
    for name in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(name, "rb") as f:
                if step.encode() in f.read().split(b"\\0"):
                    yield int(name.split("/")[2])
        except OSError:
            pass
while pids := [pid for pid in left() if pid != os.getpid()]:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for t in tasks:
        t.poll()
    time.sleep(0.02)
sys.exit(max(t.wait() and 1 for t in tasks))
"""

# Starts one rank, and two hosts in all, which are both this one.
CAIRN = """
import os, sys
words = sys.argv[1:]
if words[0] == "launch":
    for flag, value in ("-n", "1"), ("--nnodes", "2"), ("--master-addr", "127.0.0.1"):
        words[words.index(flag) + 1] = value
    words[words.index("--master-port") + 1] = os.environ["STAND_IN_PORT"]
os.execv(os.environ["CAIRN_BINARY"], ["cairn", *words])
"""


class Restarts(Scheduler):
    def setUp(self):
        super().setUp()
        for name, program in (("srun", SRUN), ("cairn", CAIRN)):
            path = pathlib.Path(self.path("bin")) / name
            path.write_text(f"#!{sys.executable}\n{program}")
            path.chmod(0o755)
        shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.memory = tempfile.mkdtemp(prefix="cairn-test-", dir=shm)
        self.addCleanup(shutil.rmtree, self.memory, ignore_errors=True)
        self.env.update(STAND_IN_MEMORY=self.memory, USE_LIBUV=self.env.get("USE_LIBUV", "0"))
        # The scripts start memory.py, which is one that takes its time here.
        program = f"""
            import os, runpy, sys
            if "CAIRN_MEMORY" not in os.environ:
                os.environ["CAIRN_MEMORY"] = os.environ["STAND_IN_MEMORY"] + "/node-" + os.environ["RANK"]
            sys.argv += ["--folder", {self.run_folder!r}, "--memory-every=1", "--pause=0.05"]
            sys.argv += ["--steps", open({self.path("steps")!r}).read()]
            runpy.run_path({str(EXAMPLES / "memory.py")!r}, run_name="__main__")
        """
        pathlib.Path(self.path("memory.py")).write_text(textwrap.dedent(program))
        self.losses = {}

    def reads(self, count, resumes, of=None):
        """Reads so many lines with losses, all of the same steps equal, after the line that says where the job has
        resumed, if it has to. Returns that step."""
        resumed = None
        for line in of or self.script.stdout:
            line = re.sub(r"^\[\d+\] ", "", line)  # cairn launch writes the rank before it
            if m := re.match(r"resume (\d+)", line):
                resumed = int(m[1])
            elif m := re.match(r"step (\d+) loss (.*)", line):
                step, loss = int(m[1]), float(m[2])
                self.assertAlmostEqual(self.losses.setdefault(step, loss), loss, 4, f"step {step}")
                if resumed is not None or not resumes:
                    count -= 1
                    if count == 0:
                        break
        if resumes:
            self.assertIsNotNone(resumed, self.said())
        return resumed

    def processes(self, *marks):
        """Returns the processes of the job with these variables."""
        marks = [f"STAND_IN={self.folder}".encode(), *(m.encode() for m in marks)]
        found = pathlib.Path("/proc").glob("[0-9]*/environ")
        return [int(p.parent.name) for p in found if all(_has(p, m) for m in marks)]

    def kill_rank(self, rank):
        """Kills a rank, and not its saver."""
        for pid in set(self.processes(f"RANK={rank}")) - set(self.processes("CAIRN_SAVER=1")):
            os.kill(pid, signal.SIGKILL)

    def check(self, steps):
        """Compares the losses with those of a training that nothing has disturbed, and looks into the memory."""
        program = runpy.run_path(str(EXAMPLES / "memory.py"))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(1, steps + 1):
            want = program["train_step"](model, optimizer, step)
            self.assertAlmostEqual(self.losses[step], want, 4, f"step {step}")
        self.assertFalse(os.path.exists(self.run_folder), "there is no durable checkpoint to go on with")
        left = [os.path.join(above, name) for above, _, names in os.walk(self.memory) for name in names]
        self.assertEqual({os.path.basename(name) for name in left}, {"host"}, left)


def train_on(rank, folder, meet, hosts, steps, dies):
    """Trains as a rank of memory.py on hosts. In the step 8, when step 7
    has its copies, one of them is lost, with its saver and its files."""
    os.environ.update(CAIRN_MEMORY=os.path.join(folder, f"host-{hosts[rank]}"), CAIRN_RUN="job 7")
    join("gloo", meet, rank, len(hosts))
    program = runpy.run_path(str(EXAMPLES / "memory.py"))
    make_step = program["train_step"]

    def train_step(model, optimizer, step):
        if step == 8 and hosts[rank] == dies:
            copied = [pathlib.Path(folder, f"host-{host}") for host in hosts]
            end = time.monotonic() + 120
            while not all(any(host.glob("**/step-000000007/cairn.json")) for host in copied):
                assert time.monotonic() < end, "step 7 has no copies after two minutes"
                time.sleep(0.05)
            for children in pathlib.Path("/proc/self/task").glob("*/children"):
                for pid in children.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            shutil.rmtree(os.environ["CAIRN_MEMORY"])
            os.kill(os.getpid(), signal.SIGKILL)
        loss = make_step(model, optimizer, step)
        with open(os.path.join(folder, "losses"), "a") as f:
            f.write(f"{step} {loss}\n" if rank == 0 else "")
        return loss

    program["train"].__globals__["train_step"] = train_step
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    args = types.SimpleNamespace(folder=os.path.join(folder, "run"), steps=steps, every=500, memory_every=1, pause=0.3)
    program["train"](args, model, torch.optim.AdamW(model.parameters()))


class Hosts(Case):
    def test_one_of_four_hosts_is_lost(self):
        """The others go on from the step before, with equal losses."""
        for meet in "first", "second":
            os.mkdir(self.path(meet))
        with self.assertRaises(Exception):  # noqa: B017  # of torch, and of no one class
            spawn(4, train_on, self.folder, self.path("first"), [0, 1, 2, 3], 12, 2)
        first = [line.split() for line in pathlib.Path(self.path("losses")).read_text().splitlines()]
        os.remove(self.path("losses"))
        spawn(3, train_on, self.folder, self.path("second"), [3, 0, 1], 12, None)
        second = [line.split() for line in pathlib.Path(self.path("losses")).read_text().splitlines()]

        self.assertEqual([int(step) for step, _ in first][:7], list(range(1, 8)))
        self.assertEqual(int(second[0][0]), 8)
        torch.manual_seed(0)
        program = runpy.run_path(str(EXAMPLES / "memory.py"))
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        want = {step: program["train_step"](model, optimizer, step) for step in range(1, 13)}
        self.assertEqual(int(second[-1][0]), 12)
        for step, loss in first[:7] + second:
            self.assertAlmostEqual(float(loss), want[int(step)], 4, f"step {step}")


class Torchrun(Restarts):
    def command(self, ranks):
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", "2",
                "--rdzv-id", "job-17", "--local-addr", "127.0.0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                self.path(f"meet-{time.monotonic_ns()}"), "--rdzv-conf", "store_type=file", "memory.py"]

    @slow
    def test_ranks_and_hosts_are_lost(self):
        self.start(self.command(2), 100000)
        self.reads(8, resumes=False)
        self.kill_rank(1)  # torchrun starts all ranks again
        resumed = self.reads(6, resumes=True)
        self.assertGreaterEqual(resumed, 1)

        last = max(self.losses)
        self.kill_all()  # also savers: only the files are left
        self.script.wait(200)
        self.start(self.command(2), 100000)
        resumed = self.reads(6, resumes=True)
        self.assertGreaterEqual(resumed, last - 6)

        last = max(self.losses)
        self.kill_all()
        self.script.wait(200)
        shutil.rmtree(os.path.join(self.memory, "node-1"))  # a host is lost, and the job goes on with fewer ranks
        self.start(self.command(1), last + 10)
        self.assertGreaterEqual(self.reads(-1, resumes=True), 1)
        self.assertEqual(self.script.wait(200), 0, self.said())
        self.check(last + 10)


class Slurm(Restarts):
    @slow
    def test_a_step_is_started_again(self):
        """A task fails, Slurm kills the step, also its savers, and the script starts the next step of the job."""
        self.start(["sh", str(EXAMPLES / "memory.sh")], 100000)
        self.reads(8, resumes=False)
        pathlib.Path(self.path("steps")).write_text(str(max(self.losses) + 15))  # of the next start
        self.kill_rank(1)
        self.assertGreaterEqual(self.reads(-1, resumes=True), 1)
        self.assertEqual(self.script.wait(200), 0, self.said())
        self.check(int(pathlib.Path(self.path("steps")).read_text()))


class Kubernetes(Restarts):
    UID = "6f1e2c3a-0000-4000-8000-0123456789ab"

    def manifest(self):
        """Returns the command of the container in memory.yaml, its environment, and where its volume in memory is."""
        text = (EXAMPLES / "memory.yaml").read_text()
        self.assertIn("restartPolicy: OnFailure ", text)
        volume = re.search(r"- \{name: (\w+), emptyDir: \{medium: Memory, ", text)[1]
        mount = re.search(rf"- \{{name: {volume}, mountPath: (\S+)\}}", text)[1]
        args = re.search(r"command: \[sh, -c\]\n +args:\n +- \|\n((?: {14}.*\n)+)", text)[1]
        env = dict(re.findall(r"- \{name: (\w+), value: (\S+)\}", text))
        label = re.search(r"- \{name: (\w+), valueFrom: \{fieldRef: \{fieldPath: \"metadata.labels\['(.*)'\]\"\}", text)
        self.assertEqual(label[2], "batch.kubernetes.io/controller-uid")
        env[label[1]] = self.UID
        secret = re.search(r"- \{name: (\w+), valueFrom: \{secretKeyRef: ", text)
        env[secret[1]] = "the value in the Secret, which is long enough"
        return ["sh", "-c", textwrap.dedent(args)], env, mount

    def kubelet(self, pod):
        """Starts the container of a pod, again and again until it succeeds. Its processes end with the first one."""
        command, env, mount = self.manifest()
        volume = os.path.join(self.memory, f"node-{pod}")
        os.mkdir(volume)
        env = {**self.env, **env, "JOB_COMPLETION_INDEX": str(pod), "CONTAINER": f"container-{pod}"}
        self.assertTrue(env["CAIRN_MEMORY"].startswith(mount + "/"))
        env["CAIRN_MEMORY"] = volume + env["CAIRN_MEMORY"].removeprefix(mount)
        status = 1
        while status and not self.over:
            with open(self.path("said"), "a") as said, open(self.path(f"out-{pod}"), "a") as out:
                container = subprocess.Popen(command, cwd=self.folder, env=env, stdout=out, stderr=said)
            status = container.wait()
            self.starts[pod] += 1
            if self.starts[pod] == 10:
                self.over = True  # something is wrong with the manifest
            self.kill_container(pod)
            time.sleep(0.3)

    def kill_container(self, pod):
        while pids := self.processes(f"CONTAINER=container-{pod}"):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def follow(self):
        """Yields the lines that rank 0 prints, until all containers have ended."""
        with open(self.path("out-0")) as out:
            while True:
                ended = not any(p.is_alive() for p in self.pods)
                line = out.readline()
                if line.endswith("\n"):
                    yield line
                elif ended:
                    return
                else:
                    out.seek(out.tell() - len(line))
                    time.sleep(0.02)

    @slow
    def test_a_container_is_started_again_in_place(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.env["STAND_IN_PORT"] = str(s.getsockname()[1])
        for name in "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST":
            del self.env[name]
        steps = pathlib.Path(self.path("steps"))
        steps.write_text("100000")
        pathlib.Path(self.path("out-0")).touch()
        self.over, self.starts = False, [0, 0]
        self.script = subprocess.Popen(["true"])  # for kill_all
        self.script.wait()
        self.pods = [threading.Thread(target=self.kubelet, args=[pod]) for pod in range(2)]
        try:
            for p in self.pods:
                p.start()
            lines = self.follow()
            self.reads(8, resumes=False, of=lines)
            steps.write_text(str(max(self.losses) + 15))
            self.kill_container(1)  # with its saver; the other one ends because a rank is gone
            self.assertGreaterEqual(self.reads(-1, resumes=True, of=lines), 1)
        finally:
            self.over = True
            for pod in range(2):
                if self.pods[pod].is_alive() and sys.exc_info()[0]:
                    self.kill_container(pod)
                self.pods[pod].join(200)
        self.assertGreater(min(self.starts), 1, self.said())
        self.check(int(steps.read_text()))


if __name__ == "__main__":
    unittest.main()
