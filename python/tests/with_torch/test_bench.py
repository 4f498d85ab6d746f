"""python -m cairn.bench with a small state."""

import contextlib
import io
import json
import os
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
        self.assertGreater(result["steps"]["cairn, overlap=True"]["stall_ms"], 0)
        self.assertTrue(result["goals"])

    @slow
    def test_tables(self):
        out = self.run_bench("--only", "floor,cairn,steps")
        self.assertIn("stall / pinned copy", out)
        self.assertIn("longer by", out)

    @slow
    def test_loads_and_versions(self):
        out = self.run_bench("--only", "weights,share,publish", "--json", "--device", DEVICE)
        result = json.loads(out)
        loaders = result["weights"]["loaders"]
        for name in ("cairn", "cairn, safetensors files", "safetensors"):
            self.assertTrue(loaders[name]["equal"], name)
            self.assertGreater(min(loaders[name]["load_cold_gbs"], loaders[name]["load_warm_gbs"]), 0)
        rows = {(r["format"], r["kind"], r["share"]): sum(r["bytes_read"]) / result["share"]["bytes"]
                for r in result["share"]["loads"]}
        self.assertEqual(len(rows), 12)
        for (_, kind, shared), read in rows.items():
            if kind == "replicated":
                self.assertAlmostEqual(read, 1 if shared else 4, delta=0.1)
            elif shared and kind == "columns":
                self.assertLess(read, 1.1)
        found = result["publish"]
        self.assertTrue(found["equal"])
        self.assertLess(found["moved"], 0.1)
        self.assertGreater(found["stall_gbs"], 0)
        self.assertIn("publish: pause, s", [g["name"] for g in result["goals"]])

    @slow
    def test_memory(self):
        memory = self.path("memory")
        self.environment(CAIRN_MEMORY=memory)
        found = json.loads(self.run_bench("--only", "memory", "--json", "--device", DEVICE))["memory"]
        self.assertGreater(found["bytes"], 0.05e9)
        for name, value in found["saves"].items():
            self.assertGreater(value, 0, name)
        for start in (found["memory"], found["disk"]):
            self.assertTrue(start["equal"])
            self.assertGreater(start["loaded_seconds"], start["ready_seconds"])
        self.assertEqual(os.listdir(memory), [])


if __name__ == "__main__":
    unittest.main()
