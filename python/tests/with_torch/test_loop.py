"""The training loop of the README: killed and started again, it goes on where it was."""

import os
import pathlib
import re
import signal
import subprocess
import unittest

import cairn
from device import Case, start

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = next(p for p in (HERE.parent / "examples" / "loop.py", HERE.parents[1] / "examples" / "loop.py")
               if p.exists())


class Loop(Case):
    def train(self, run, steps, kill=-1):
        """Runs the program, and kills it when it has printed the loss of a step. Returns the losses by step."""
        process = start(PROGRAM.read_text(), self.path(run), str(steps), stdout=subprocess.PIPE, text=True)
        losses = {}
        with process:
            for line in process.stdout:
                step, loss = re.fullmatch(r"step (\d+) loss (.*)\n", line).groups()
                losses[int(step)] = loss
                if int(step) == kill:
                    process.kill()
        self.assertEqual(process.returncode, 0 if kill < 0 else -signal.SIGKILL)
        return losses

    def test_a_loop_that_is_killed_goes_on(self):
        want = self.train("undisturbed", 250)
        self.assertEqual(list(want), list(range(250)))
        first = self.train("run", 250, kill=150)  # the save of step 99 was staged
        second = self.train("run", 250)
        self.assertEqual(list(second), list(range(100, 250)))
        self.assertEqual({**first, **second}, want)
        self.assertEqual(self.train("run", 250), {})
        with cairn.open(cairn.latest(self.path("run"))) as c:
            self.assertEqual((c.step, c["step"], os.path.basename(c.path)), (249, 249, "step-249"))


if __name__ == "__main__":
    unittest.main()
