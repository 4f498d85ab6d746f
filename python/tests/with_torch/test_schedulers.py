"""The scripts for Slurm and Kubernetes of docs/running.md, with stand-ins for srun, scontrol and the kubelet."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
import unittest

import cairn
from device import ENV, Case, slow

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = next(p for p in (HERE.parent / "examples", HERE.parents[1] / "examples") if p.is_dir())

# Runs a command once for each task, passes signals on, and exits with the highest status, as srun does.
SRUN = """
import os, signal, subprocess, sys
command = sys.argv[1:]
while command[0].startswith("--"):
    command.pop(0)
tasks = []
for n in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(n, lambda n, frame: [t.send_signal(n) for t in tasks])
for rank in range(int(os.environ["SLURM_NTASKS"])):
    tasks.append(subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}))
with open(os.environ["STAND_IN"] + "/tasks", "w") as f:
    print(*(t.pid for t in tasks), file=f)
statuses = [t.wait() for t in tasks]
sys.exit(max(s if s >= 0 else 128 - s for s in statuses))
"""

SCONTROL = """
import os, sys
if sys.argv[1] == "requeue":
    with open(os.environ["STAND_IN"] + "/requeue", "a") as f:
        print(*sys.argv[2:], file=f)
else:
    print("localhost")
"""

# Starts two ranks on this host, whatever the number of hosts is, without libuv, which not every PyTorch has.
TORCHRUN = """
import os, sys
program = next(i for i, word in enumerate(sys.argv) if word.endswith(".py") and i > 0)
meet = os.environ["STAND_IN"] + f"/meet-{os.getpid()}"
os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--local-addr",
    "127.0.0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", meet, "--rdzv-conf", "store_type=file",
    *sys.argv[program:]])
