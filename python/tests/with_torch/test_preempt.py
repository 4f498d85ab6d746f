"""Signals that announce the end of a job: to one rank, to all, twice, during a save, and a kill at the end."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import unittest
import warnings

import torch
import torch.utils.data

import cairn
import cairn.torch
from device import Case, noise, slow, start

# Trains until a signal comes. It prints the process id of its saver, "stop N", "staged" and "saved N".
TRAINER = """
import os, random, signal, sys, time
import torch
import cairn.torch
from device import join
folder, rank, ranks, grace = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
if ranks > 1:
    join("gloo", folder, rank, ranks)
w = torch.zeros(1 << 16)
step = 0
cairn.torch.save({"w": w, "step": step}, f"{folder}/run/step-{step}", step=step)
def async_save(*args, **kwargs):
    handle = cairn.torch.async_save(*args, **kwargs)
    print("staged", flush=True)
    return handle
cairn.torch._preempt.async_save = async_save
with cairn.torch.on_signal([signal.SIGTERM, signal.SIGUSR1], grace=grace or None, every=int(sys.argv[5])) as preempt:
    print(cairn.torch._job.job().saver.process.pid, flush=True)
    while not preempt.requested():
        time.sleep(random.random() / 100)
        step += 1
        w += 1
    print("stop", step, flush=True)
    report = preempt.save({"w": w, "step": step}, f"{folder}/run/step-{step}", step=step)
    print("saved", report.step, flush=True)
cairn.torch.close()
if ranks > 1:
    torch.distributed.destroy_process_group()
