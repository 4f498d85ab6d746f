"""The client of the saver process: shared memory, saves, loads, and processes that end."""

import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

import cairn
from cairn import _arena, _saver as saver
from cairn._arena import Arena
from cairn._reply import Reply
from cairn._saver import Saver
from cairn.errors import SaverError
from saving import checkpoint, join, save

LIMIT = 120


def numbers(n):
    return struct.pack(f"<{n}q", *range(n))


def state(stat):
    """Returns the state of a process or a thread from its file in /proc: X if it is gone."""
    try:
        return pathlib.Path(stat).read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def ended(pid):
    """Reports whether a process has ended, even if its parent has not waited for it."""
    return state(f"/proc/{pid}/stat") in "ZX"


def stop(pid):
    """Keeps a process from running. The signal alone takes effect some time later."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: all(state(s) in "TtZX" for s in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")))


def interrupt_after_send():
    """Returns a function for another thread: it interrupts this process, as Ctrl-C does, when it has sent the next
    message to the saver, and then calls something."""
    s, sent = saver.shared(), threading.Event()
    send = s.send

    def send_and_tell(*message, **body):
        send(*message, **body)
        sent.set()

    s.send = send_and_tell

    def interrupt(then=lambda: None):
        sent.wait(LIMIT)
        time.sleep(0.1)  # so that it nearly always waits for the answer
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        then()

    return interrupt


def eventually(what):
    """Waits until what() is true, and reports whether it is."""
    end = time.monotonic() + LIMIT
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def run(code, **options):
    """Runs a program in another interpreter."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), os.path.dirname(__file__)])}
    # Python 3.12 and later warn of forks with threads, which these tests need.
    # A shell lets its background jobs ignore SIGINT, which some tests send.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + textwrap.dedent(code)
    # A program that hangs says where, and ends.
    code = f"import faulthandler; faulthandler.dump_traceback_later({LIMIT}, exit=True)\n" + code
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, env=env, **options)


class Waiting(unittest.TestCase):
    def test_signal_just_before_the_wait(self):
        # Python notices such a signal when the wait is over. The second wait stands for that.
        reply = Reply()
        wait, interrupted = reply._done.wait, []

        def late(timeout=None):
            interrupted.append(timeout)
            if len(interrupted) > 1:
                raise KeyboardInterrupt
            self.assertIsNotNone(timeout, "a wait without a limit does not notice the signal")
            return wait(min(timeout, 0.01))

        with mock.patch.object(reply._done, "wait", late), self.assertRaises(KeyboardInterrupt):
            reply.result()
        self.assertLessEqual(max(interrupted), 1)

    def test_limits(self):
        reply = Reply()
        with self.assertRaises(TimeoutError):
            reply.result(0)
        self.assertFalse(reply.wait(0.01))
        threading.Timer(0.01, reply.settle, ["here"]).start()
        self.assertEqual(reply.result(), "here")


