"""The parts of training loops in docs/frameworks.md and docs/telemetry.md."""

import pathlib
import sys
import unittest

import torch

import cairn.torch
from device import Case

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(next(p for p in (HERE.parent / "examples", HERE.parents[1] / "examples") if p.is_dir())))

import recipes  # noqa: E402


class Recipes(Case):
    def test_metrics(self):
        report = cairn.torch.save({"w": torch.zeros(1000)}, self.path(), step=7)
        recipes.write_metrics(report, self.path("metrics.prom"))
        got = dict(line.split() for line in pathlib.Path(self.path("metrics.prom")).read_text().splitlines()
                   if line[0] != "#")
        self.assertEqual((got["cairn_save_step"], int(got["cairn_save_bytes"])), ("7", report.bytes))
        self.assertGreater(float(got["cairn_save_write_seconds"]), 0)


if __name__ == "__main__":
    unittest.main()
