"""The parts of training loops in docs/python.md."""

import os
import pathlib
import signal
import sys
import unittest

import torch

import cairn
import cairn.torch
from device import Case

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(next(p for p in (HERE.parent / "examples", HERE.parents[1] / "examples") if p.is_dir())))

import recipes  # noqa: E402


class Recipes(Case):
    def test_a_signal_ends_the_training_with_a_checkpoint(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        run, w = self.path("run"), torch.zeros(3)

        def step(n, stop=-1):
            w.add_(n)
            if n == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        state = {"w": w, "step": -1}
        self.assertEqual(recipes.train_until_told(lambda n: step(n, stop=7), state, run, 20, every=5), 8)
        self.assertEqual(os.path.basename(cairn.latest(run)), "step-7")
        state = {"w": w.zero_(), "step": -1}
        cairn.torch.load(state, cairn.latest(run))
        self.assertEqual(recipes.train_until_told(step, state, run, 20, every=5), 20)
        self.assertEqual(w.tolist(), [190.0] * 3)

    def test_metrics(self):
        report = cairn.torch.save({"w": torch.zeros(1000)}, self.path(), step=7)
        recipes.write_metrics(report, self.path("metrics.prom"))
        got = dict(line.split() for line in pathlib.Path(self.path("metrics.prom")).read_text().splitlines()
                   if line[0] != "#")
        self.assertEqual((got["cairn_save_step"], int(got["cairn_save_bytes"])), ("7", report.bytes))
        self.assertGreater(float(got["cairn_save_write_seconds"]), 0)


if __name__ == "__main__":
    unittest.main()