"""


class Scheduler(Case):
    def setUp(self):
        super().setUp()
        bin = pathlib.Path(self.path("bin"))
        bin.mkdir()
        for name, program in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN), ("python", None)):
            text = f'#!/bin/sh\nexec {sys.executable} "$@"\n' if program is None else f"#!{sys.executable}\n{program}"
            (bin / name).write_text(text)
            (bin / name).chmod(0o755)
        self.run_folder = self.path("run")
        # The scripts start preempt.py, which is one that takes its time here.
        slow = f"""
            import runpy, sys
            sys.argv += ["--pause=0.05", "--steps", open({self.path("steps")!r}).read()]
            runpy.run_path({str(EXAMPLES / "preempt.py")!r}, run_name="__main__")
        """
        pathlib.Path(self.path("preempt.py")).write_text(textwrap.dedent(slow))
        self.env = {**ENV, "PATH": f"{bin}:{os.environ['PATH']}", "STAND_IN": self.folder, "RUN": self.run_folder,
                    "GLOO_SOCKET_IFNAME": "lo", "CAIRN_ARENA_BYTES": str(64 << 20), "OMP_NUM_THREADS": "1",
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "SLURM_JOB_ID": str(os.getpid()),
                    "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2",
                    "JOB_COMPLETION_INDEX": "0"}
        self.addCleanup(self.kill_all)

    def start(self, command, steps):
        """Starts a script, with steps that a training has in all."""
        pathlib.Path(self.path("steps")).write_text(str(steps))
        with open(self.path("said"), "a") as said:
            self.script = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=said,
                                           text=True, start_new_session=True)
        self.addCleanup(self.script.stdout.close)
        return self.script

    def until(self, count):
        """Reads the output of the script until it has made so many steps, or to its end. Returns the steps."""
        steps = []
        for line in self.script.stdout:
            if m := re.match(r"step (\d+) loss ", line):
                steps.append(int(m[1]))
                if len(steps) == count:
                    break
        return steps

    def ends(self):
        """Waits for the end of the script. Returns its status and its stderr."""
        self.until(-1)
        return self.script.wait(200), pathlib.Path(self.path("said")).read_text()

    def kill_all(self):
        """Kills all processes of the job, also savers, as Slurm and Kubernetes do at last."""
        mark = f"STAND_IN={self.folder}".encode()
        end = time.monotonic() + 100
        while found := [int(p.parent.name) for p in pathlib.Path("/proc").glob("[0-9]*/environ") if _has(p, mark)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.script.poll()
            if time.monotonic() > end:
                self.fail(f"processes {found} cannot be killed")
            time.sleep(0.05)

    def goes_on(self, command, saved, more=4):
        """Starts the script again. It goes on after a step, and ends."""
        self.start(command, saved + 1 + more)
        self.assertEqual(self.until(-1), list(range(saved + 1, saved + 1 + more)), self.said())
        self.assertEqual(self.script.wait(200), 0, self.said())

    def said(self):
        return pathlib.Path(self.path("said")).read_text()

    def newest(self):
        with cairn.open(cairn.latest(self.run_folder, wait=True)) as c:
            self.assertEqual((c.step, os.path.basename(c.path)), (c["step"], f"step-{c.step}"))
            return c.step


def _has(environ, mark):
    try:
        return mark in environ.read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


class Slurm(Scheduler):
    SCRIPT = ["sh", str(EXAMPLES / "slurm.sh")]

    @slow
    def test_the_time_is_up(self):
        """With --signal=B:USR1@120, Slurm sends SIGUSR1 to the script. Then the job is killed without notice."""
        self.start(self.SCRIPT, 100000)
        self.until(3)
        self.script.send_signal(signal.SIGUSR1)
        status, said = self.ends()
        self.kill_all()
        self.assertEqual(status, 75, said)
        self.assertRegex(said, r"was complete \d+\.\d s after SIGUSR1, \d+\.\d s before the deadline")
        self.assertEqual(pathlib.Path(self.path("requeue")).read_text(), f"{os.getpid()}\n")
        saved = self.newest()
        self.assertGreaterEqual(saved, 2)
        self.start(self.SCRIPT, 100000)
        self.assertEqual(self.until(2), [saved + 1, saved + 2])
        self.kill_all()  # savers too: the last complete checkpoint stays
        self.assertEqual(self.script.wait(200), -signal.SIGKILL)
        self.goes_on(self.SCRIPT, saved)
        self.assertEqual(len(pathlib.Path(self.path("requeue")).read_text().split()), 1)

    @slow
    def test_signals_to_the_tasks(self):
        """With --signal=USR1@120, and with scancel and pre-emption, the tasks get a signal, and the script does not."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            begun = self.newest() if os.path.exists(self.run_folder) else -1
            self.start(self.SCRIPT, 100000)
            self.assertEqual(self.until(3), list(range(begun + 1, begun + 4)))
            for pid in pathlib.Path(self.path("tasks")).read_text().split():
                os.kill(int(pid), number)
            status, said = self.ends()
            self.kill_all()
            self.assertEqual(status, 75, said)
            self.assertIn(f"after {number.name}, ", said)
            self.assertFalse(os.path.exists(self.path("requeue")))
            self.assertGreaterEqual(self.newest(), begun + 3)


class Kubernetes(Scheduler):
    def command(self):
        """Returns the command of the container in pod.yaml."""
        text = (EXAMPLES / "pod.yaml").read_text()
        args = re.search(r"command: \[sh, -c\]\n +args:\n +- \|\n((?: {14}.*\n)+)", text)[1]
        return ["sh", "-c", textwrap.dedent(args)]

    @slow
    def test_a_pod_is_deleted(self):
        """The kubelet sends SIGTERM to the first process of the container, and kills all of it when that has ended."""
        self.start(self.command(), 100000)
        self.until(3)
        self.script.send_signal(signal.SIGTERM)
        self.script.send_signal(signal.SIGTERM)  # a second one has no effect
        status, said = self.ends()
        self.kill_all()
        self.assertGreater(status, 0, said)  # so that the Job starts another pod
        self.assertRegex(said, r"was complete \d+\.\d s after SIGTERM, \d+\.\d s before the deadline")
        self.goes_on(self.command(), self.newest())


if __name__ == "__main__":
    unittest.main()
