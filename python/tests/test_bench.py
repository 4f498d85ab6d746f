"""The parts of python -m cairn.bench that need no torch."""

import contextlib
import io
import mmap
import os
import signal
import sys
import tempfile
import unittest
from unittest import mock

from cairn.bench import __main__ as bench, disk, hosts, memory, steps, table


class Arguments(unittest.TestCase):
    def test_mistakes(self):
        for argv in (["--only", "nothing"], ["--only", "steps", "--no-steps"], ["--gib", "0"], ["--small-count", "0"]):
            with self.subTest(argv), contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
                bench.main(argv)
            self.assertIn("error: ", said.getvalue())

    def test_without_torch(self):
        with mock.patch.dict(sys.modules, {"torch": None}), contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(bench.main(["--gib", "1"]), 1)
        self.assertIn("pip install torch", said.getvalue())

    def test_no_room(self):
        with self.assertRaisesRegex(bench.Trouble, "smaller --gib"):
            bench.make_folder(tempfile.gettempdir(), 1e30)
        with self.assertRaisesRegex(bench.Trouble, "--folder names another"):
            bench.make_folder(os.path.join(tempfile.gettempdir(), "does", "not", "exist"), 1)

    def test_no_room_in_memory(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"CAIRN_MEMORY": folder}):
            with self.assertRaisesRegex(hosts.NoRoom, "GB of room, and .* are needed"):
                hosts.make_folder(1 << 60)
            self.assertEqual(os.listdir(folder), [])
            made = hosts.make_folder(1)
            self.assertEqual(os.path.dirname(made), folder)
            os.environ["CAIRN_MEMORY"] = "/dev/null/x"
            with self.assertRaisesRegex(hosts.NoRoom, "CAIRN_MEMORY names another folder"):
                hosts.make_folder(1)


class Results(unittest.TestCase):
    rows = {table.FLOOR: {"stall_gbs": 50.0, "durable_gbs": 2.0, "load_cold_gbs": 4.0, "small_stall_ms": 2.0,
                          "write_by": "O_DIRECT"},
            table.DCP: {"stall_gbs": 2.0, "durable_gbs": 0.5, "small_stall_ms": 40.0},
            table.CAIRN: {"stall_gbs": 45.0, "durable_gbs": 1.0, "load_cold_gbs": 4.0, "small_stall_ms": 4.0,
                          "import_ms": 10.0}}

    def test_ratios(self):
        found = {g["name"]: g["value"] for g in bench.goals({"rows": self.rows}, "cuda")}
        self.assertEqual(found["stall / pinned copy"], 0.9)
        self.assertEqual(found["durable / plain write (O_DIRECT)"], 0.5)
        self.assertEqual(found["small: stall / PyTorch DCP"], 0.1)
        self.assertEqual(found["stall / best of the others"], 22.5)
        self.assertNotIn("load warm, GB/s", found)
        self.assertEqual({g["met"] for g in bench.goals({"rows": self.rows}, "cpu")}, {None})

    def test_tables(self):
        times = [0.030] * 90 + [0.031] * 9 + [0.1]
        found = {"bytes": 10**9, "every": 10, "saves": 3, "stall_ms": 1.0, "under_way_percent": 100.0,
                 "first_percent": 12.0,
                 "without": steps.summary(times),
                 "with": steps.summary(times), "overhead_percent": dict.fromkeys(("mean", "median", "p90", "p99"), 1.5),
                 "histogram": steps.histogram(times, times)}
        result = {"device": "cpu", "cpus": 2, "torch": "2", "bytes": 10**9, "small": {"count": 5, "bytes": 1024},
                  "rows": self.rows, "steps": {"cairn": found}}
        result["goals"] = list(bench.goals(result, "cuda"))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            bench.show(result)
        lines = out.getvalue().splitlines()
        self.assertRegex("\n".join(lines), r"durable / plain write \(O_DIRECT\) +0.50   ≥ 0.9   missed")
        self.assertRegex("\n".join(lines), r"steps between saves by cairn, % longer +1.50   ≤ 2     met")
        self.assertTrue(any(line.startswith("without") and "30.00" in line for line in lines), out.getvalue())

    def test_histogram(self):
        got = steps.histogram([0.010] * 50 + [0.012] * 50, [0.010] * 98 + [0.011, 5.0])
        self.assertAlmostEqual(sum(b["without"] for b in got), 1)
        self.assertAlmostEqual(sum(b["with"] for b in got), 1)
        self.assertEqual(got[0]["with"], 0.98)
        self.assertEqual(got[-1]["with"], 0.01)