class Memory(unittest.TestCase):
    def setUp(self):
        self.arena = Arena(4 << 20)
        self.addCleanup(self.arena.close)

    def test_alloc_and_free_at_random(self):
        seed = random.randrange(1 << 32)
        r = random.Random(seed)
        held = {}
        with self.subTest(seed=seed):
            for _ in range(3000):
                if held and r.random() < 0.5:
                    at = r.choice(list(held))
                    n = held.pop(at)
                    self.assertEqual(self.arena.view[at:at + n], bytes([at // 64 % 251]) * n)
                    self.arena.free(at, n)
                    continue
                n = r.choice([0, 1, 63, 64, 65, 4096, r.randrange(1 << 19)])
                at = self.arena.alloc(n)
                if at is None:
                    self.assertLess(self.arena.largest(), max(64, n + 64))
                    continue
                self.assertEqual(at % 64, 0)
                self.assertLessEqual(at + n, self.arena.window)
                self.assertNotIn(at, held)
                held[at] = n
                self.arena.view[at:at + n] = bytes([at // 64 % 251]) * n
            for at, n in held.items():
                self.arena.free(at, n)
            self.assertEqual(self.arena.largest(), self.arena.window)

    def test_memory_is_taken_once(self):
        self.assertEqual(self.arena.backed, [])
        at = self.arena.alloc(5000)
        self.assertEqual(self.arena.backed, [(0, 8192)])
        self.arena.free(at, 5000)
        self.arena.back(12288, 12289)
        self.assertEqual(self.arena.backed, [(0, 8192), (12288, 16384)])
        self.arena.back(8000, 12300)
        self.assertEqual(self.arena.backed, [(0, 16384)])

    def test_no_bytes(self):
        self.assertEqual([self.arena.alloc(0) for _ in range(3)], [0, 64, 128])

    def test_no_room(self):
        self.assertIsNone(self.arena.alloc(self.arena.window + 1))
        at = self.arena.alloc(self.arena.window)
        self.assertIsNone(self.arena.alloc(0))
        self.arena.free(at, self.arena.window)
        self.assertEqual(self.arena.alloc(0), 0)

    def test_close_with_a_view(self):
        arena = Arena(1 << 20)
        view = arena.view[:10]
        arena.close()
        self.assertEqual(len(view), 10)


@unittest.skipUnless(sys.platform == "linux", "only Linux has memfd_create")
class MemoryOfTheCLibrary(Memory):
    """The same with a Python that lacks memfd_create, on a system that has it."""

    def setUp(self):
        with mock.patch.object(os, "memfd_create"):
            del os.memfd_create
            super().setUp()
        self.assertTrue(self.arena._in_memory)


class Answers(unittest.TestCase):
    def test_an_answer_that_cannot_be_read_fails_what_waits(self):
        for body in ({"report": {"phases": [None]}}, {"error": {"text": "x", "codes": 5}}):
            with self.subTest(body):
                s = Saver.__new__(Saver)
                s._lock, s._order, s._ended = threading.Lock(), [], None
                reply, upload = Reply(), Reply()
                s._waiting = {("generation", 1): reply, ("upload", 1): upload}
                with self.assertRaises((AttributeError, TypeError)):
                    s._receive("failed" if "error" in body else "saved", {"generation": 1, **body})
                s._fail(SaverError("the conversation has failed"))  # as the thread that reads does
                for r in reply, upload:
                    with self.assertRaisesRegex(SaverError, "conversation"):
                        r.result(0)

    def test_the_copies_of_a_save_fail_after_it(self):
        s = Saver()
        self.addCleanup(s.close)
        copies, reply, causes = s.expect_copies(1), Reply(), []
        copies.then(lambda: causes.append(reply.error))
        s.begin(("generation", 1), reply, "save", items=7)  # no save is described like this
        with self.assertRaises(cairn.CairnError) as e:
            copies.result(LIMIT)
        self.assertEqual(causes, [e.exception])

    def test_a_function_that_fails_does_not_keep_the_others(self):
        reply, called = Reply(), []
        reply.then(lambda: 1 / 0)
        reply.then(lambda: called.append(1))
        with self.assertRaises(ZeroDivisionError):
            reply.settle(1)
        self.assertEqual((called, reply.result(0)), ([1], 1))


class MemoryInFiles(Memory):
    """The same on a system without memory files."""

    def setUp(self):
        with mock.patch("cairn._arena.memory_file", return_value=None):
            super().setUp()
        self.assertFalse(self.arena._in_memory)

    def test_a_disk_that_takes_only_a_part(self):
        write, taken = os.pwrite, []

        def some(fd, data, at):
            taken.append(write(fd, data[:10_000], at))
            return taken[-1]

        with mock.patch.object(os, "pwrite", some):
            self.arena.back(0, 1 << 18)
        self.assertEqual(sum(taken), 1 << 18)

    def test_threads_do_not_clear_what_others_use(self):
        def work(i):
            data, places = bytes([i + 1]) * 1000, []
            for _ in range(200):
                places.append(at := self.arena.alloc(len(data)))
                self.arena.view[at:at + len(data)] = data
            return all(self.arena.view[at:at + len(data)] == data for at in places)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(work, range(4))), [True] * 4)


class Uploads(unittest.TestCase):
    """Saves that are uploaded to a second store."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.state = {"x": ("int64", (1 << 17,), numbers(1 << 17))}
        self.saver = Saver(ceiling=8 << 20)
        self.addCleanup(self.saver.close)
        join(self.saver)

    def save(self, name, **options):
        """Saves to a folder of local and returns the report of the save and the outcome of its upload."""
        uploads = []
        saved = save(self.saver, self.dir / "local" / name, self.state, uploads=uploads,
                     **{"remote": str(self.dir / "remote" / name), **options})
        return saved, uploads[0]

    def steps(self, run):
        return sorted(p.name for p in (self.dir / run).iterdir() if (p / "cairn.json").exists())

    def test_both_stores_have_it(self):
        saved, upload = self.save("step-1")
        report = upload.result(LIMIT)
        self.assertEqual(report.save_id, saved.save_id)
        for run in "local", "remote":
            with cairn.open(self.dir / run / "step-1", framework="memory") as c:
                self.assertEqual(c["x"][:].tolist(), list(range(1 << 17)))

    def test_close_waits_for_uploads(self):
        _, upload = self.save("step-1")
        self.saver.close()
        self.assertTrue(upload.done())
        self.assertEqual(self.steps("remote"), ["step-1"])

    def test_latest_looks_in_both(self):
        for step in 1, 2:
            self.save(f"step-{step}", step=step)[1].result(LIMIT)
        local, remote = self.dir / "local", self.dir / "remote"
        self.assertEqual(cairn.latest(local, remote=remote), str(local / "step-2"))
        next((local / "step-2").glob("*.safetensors")).unlink()
        self.assertEqual(cairn.latest(local, remote=remote), str(remote / "step-2"))

    def test_failed_upload(self):
        (self.dir / "file").write_text("in the way")
        _, upload = self.save("step-1", remote=str(self.dir / "file" / "step-1"))
        with self.assertRaises(cairn.CairnError):
            upload.result(LIMIT)
        self.assertEqual(self.steps("local"), ["step-1"])

    def test_another_format_in_the_remote_store(self):
        remote = self.dir / "remote" / "step-1"
        save(self.saver, remote, self.state, format="torchdcp")
        files = sorted(p.name for p in remote.iterdir())
        _, upload = self.save("step-1")
        with self.assertRaises(cairn.ExistsError):
            upload.result(LIMIT)
        self.assertEqual(sorted(p.name for p in remote.iterdir()), files)
        self.assertEqual(self.steps("local"), ["step-1"])

    def test_failed_save(self):
        self.save("step-1")
        uploads = []
        with self.assertRaises(cairn.ExistsError):
            save(self.saver, self.dir / "local" / "step-1", self.state, uploads=uploads,
                 remote=str(self.dir / "remote" / "step-1"), fail_if_exists=True)
        with self.assertRaises(cairn.ExistsError):
            uploads[0].result(LIMIT)

    def test_ceiling(self):
        def size():
            return sum(p.stat().st_size for p in (self.dir / "local").rglob("*") if p.is_file())

        self.save("step-0")[1].result(LIMIT)
        ceiling = 3 * size()
        for n in range(1, 6):
            _, upload = self.save(f"step-{n}", local_bytes=ceiling)
            self.assertLessEqual(size(), ceiling)
            upload.result(LIMIT)
        self.assertEqual(self.steps("remote"), [f"step-{n}" for n in range(6)])
        self.assertEqual(self.steps("local")[-1], "step-5")
        self.assertNotIn("step-0", self.steps("local"))


class Newest(unittest.TestCase):
    def test_newest(self):
        s = Saver(1 << 20)
        self.addCleanup(s.close)
        with tempfile.TemporaryDirectory() as run:
            self.assertNotIn("version", s.newest(os.path.join(run, "nothing")))
            for step in 1, 2, 10:
                checkpoint(os.path.join(run, f"step-{step}"), {"x": ("int64", (3,), numbers(3))}, step=step)
            os.mkdir(os.path.join(run, "step-11"))  # a save that has not begun
            found = s.newest(run)["version"]
            self.assertEqual((found["step"], found["store"]), (10, os.path.join(run, "step-10")))
            self.assertTrue(found["save_id"])
            known = {"damaged": {"10": found["save_id"]}}
            self.assertEqual(s.newest(run, known=known, format="native")["version"]["step"], 2)
            last = {"last": {"step": 10, "save_id": found["save_id"]}}
            self.assertNotIn("version", s.newest(run, known=last))
            searched = s.newest(run, search={"step": 1})
            self.assertEqual(searched["version"]["step"], 1)
            over = s.newest(run, search=searched["search"], outcome={"text": "no", "codes": ["plan.missing"]})
            self.assertEqual((over["over"], over.get("version"), over["problems"]), ("failed", None, ["version 1: no"]))
            with self.assertRaises(cairn.OptionsError):
                s.newest(run, format="tar")
            os.unlink(next(pathlib.Path(run, "step-10").glob("*.safetensors")))
            self.assertEqual(s.newest(run)["version"]["step"], 2)


class Ceiling(unittest.TestCase):
    """The default ceiling of the shared memory."""

    HOST = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def limits(self, **files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return _arena._limits(root)

    def test_limits_of_cgroups(self):
        v2 = {"proc/self/cgroup": "0::/a/b\n"}
        v1 = {"proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/x\n0::/\n"}
        for name, files, want in (
            ("none", {}, []),
            ("v2", {**v2, "sys/fs/cgroup/a/b/memory.max": "1000\n"}, [1000]),
            ("v2, of a group above",
             {**v2, "sys/fs/cgroup/a/memory.max": "2000\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, [2000]),
            ("v2 in a container", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "3000\n"}, [3000]),
            ("v2, the path of the host", {**v2, "sys/fs/cgroup/memory.max": "4000\n"}, [4000]),
            ("v2, a path above", {"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/x/memory.max": "5000\n"}, [5000]),
            ("v1", {**v1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                    "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "6000\n"}, [9223372036854771712, 6000]),
            ("v1 in a container", {**v1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n"}, [7000]),
        ):
            with self.subTest(name):
                self.assertEqual(self.limits(**files), want)

    def ceiling(self, limits, **environment):
        clean = {k: v for k, v in os.environ.items() if k not in ("CAIRN_ARENA_BYTES", "LOCAL_WORLD_SIZE")}
        with mock.patch.dict(os.environ, {**clean, **environment},
                             clear=True), mock.patch.object(_arena, "_limits", lambda: limits):
            return _arena.default_ceiling()

    def test_default(self):
        for limits, environment, want in (
            ([], {}, self.HOST // 2),
            ([1 << 62, 1 << 20], {}, 1 << 19),
            ([1 << 20], {"LOCAL_WORLD_SIZE": "4"}, 1 << 17),
            ([1 << 20], {"LOCAL_WORLD_SIZE": ""}, 1 << 19),
            ([1 << 20], {"LOCAL_WORLD_SIZE": "4", "CAIRN_ARENA_BYTES": "12345"}, 12345),
        ):
            with self.subTest(limits=limits, **environment):
                self.assertEqual(self.ceiling(limits, **environment), want)

    def test_a_ceiling_that_is_not_a_number(self):
        for text in ("", "8GiB", "-1"):
            with self.subTest(text=text), self.assertRaisesRegex(cairn.OptionsError, "want a number of bytes"):
                self.ceiling([], CAIRN_ARENA_BYTES=text)


class Saves(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_save_staged_and_fetched(self):
        for staged in (True, False):
            with self.subTest(staged=staged):
                s = Saver(ceiling=1 << 20, log=str(self.folder / "log"))
                self.addCleanup(s.close)
                join(s)
                place = self.folder / f"staged-{staged}"
                report = save(s, place, {"a": ("int64", (500, 2), numbers(1000)), "b": ("uint8", (), b"\x07")},
                              {"note": "from Python"}, staged=staged, step=7)
                self.assertEqual(report.step, 7)
                with cairn.open(place, framework="memory") as c:
                    self.assertEqual((c.step, c.save_id, c.world_size), (7, report.save_id, 1))
                    self.assertEqual(c["note"], "from Python")
                    self.assertEqual(c["a"][10:12].tolist(), [[20, 21], [22, 23]])
                    self.assertEqual(c["b"][()].tolist(), 7)
                s.close()
                self.assertEqual(s.process.returncode, 0)
                self.assertIn('msg="save: done"', (self.folder / "log").read_text())

    def test_an_impossible_path(self):
        s = Saver(ceiling=1 << 20)
        self.addCleanup(s.close)
        join(s)
        with self.assertRaisesRegex(cairn.CairnError, "the folder /proc/cairn cannot be made: ") as raised:
            save(s, "/proc/cairn/step-1", {"a": ("uint8", (1,), b"x")})
        self.assertNotIsInstance(raised.exception, cairn.NotFoundError)

    def test_fetches_belong_to_their_saves(self):
        s = Saver(ceiling=4 << 20)
        self.addCleanup(s.close)
        join(s)
        contents = {i: bytes([i]) * (2 << 20) for i in range(4)}
        threads = [threading.Thread(target=save, args=(s, self.folder / str(i), {"w": ("uint8", [2 << 20], data)}),
                                    kwargs={"staged": False}) for i, data in contents.items()]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LIMIT)
        for i, data in contents.items():
            with cairn.open(self.folder / str(i), framework="memory") as c:
                self.assertEqual(bytes(c["w"][:]), data)

    def test_a_checkpoint_that_exists(self):
        checkpoint(self.folder / "c", {"a": ("int8", (1,), b"x")})
        with self.assertRaises(cairn.ExistsError):
            checkpoint(self.folder / "c", {"a": ("int8", (1,), b"y")}, fail_if_exists=True)
        self.assertEqual(bytes(cairn.open(self.folder / "c", framework="memory")["a"][:].cast("B")), b"x")

    def test_a_checkpoint_of_another_format(self):
        options = {"native": {}, "torchdcp": {}, "hyper": {}, "hf": {},
                   "torch": {"format_options": {"file": "model.pt"}}}
        s = Saver(ceiling=4 << 20)
        self.addCleanup(s.close)
        join(s)
        for old in options:
            place = self.folder / old
            save(s, place, {"a": ("int8", (1,), b"x")}, format=old, **options[old])
            files = sorted(p.name for p in place.iterdir())
            for new in options:
                for fail in (True, False):
                    if new == old:
                        continue
                    with self.subTest(old=old, new=new, fail_if_exists=fail):
                        with self.assertRaises(cairn.ExistsError) as raised:
                            save(s, place, {"a": ("int8", (1,), b"y")}, format=new, fail_if_exists=fail, **options[new])
                        self.assertIn(f"the format {old}", str(raised.exception))
                        self.assertEqual(sorted(p.name for p in place.iterdir()), files)
                        self.assertEqual(cairn.latest(place), str(place))
                        with cairn.open(place, framework="memory") as c:
                            self.assertEqual(bytes(c["a"][:].cast("B")), b"x")

    def test_urls_reach_the_saver(self):
        s = Saver(ceiling=1 << 20)
        self.addCleanup(s.close)
        join(s)
        save(s, "mem://urls/run/step-1", {"w": ("uint8", [3], b"abc")}, {"step": 12})
        self.assertEqual([e["name"] for e in s.describe("mem://urls/run/step-1")["entries"]], ["step", "w"])
        with self.assertRaises(cairn.OptionsError) as raised:
            save(s, "gopher://user:hush@x/y?key=hush", {"w": ("uint8", [3], b"abc")})
        self.assertIn("gopher://x/y", str(raised.exception))
        self.assertNotIn("hush", str(raised.exception))

    def test_latest(self):
        self.assertIsNone(cairn.latest(self.folder))
        self.assertIsNone(cairn.latest(self.folder / "nothing", wait=True, timeout=10))
        checkpoint(self.folder / "step-1", {"a": ("int8", (1,), b"x")}, step=1)
        checkpoint(self.folder / "step-2", {"a": ("int8", (1,), b"x")}, step=2)
        self.assertEqual(cairn.latest(self.folder), str(self.folder / "step-2"))
        checkpoint(self.folder / "step-3", {"a": ("int8", (1,), b"x")}, step=3)
        (self.folder / "step-3" / "cairn.json").write_text("{")
        with self.assertWarnsRegex(UserWarning, "step-3 was passed over: .*(damaged|corrupt)"):
            self.assertEqual(cairn.latest(self.folder), str(self.folder / "step-2"))
        for name in ("step-1", "step-2"):
            (self.folder / name / "cairn.json").write_text("{")
        with self.assertRaises(cairn.CorruptError):
            cairn.latest(self.folder)

    def test_latest_while_the_first_save_is_under_way(self):
        s = Saver(ceiling=1 << 20)
        self.addCleanup(s.close)
        join(s)
        reply = Reply()
        s.begin(("generation", 1), reply, "save", store=str(self.folder / "first"), format="native", save_id="first",
                time="2026-01-02T03:04:05Z", items=[{"name": "a", "dtype": "int8", "shape": [1]}], fits=True)

        def under_way():
            try:
                return cairn.latest(self.folder) is not None
            except cairn.UnderWayError:
                return True

        self.assertTrue(eventually(under_way))
        with self.assertRaises(cairn.UnderWayError):
            cairn.latest(self.folder, wait=True, timeout=0.01)
        s.send("abandon", generation=1, error={"text": "enough"})
        with self.assertRaisesRegex(cairn.CairnError, "enough"):
            reply.result(LIMIT)


class Loads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.place = os.path.join(folder.name, "c")
        checkpoint(cls.place, {"large": ("int64", (4, 3, 50_000), numbers(600_000)),
                               "row": ("int64", (300_000,), numbers(300_000))},
                   {"v": [1, 2]})

    def small(self):
        """Returns a saver with memory for a part of a tensor."""
        s = Saver(ceiling=1 << 20)
        self.addCleanup(s.close)
        return s

    def use(self, s):
        """Makes s the saver that reads for this process."""
        before, saver._shared = saver._shared, s

        def back():
            if saver._shared is not None and saver._shared is not s and saver._shared is not before:
                saver._shared.close()
            saver._shared = before

        self.addCleanup(back)

    def wants(self):
        return [{"name": "row", "dtype": "int64", "shape": [300_000], "offsets": [i], "sizes": [1000], "nbytes": 8000}
                for i in range(0, 300_000, 1000)]

    def test_a_tensor_larger_than_the_memory(self):
        s = self.small()
        self.use(s)
        with cairn.open(self.place, framework="memory") as c:
            self.assertEqual(bytes(c["large"][...].cast("B")), numbers(600_000))
            self.assertEqual(bytes(c["row"][1:].cast("B")), numbers(300_000)[8:])
            self.assertEqual({n: bytes(v.cast("B")) if n != "v" else v for n, v in c.load().items()},
                             {"large": numbers(600_000), "row": numbers(300_000), "v": [1, 2]})
        self.assertEqual(s.arena.largest(), s.arena.window)

    def test_the_ceiling_by_the_environment(self):
        os.environ["CAIRN_ARENA_BYTES"] = str(2 << 20)
        try:
            done = run(f"""
                import cairn
                from cairn import _saver as saver
                c = cairn.open({self.place!r}, framework="memory")
                assert saver.shared().arena.size == 2 << 20
                assert c["large"][3, 2, 49_999].tolist() == 599_999
                assert len(c["large"][:].cast("B")) == 4_800_000
            """)
        finally:
            del os.environ["CAIRN_ARENA_BYTES"]
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_checkpoint_that_is_replaced_meanwhile(self):
        # There is memory for one tensor at a time, so the load has two parts.
        with tempfile.TemporaryDirectory() as folder:
            tensors = {name: ("int8", (600_000,), bytes(600_000)) for name in "ab"}
            checkpoint(folder, tensors)
            wants = [{"name": name, "dtype": "int8", "shape": [600_000], "nbytes": 600_000} for name in "ab"]
            arrived = []

            def replace(i, data, value):
                arrived.append(i)
                if i == 0:
                    checkpoint(folder, tensors)

            with self.assertRaisesRegex(cairn.ChangedError, "replaced"):
                self.small().load(folder, wants, replace)
            self.assertEqual(arrived, [0, 1])

    def test_a_load_takes_little_memory(self):
        s = Saver(ceiling=64 << 20)
        self.addCleanup(s.close)
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(saver, "_LOAD_MEMORY", 1 << 20):
            content = {f"t{i}": ("int64", (40_000,), numbers(40_000 + i)[8 * i:]) for i in range(20)}
            checkpoint(folder, content)
            got = {}
            wants = [{"name": n, "dtype": "int64", "shape": [40_000], "nbytes": 320_000} for n in content]
            s.load(folder, wants, lambda i, data, value: got.update({wants[i]["name"]: bytes(data)}))
        self.assertEqual(got, {n: data for n, (_, _, data) in content.items()})
        self.assertLessEqual(sum(hi - lo for lo, hi in s.arena.backed), 2 << 20)

    def test_a_want_that_cannot_fit(self):
        s = self.small()
        want = {"name": "row", "dtype": "int64", "shape": [300_000], "offsets": [0], "sizes": [300_000],
                "nbytes": 2_400_000}
        with self.assertRaisesRegex(cairn.CairnError, "CAIRN_ARENA_BYTES"):
            s.load(self.place, [*self.wants()[:3], want], lambda *a: None)
        self.assertEqual(s.arena.largest(), s.arena.window)

    def test_threads_share_the_memory(self):
        s = self.small()
        self.use(s)
        c = cairn.open(self.place, framework="memory")
        wrong = []

        def read(k):
            try:
                for i in range(k, 4):
                    want = numbers(600_000)[i * 1_200_000:(i + 1) * 1_200_000]
                    if bytes(c["large"][i].cast("B")) != want or c["v"] != [1, 2]:
                        wrong.append(i)
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=read, args=(k % 4,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LIMIT)
        self.assertFalse(any(t.is_alive() for t in threads))
        self.assertEqual(wrong, [])
        self.assertEqual(s.arena.largest(), s.arena.window)

    def test_the_error_of_the_function(self):
        s = self.small()

        def piece(i, data, value):
            raise ZeroDivisionError(i)

        with self.assertRaises(ZeroDivisionError):
            s.load(self.place, self.wants(), piece)
        self.assertEqual(s.arena.largest(), s.arena.window)
        got = []
        s.load(self.place, [{"name": "v"}], lambda i, data, value: got.append(value))
        self.assertEqual(got, [("json", b"[1,2]")])

    def test_missing(self):
        s = self.small()
        with self.assertRaisesRegex(cairn.MissingError, '^plan: "other": '):
            s.load(self.place, [{"name": "other"}], lambda *a: None)
        report = s.load(self.place, [{"name": "other"}, {"name": "v"}], lambda *a: None, allow_missing=True)
        self.assertEqual(report.missing, ("other",))

    def test_the_saver_is_killed_during_a_load(self):
        s = self.small()
        self.use(s)
        killed = []

        def piece(i, data, value):
            if not killed:
                killed.append(i)
                s.process.kill()
                s.process.wait(LIMIT)

        with self.assertRaises(cairn.SaverError):
            s.load(self.place, self.wants(), piece)
        self.assertFalse(s.alive())
        self.assertEqual(s.arena.largest(), s.arena.window)
        self.assertEqual(cairn.open(self.place)["v"], [1, 2])

    def test_the_saver_is_killed_while_idle(self):
        s = self.small()
        self.use(s)
        c = cairn.open(self.place, framework="memory")
        s.process.kill()
        with contextlib.suppress(cairn.SaverError):
            c["row"][:10]
        self.assertEqual(c["row"][5:7].tolist(), [5, 6])
        self.assertIsNot(saver.shared(), s)
        self.assertEqual(s.process.returncode, -signal.SIGKILL)

    def test_a_program_that_is_not_cairn(self):
        for program, text in (("/nothing", "not a program"), ("/bin/true", "has ended")):
            with self.subTest(program=program):
                before = os.environ["CAIRN_BINARY"]
                os.environ["CAIRN_BINARY"] = program
                try:
                    fds = len(os.listdir("/proc/self/fd"))
                    with self.assertRaisesRegex(cairn.SaverError, text):
                        Saver(ceiling=1 << 20)
                    self.assertEqual(len(os.listdir("/proc/self/fd")), fds)
                    with self.assertRaisesRegex(cairn.CairnError, program):
                        cairn.latest(self.place)
                finally:
                    os.environ["CAIRN_BINARY"] = before

    def test_the_command(self):
        program = [sys.executable, "-m", "cairn"]
        done = subprocess.run([*program, "ls", "--json", self.place], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn('"row"', done.stdout)
        done = subprocess.run([*program, "ls", "/nothing"], capture_output=True, text=True, timeout=LIMIT)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nothing", done.stderr)
        # As the script of an installation, which must not run itself again and again.
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "cairn")
            with open(script, "w") as f:
                f.write(f"#!{sys.executable}\nimport sys\nfrom cairn.__main__ import main\nsys.exit(main())\n")
            os.chmod(script, 0o755)
            python = os.pathsep.join(p for p in sys.path if p)
            for named, text in (("/nothing", "not a program"), (script, "this script"),
                                ("", "not part of this installation")):
                env = {**os.environ, "CAIRN_BINARY": named, "PATH": folder, "PYTHONPATH": python}
                done = subprocess.run([script, "ls", "/nothing"], env=env, capture_output=True, text=True,
                                      timeout=LIMIT)
                self.assertEqual(done.returncode, 1, named)
                self.assertIn(text, done.stderr)

    def test_a_saver_that_nothing_refers_to_ends(self):
        s = Saver(ceiling=1 << 20)
        process = s.process
        del s
        gc.collect()
        self.assertEqual(process.wait(LIMIT), 0)


def child(place, queue):
    queue.put(bytes(cairn.open(place, framework="memory")["row"][:3].cast("B")))


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.place = os.path.join(folder.name, "c")
        checkpoint(cls.place, {"row": ("int64", (1000,), numbers(1000))})

    def test_import_is_light(self):
        done = run("""
            import sys
            before = set(sys.modules)
            import cairn
            heavy = {"torch", "numpy", "subprocess", "socket", "asyncio", "multiprocessing", "ctypes", "json"}
            assert not heavy & (set(sys.modules) - before), heavy & (set(sys.modules) - before)
            assert cairn.open and not {"torch", "numpy"} & set(sys.modules)
        """)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_multiprocessing(self):
        cairn.open(self.place)
        for method in ("fork", "spawn"):
            with self.subTest(method=method):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                p = context.Process(target=child, args=(self.place, queue))
                p.start()
                try:
                    self.assertEqual(queue.get(timeout=LIMIT), numbers(3))
                    p.join(LIMIT)
                    self.assertEqual(p.exitcode, 0)
                finally:
                    p.kill()
                    p.join(LIMIT)
                    queue.close()
        self.assertEqual(cairn.open(self.place, framework="memory")["row"][1:2].tolist(), [1])

    def test_a_child_of_a_fork_uses_a_checkpoint_of_its_parent(self):
        done = run(f"""
            import os, cairn
            from cairn import _saver as saver
            c = cairn.open({self.place!r}, framework="memory")
            mine = saver.shared()
            name = os.readlink(f"/proc/self/fd/{{mine._sock.fileno()}}")
            pid = os.fork()
            if not pid:
                links = []
                for fd in os.listdir("/proc/self/fd"):
                    try:
                        links.append(os.readlink(f"/proc/self/fd/{{fd}}"))
                    except OSError:
                        pass
                ok = name not in links and not mine.alive() and c["row"][3:5].tolist() == [3, 4]
                os._exit(0 if ok and saver.shared().process.pid != mine.process.pid else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert c["row"][3:5].tolist() == [3, 4] and saver.shared() is mine
        """)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_saver_ends_with_its_process_although_a_child_lives(self):
        r, w = os.pipe()
        self.addCleanup(os.close, r)
        self.addCleanup(os.close, w)
        # The child lives until it reads a byte.
        done = run(f"""
            import os, cairn
            from cairn import _saver as saver
            cairn.open({self.place!r})
            pid = os.fork()
            if not pid:
                os.close(0), os.close(1), os.close(2)
                os.read({r}, 1)
                os._exit(0)
            print(saver.shared().process.pid, pid, flush=True)
        """, pass_fds=(r,))
        self.assertEqual(done.stderr, "")
        process, forked = map(int, done.stdout.split())
        try:
            self.assertTrue(eventually(lambda: ended(process)))
            self.assertFalse(ended(forked))
        finally:
            os.write(w, b"x")
            self.assertTrue(eventually(lambda: ended(forked)))

    def test_the_interpreter_ends_without_close(self):
        for end in ("", "import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)", "raise SystemExit(4)"):
            with self.subTest(end=end):
                done = run(f"""
                    import cairn
                    from cairn import _saver as saver
                    c = cairn.open({self.place!r})
                    print(saver.shared().process.pid, flush=True)
                    {end}
                """)
                self.assertEqual(done.stderr, "")
                self.assertTrue(eventually(lambda: ended(int(done.stdout))))

    def test_interrupt(self):
        # The saver is stopped, so that the read waits until Ctrl-C.
        done = run(f"""
            import os, signal, threading, time, cairn
            from test_saver import interrupt_after_send, stop
            from cairn import _saver as saver
            c = cairn.open({self.place!r}, framework="memory")
            pid = saver.shared().process.pid
            print(pid, flush=True)
            stop(pid)
            threading.Thread(target=interrupt_after_send(), args=(lambda: os.kill(pid, signal.SIGCONT),)).start()
            try:
                c["row"][:]
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            assert c["row"][999:].tolist() == [999]
            assert saver.shared().arena.largest() == saver.shared().arena.window
        """)
        self.assertEqual(done.stderr, "")
        pid, *lines = done.stdout.split("\n")
        self.assertEqual(lines, ["interrupted", ""])
        self.assertTrue(eventually(lambda: ended(int(pid))))

    def test_interrupt_after_a_message(self):
        # The process may be writing to the memory, so no read uses it before the process has ended.
        with cairn.open(self.place, framework="memory") as c:
            s = saver.shared()
            send = s.send

            def interrupt(*message, **body):
                send(*message, **body)
                raise KeyboardInterrupt

            s.send = interrupt
            with self.assertRaises(KeyboardInterrupt):
                c.load()
            self.assertFalse(s.alive())
            self.assertEqual(s.arena.largest(), s.arena.window)
            c.load()
            self.assertTrue(ended(s.process.pid))
            self.assertIsNot(saver.shared(), s)

    def test_interrupt_of_a_saver_that_hangs(self):
        for read in ("c['row'][:]", "cairn.open(c.path)"):
            with self.subTest(read=read):
                done = run(f"""
                    import threading, cairn
                    from test_saver import interrupt_after_send, stop
                    from cairn import _saver as saver
                    c = cairn.open({self.place!r}, framework="memory")
                    pid = saver.shared().process.pid
                    print(pid, flush=True)
                    stop(pid)
                    threading.Thread(target=interrupt_after_send()).start()
                    {read}
                """)
                pid = int(done.stdout)
                try:
                    self.assertIn("KeyboardInterrupt", done.stderr)
                finally:
                    os.kill(pid, signal.SIGCONT)
                self.assertTrue(eventually(lambda: ended(pid)))


def tearDownModule():
    if saver._shared is not None:
        saver._shared.close()
        saver._shared = None


if __name__ == "__main__":
    unittest.main()