"""


class Job:
    """Ranks that train until a signal comes, in sessions of their own."""

    def __init__(self, case, ranks, grace=0.0, every=1):
        self.case, self.folder = case, case.path("job")
        os.makedirs(self.folder, exist_ok=True)
        self.errors = [open(f"{self.folder}/stderr-{rank}", "w+") for rank in range(ranks)]  # noqa: SIM115
        self.ranks = [start(TRAINER, self.folder, str(rank), str(ranks), str(grace), str(every),
                            stdout=subprocess.PIPE, stderr=self.errors[rank], text=True, start_new_session=True)
                      for rank in range(ranks)]
        case.addCleanup(self.end)
        self.savers = [int(self.line(rank)) for rank in range(ranks)]

    def line(self, rank):
        line = self.ranks[rank].stdout.readline().strip()
        if not line:
            self.case.fail(f"rank {rank} has ended:\n{self.said(rank)}")
        return line

    def said(self, rank=0):
        with open(f"{self.folder}/stderr-{rank}") as f:
            return f.read()

    def wait_for(self, text):
        end = time.monotonic() + 200
        while text not in self.said():
            if time.monotonic() > end:
                self.case.fail(f"rank 0 has not said {text!r}:\n{self.said()}")
            time.sleep(0.02)

    def stop(self):
        """Returns the step at which the ranks stop, which is the same on all."""
        lines = {self.line(rank) for rank in range(len(self.ranks))}
        self.case.assertEqual(len(lines), 1, lines)
        return int(re.fullmatch(r"stop (\d+)", lines.pop())[1])

    def saved(self, step):
        """Waits for the end of the ranks, which save a step."""
        for rank, process in enumerate(self.ranks):
            self.case.assertEqual([self.line(rank), self.line(rank)], ["staged", f"saved {step}"])
            self.case.assertEqual(process.wait(200), 0, self.said(rank))
        self.check(step)

    def check(self, step):
        end = time.monotonic() + 200
        # Savers that were stopped may not have begun yet: then there is nothing for which latest would wait.
        while os.path.basename(path := cairn.latest(f"{self.folder}/run", wait=True)) != f"step-{step}":
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        self.case.assertEqual(os.path.basename(path), f"step-{step}")
        state = {"w": torch.zeros(1 << 16), "step": -1}
        cairn.torch.load(state, path)
        self.case.assertEqual((state["step"], state["w"].unique().tolist()), (step, [step]))

    def end(self):
        for process in self.ranks:
            process.kill()
            process.wait()
            process.stdout.close()
        for saver in self.savers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(saver, signal.SIGCONT)
        for f in self.errors:
            f.close()


class Ranks(Case):
    def test_one_rank_gets_the_signal(self):
        job = Job(self, 3, grace=3600)
        job.ranks[2].send_signal(signal.SIGTERM)
        job.saved(job.stop())
        self.assertRegex(job.said(), r"SIGTERM reached rank 2 \d+\.\d s ago: .*, 3\d{3}\.\d s before the deadline")
        self.assertRegex(job.said(), r"was staged \d+\.\d s after SIGTERM")
        self.assertRegex(job.said(), r"was complete \d+\.\d s after SIGTERM, 3\d{3}\.\d s before the deadline")
        self.assertNotIn("SIGTERM", job.said(1) + job.said(2))

    @slow
    def test_all_ranks_get_a_signal_and_agree_in_each_third_call(self):
        job = Job(self, 2, every=3)
        for process, number in zip(job.ranks, (signal.SIGUSR1, signal.SIGTERM)):
            process.send_signal(number)
        step = job.stop()
        self.assertEqual(step % 3, 2)  # the calls are counted from 1, and the steps from 0
        job.saved(step)
        self.assertRegex(job.said(), r"was complete \d+\.\d s after SIG(USR1|TERM)\n")

    def test_signals_to_all_processes_during_the_save(self):
        job = Job(self, 2, grace=3600)
        for saver in job.savers:  # so that the save is not over before the signals come
            os.kill(saver, signal.SIGSTOP)
        os.killpg(job.ranks[1].pid, signal.SIGTERM)
        step = job.stop()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            for process in job.ranks:
                os.killpg(process.pid, number)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
            for saver in job.savers:
                os.kill(saver, number)
        job.saved(step)
        self.assertIn("s before the deadline", job.said())

    def test_a_kill_at_the_end_of_the_grace_period(self):
        job = Job(self, 2, grace=1)
        for saver in job.savers:
            os.kill(saver, signal.SIGSTOP)
        job.ranks[0].send_signal(signal.SIGTERM)
        step = job.stop()
        job.wait_for("is not complete")
        self.assertEqual([job.line(0), job.line(1)], ["staged", "staged"])
        for process in job.ranks:
            process.kill()
            process.wait()
        for saver in job.savers:
            os.kill(saver, signal.SIGCONT)
        job.check(step)
        self.assertRegex(job.said(), r"was staged .* s after SIGTERM")
        self.assertRegex(job.said(), r"is not complete, \d+\.\d s after SIGTERM, -?\d+\.\d s before the deadline: rank "
                                     r"0 has written 0 of \d+ bytes")

    @slow
    def test_a_save_that_is_late(self):
        job = Job(self, 1, grace=0.001)
        job.ranks[0].send_signal(signal.SIGTERM)
        job.saved(job.stop())
        self.assertRegex(job.said(), r"was complete \d+\.\d s after SIGTERM, \d+\.\d s after the deadline")


class Alone(Case):
    def setUp(self):
        super().setUp()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))

    def test_handlers_are_called_once_and_restored(self):
        called = []
        mine = lambda number, frame: called.append(number)  # noqa: E731
        signal.signal(signal.SIGUSR1, mine)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        with cairn.torch.on_signal([signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1], grace=1000) as preempt:
            self.assertIsNone(preempt.left())
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
                signal.raise_signal(number)
            self.assertTrue(preempt.requested() and preempt.requested())
            self.assertTrue(900 < preempt.left() <= 1000)
        self.assertEqual(called, [signal.SIGUSR1])
        self.assertEqual((signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)), (mine, signal.SIG_IGN))
        preempt.close()

    def test_a_handler_that_was_set_later_stays(self):
        preempt = cairn.torch.on_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        preempt.close()
        self.assertEqual(signal.getsignal(signal.SIGUSR1), signal.SIG_IGN)

    def test_children(self):
        """A child does not die of an announcement, and SIGTERM ends it as before."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        with cairn.torch.on_signal([signal.SIGTERM, signal.SIGUSR1]) as preempt:
            pid = os.fork()
            if pid == 0:
                signal.raise_signal(signal.SIGUSR1)
                signal.raise_signal(signal.SIGTERM)
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), -signal.SIGTERM)
            self.assertFalse(preempt.requested())
            self.assertEqual(signal.getsignal(signal.SIGTERM), preempt._note)

    def test_workers_of_a_data_loader(self):
        """Forked workers do not die of an announcement. SIGTERM ends them."""
        with cairn.torch.on_signal([signal.SIGTERM, signal.SIGUSR1]) as preempt:
            loader = torch.utils.data.DataLoader(range(1000), num_workers=1, multiprocessing_context="fork")
            batches = iter(loader)
            next(batches)
            (worker,) = (w.pid for w in batches._workers)
            os.kill(worker, signal.SIGUSR1)
            self.assertEqual(next(batches).item(), 1)
            self.assertFalse(preempt.requested())
            os.kill(worker, signal.SIGTERM)
            with self.assertRaises((RuntimeError, OSError, EOFError)):
                for _ in batches:
                    pass

    def test_a_save_without_a_signal_and_one_that_fails(self):
        with cairn.torch.on_signal(signal.SIGUSR1, grace=1000) as preempt:
            with self.assertLogs("cairn", "WARNING") as said:
                self.assertEqual(preempt.save({"w": noise((3,))}, self.path(), step=4, format="torchdcp").step, 4)
            self.assertRegex(said.output[-1], "was complete without a signal$")
            signal.raise_signal(signal.SIGUSR1)
            self.assertTrue(preempt.requested())
            with self.assertRaises(cairn.ExistsError), self.assertLogs("cairn", "ERROR") as said:
                preempt.save({"w": noise((3,))}, self.path(), step=5)
            self.assertRegex(said.output[-1], "has failed, .* s after SIGUSR1: ExistsError")

    def test_a_save_that_failed_before(self):
        cairn.torch.save({"w": noise((3,))}, self.path("other"), format="torchdcp")
        cairn.torch.async_save({"w": noise((3,))}, self.path("other"))._reply.wait(100)
        with cairn.torch.on_signal(signal.SIGUSR1) as preempt, warnings.catch_warnings():
            warnings.simplefilter("error", cairn.SaveWarning)
            with self.assertLogs("cairn", "WARNING") as said:
                preempt.save({"w": noise((3,))}, self.path(), step=4)
        self.assertRegex(said.output[0], "ERROR.*other has failed")
        self.assertEqual(cairn.open(self.path()).step, 4)

    def test_arguments(self):
        for signals, options in ((signal.SIGKILL, {}), ([], {}), (1000, {}), (signal.SIGUSR1, {"grace": -1}),
                                 (signal.SIGUSR1, {"every": 0}), ("SIGTERM", {})):
            with self.subTest(signals=signals, **options), self.assertRaises(cairn.OptionsError):
                cairn.torch.on_signal(signals, **options)
        self.assertEqual(signal.getsignal(signal.SIGUSR1), signal.SIG_DFL)
        raised = []

        def other():
            try:
                cairn.torch.on_signal(signal.SIGUSR1)
            except cairn.OptionsError as e:
                raised.append(str(e))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        self.assertRegex(raised[0], "main thread")


if __name__ == "__main__":
    unittest.main()