class Saving(unittest.TestCase):
    """Each save goes into a new folder, and the one before is removed before the save begins."""

    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.folder = temp.name
        self.saved = []

    def save(self, state, path):
        self.assertNotIn(path, self.saved)
        self.assertEqual(os.listdir(self.folder), [], "an old folder is there when a save begins")
        self.saved.append(path)
        os.mkdir(path)
        with open(os.path.join(path, "data"), "wb") as f:
            f.write(b"x")
        return mock.Mock(done=lambda: True)

    def table(self):
        t = table.Table.__new__(table.Table)
        t.device, t.folder, t.repeat, t.bytes, t.row, t.state, t.small = "cpu", self.folder, 3, 1, {}, {}, {}
        return t

    def test_background_saves(self):
        t = self.table()
        folders = t.folders("x")
        self.assertGreater(t.stalls(self.save, folders), 0)
        self.assertEqual(len(self.saved), 3)
        self.assertEqual(folders.last, self.saved[-1])
        self.assertEqual(os.listdir(self.folder), [os.path.basename(folders.last)])

    def test_small_saves(self):
        self.table().small_stalls(self.save)
        self.assertEqual(len(self.saved), 5)

    def test_foreground_saves(self):
        t = self.table()
        t.durable(lambda path: self.save({}, path), t.folders("x"), 2)
        self.assertEqual(len(self.saved), 2)
        self.assertGreater(t.row["durable_gbs"], 0)

    def test_steps(self):
        s = steps.Steps.__new__(steps.Steps)
        s.state, s.bytes = {}, 1
        s.step = lambda copied=None: 0.01
        with mock.patch.object(steps, "BUDGET", 0.0):
            found = s.compare(self.save, disk.Folders(os.path.join(self.folder, "x")))
        self.assertEqual(found["saves"], 2)
        self.assertEqual(len(self.saved), 4)

    def test_files(self):
        files = disk.Folders(os.path.join(self.folder, "file"))
        for _ in range(2):
            with open(files.next(), "wb"):
                pass
        self.assertEqual(os.listdir(self.folder), [os.path.basename(files.last)])


class Disk(unittest.TestCase):
    def test_the_fastest_way_counts(self):
        seconds = {(0, 1): 4.0, (0, 4): 2.0, (os.O_DIRECT, 1): 1.0}

        def measure(flags, threads):
            if (flags, threads) not in seconds:
                raise OSError("not here")
            return seconds[flags, threads]

        self.assertEqual(disk.best(measure, 3), (1.0, "O_DIRECT"))
        self.assertEqual(disk.best(measure, 3, direct=False), (2.0, "buffered, 4 threads"))

    def test_a_plain_file(self):
        with tempfile.TemporaryDirectory() as folder:
            raw = disk.Raw(os.path.join(folder, "raw"), 64 << 20)
            self.assertGreater(disk.best(raw.write, 1)[0], 0)
            self.assertEqual(os.path.getsize(raw.path), raw.size)
            self.assertGreater(disk.best(lambda flags, threads: raw.read(flags, threads, True), 1)[0], 0)


class Memory(unittest.TestCase):
    def test_shared_memory_counts_once(self):
        if not os.path.exists("/proc/self/smaps_rollup"):
            self.skipTest("this system has no smaps_rollup")
        size = 64 << 20
        before = memory.settled()
        row = {}
        with mmap.mmap(-1, size) as shared, memory.peak(row, before):
            shared[:] = b"x" * size
            ready, go = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    sum(shared[i] for i in range(0, size, 4096))
                    os.write(go, b"x")
                    signal.pause()
                finally:
                    os._exit(0)
            try:
                os.read(ready, 1)
                used = memory.used() - before
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(ready)
                os.close(go)
        self.assertGreater(used, 0.9 * size)
        self.assertLess(used, 1.6 * size)
        self.assertGreater(row["peak_host_gb"], 0.9 * size / 1e9)


if __name__ == "__main__":
    unittest.main()
