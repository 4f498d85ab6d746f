"""python -m cairn.bench with a small state."""

import contextlib
import io
import json
import unittest
from unittest import mock

from cairn.bench import __main__ as bench, steps, table
from device import DEVICE, Case, slow


class Bench(Case):
    def run_bench(self, *argv):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said, \
                mock.patch.multiple(steps, BUDGET=2.0, LONGEST=0.5):
            code = bench.main([*argv, "--gib", "0.05", "--folder", self.folder, "--repeat", "1", "--small-count", "20"])
        self.assertEqual(code, 0, said.getvalue())
        return out.getvalue()

    @slow
    def test_everything(self):
        result = json.loads(self.run_bench("--json", "--device", DEVICE))
        for name in (table.FLOOR, table.DCP, table.CAIRN):
            row = result["rows"][name]
            for key in ("stall_gbs", "durable_gbs", "load_cold_gbs", "load_warm_gbs", "small_stall_ms"):
                self.assertGreater(row[key], 0, (name, key))
        self.assertGreater(result["rows"][table.CAIRN]["peak_host_gb"], 0.05)  # the shared memory
        self.assertGreater(result["steps"]["cairn"]["with"]["steps"], 0)
        self.assertTrue(result["goals"])

    @slow
    def test_tables(self):
        out = self.run_bench("--only", "floor,cairn,steps")
        self.assertIn("stall / pinned copy", out)
        self.assertIn("longer by", out)


if __name__ == "__main__":
    unittest.main()
