"""The futures of a background save behave as a concurrent.futures.Future."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
import unittest.mock

import cairn
import cairn.torch
from device import ENV, Case, noise

LIMIT = 100


class Futures(Case):
    def held(self, **options):
        """Begins a save that is not staged before the event that is returned is set."""
        go, copy_units = threading.Event(), cairn.torch._staging.copy_units

        def late(*args):
            go.wait(LIMIT)
            return copy_units(*args)

        patched = unittest.mock.patch.object(cairn.torch._staging, "copy_units", late)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(go.set)
        return cairn.torch.async_save({"x": noise((3,))}, self.path(), step=7, overlap=True, **options), go

    def test_a_save_under_way(self):
        handle, go = self.held()
        for future in (handle, handle.staged, handle.uploaded):
            self.assertIsInstance(future, concurrent.futures.Future)
            self.assertTrue(future.running())
            self.assertFalse(future.done())
            self.assertFalse(future.cancel())
            self.assertFalse(future.cancelled())
            for wait in (future.result, future.exception):
                with self.assertRaisesRegex(TimeoutError, "is not over after 0 seconds"):
                    wait(0)
        go.set()
        self.assertIsNone(handle.staged.result(LIMIT))
        report = handle.result(LIMIT)
        self.assertIsInstance(report, cairn.SaveReport)
        self.assertEqual((report.step, report.rank_bytes), (7, report.bytes))
        self.assertIsNone(handle.uploaded.result(0))  # there is no remote
        for future in (handle, handle.staged, handle.uploaded):
            self.assertTrue(future.done())
            self.assertFalse(future.running())
            self.assertFalse(future.cancel())
            self.assertIsNone(future.exception(0))

    def test_saves_that_fail_with_one_error_are_all_reported(self):
        handle, go = self.held()
        other = cairn.torch.async_save({"x": noise((3,))}, self.path(), step=8, overlap=True)
        saver = cairn.torch._job.job().saver
        saver.process.kill()
        saver.process.wait(LIMIT)
        go.set()
        self.assertIsInstance(handle.exception(LIMIT), cairn.SaverError)
        concurrent.futures.wait([other], LIMIT)
        with self.assertWarnsRegex(cairn.SaveWarning, "the save to .* has failed"):
            cairn.torch.close()

    def test_a_copy_that_fails_fails_the_upload_too(self):
        with unittest.mock.patch.object(cairn.torch._staging, "copy_units", side_effect=MemoryError("no room")):
            handle = cairn.torch.async_save({"x": noise((3,))}, self.path(), remote=self.path("remote"))
            for future in (handle, handle.staged, handle.uploaded):
                self.assertIsInstance(future.exception(LIMIT), MemoryError)

    def test_a_fork_does_not_wait(self):
        handle, go = self.held()
        if (child := os.fork()) == 0:
            try:
                handle.result()
            except cairn.SaverError:
                os._exit(7)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        go.set()
        handle.result(LIMIT)

    def test_the_end_of_the_process_waits_for_functions(self):
        script = (
            "import cairn.torch, time, torch\n"
            "def late(f):\n    time.sleep(0.5)\n    print('called', f.result().step, flush=True)\n"
            f"handle = cairn.torch.async_save({{'x': torch.zeros(3)}}, {self.path()!r}, step=3)\n"
            "handle.add_done_callback(late)\nhandle.result()\n")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, env=ENV)
        self.assertEqual((done.returncode, done.stdout), (0, "called 3\n"), done.stderr)

    def test_wait_and_as_completed(self):
        handle, go = self.held()
        done, under_way = concurrent.futures.wait([handle, handle.staged], timeout=0)
        self.assertEqual((done, under_way), (set(), {handle, handle.staged}))
        go.set()
        self.assertEqual(set(concurrent.futures.as_completed([handle, handle.staged, handle.uploaded], LIMIT)),
                         {handle, handle.staged, handle.uploaded})

    def test_asyncio(self):
        async def wait():
            handle = cairn.torch.async_save({"x": noise((3,))}, self.path(), step=8)
            return await asyncio.wait_for(asyncio.wrap_future(handle), LIMIT)

        self.assertEqual(asyncio.run(wait()).step, 8)

    def test_an_upload(self):
        handle = cairn.torch.async_save({"x": noise((3,))}, self.path("disk/step-1"), remote=self.path("there/step-1"))
        report = handle.uploaded.result(LIMIT)
        self.assertIsInstance(report, cairn.UploadReport)
        self.assertEqual((report.save_id, report.direct), (handle.result(0).save_id, False))

    def test_functions_are_called_in_order(self):
        handle, go = self.held()
        called, over = [], threading.Event()
        handle.add_done_callback(lambda h: called.append(h))
        handle.add_done_callback(lambda h: called.append(h.result(0).step))
        handle.add_done_callback(lambda h: over.set())
        self.assertEqual(called, [])
        go.set()
        self.assertTrue(over.wait(LIMIT))
        self.assertEqual(called, [handle, 7])
        handle.add_done_callback(lambda h: called.append("at once"))
        self.assertEqual(called[2:], ["at once"])

    def test_the_error_of_a_function_is_logged(self):
        handle, go = self.held()
        over = threading.Event()
        handle.add_done_callback(lambda h: 1 / 0)
        handle.add_done_callback(lambda h: over.set())
        with self.assertLogs("cairn", "ERROR") as logged:
            go.set()
            self.assertTrue(over.wait(LIMIT))
            handle.add_done_callback(lambda h: {}["later"])
        self.assertEqual(len(logged.records), 2)
        self.assertIn("ZeroDivisionError", logged.output[0])
        self.assertIn("KeyError", logged.output[1])
        self.assertEqual(handle.result(LIMIT).step, 7)

    def test_a_function_may_use_cairn(self):
        """It must not run in the thread that reads the messages of the saver process."""
        handle, go = self.held(remote=self.path("there"))
        got, over = [], threading.Event()

        def call(h):
            try:
                got.append(h.uploaded.result(LIMIT).save_id)
                got.append(cairn.torch.load({"x": noise((3,))}, self.path()).step)
            finally:
                over.set()

        handle.add_done_callback(call)
        go.set()
        self.assertTrue(over.wait(LIMIT))
        self.assertEqual(got, [handle.result(0).save_id, 7])

    def test_an_error(self):
        cairn.torch.save({"x": noise((3,))}, self.path())
        handle = cairn.torch.async_save({"x": noise((3,))}, self.path(), overwrite=False)
        for future in (handle, handle.uploaded):
            self.assertIsInstance(future.exception(LIMIT), cairn.ExistsError)
            with self.assertRaises(cairn.ExistsError):
                future.result(0)


class Loads(Case):
    def test_the_report(self):
        saved = cairn.torch.save({"x": noise((3, 5)), "n": 1}, self.path(), step=9)
        report = cairn.torch.load({"x": noise((3, 5)), "n": 0}, self.path())
        self.assertEqual((report.save_id, report.step, report.missing), (saved.save_id, 9, ()))
        self.assertGreaterEqual(report.bytes, 60)
        self.assertGreaterEqual(report.bytes_read, report.bytes)
        self.assertGreater(report.requests, 0)
        self.assertGreater(report.seconds, 0)


if __name__ == "__main__":
    unittest.main()
