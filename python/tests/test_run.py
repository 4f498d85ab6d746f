"""Runs: their checkpoints, policies, tags, removals and uploads."""

import json
import math
import os
import pathlib
import shutil
import struct
import tempfile
import unittest

import cairn
import saving
from cairn import _address, _saver
from cairn.runs import Member

SMALL = {"w": ("float32", (4,), struct.pack("<4f", *range(4)))}


class Addresses(unittest.TestCase):
    def test_join_and_split(self):
        for above, name, whole in (
                ("/run", "step-1", "/run/step-1"),
                ("s3://bucket/run", "step-1", "s3://bucket/run/step-1"),
                ("s3://bucket/run?region=x&endpoint=http://h:1/", "step-1",
                 "s3://bucket/run/step-1?region=x&endpoint=http://h:1/"),
                ("s3://bucket", "epoch=1-step=8.ckpt", "s3://bucket/epoch=1-step=8.ckpt"),
                ("gs://bucket/run", "a b%", "gs://bucket/run/a%20b%25")):
            with self.subTest(whole):
                self.assertEqual(_address.join_address(above, name), whole)
                self.assertEqual(_address.split_address(whole), (above, name))
        self.assertEqual(_address.join_address("s3://bucket/run/", "x"), "s3://bucket/run/x")
        self.assertEqual(_address.split_address("s3://bucket/run/x/"), ("s3://bucket/run", "x"))
        self.assertEqual(_address.split_address("s3://bucket"), ("s3://bucket", ""))


class Rules(unittest.TestCase):
    def test_rules_make_text(self):
        rules = [cairn.last(3), cairn.every(steps=5000), cairn.every(hours=6), cairn.every(days=1),
                 cairn.best(2, "loss"), cairn.best(1, "accuracy", highest=True), cairn.best(1, "lowest"),
                 cairn.tagged(), cairn.tagged("release"), cairn.within(minutes=90), cairn.left(days=2),
                 cairn.at_most("2TB")]
        want = ("last 3, every 5000 steps, every 6 hours, every 1 day, best 2 by loss, best 1 by highest accuracy, "
                "best 1 by lowest lowest, tagged, tagged release, within 90 minutes, left within 2 days, at most 2TB")
        run = cairn.Run("run", keep=rules)  # the program understands it
        self.assertEqual(run.keep, want)
        self.assertEqual(cairn.Run("run", keep=want).keep, want)
        self.assertEqual(cairn.Run("run", keep=cairn.last(1)).keep, "last 1")
        self.assertEqual(cairn.Run("run", keep=["last 1", cairn.at_most(5)]).keep, "last 1, at most 5 B")
        self.assertEqual(cairn.Run("run").keep, "")

    def test_what_is_wrong_is_refused_at_once(self):
        for keep in ("last", "last 0", "newest 3", "last 3,, tagged", cairn.last(0), cairn.every(steps=-1),
                     cairn.at_most("2 bananas"), 3, [3]):
            with self.subTest(keep=keep), self.assertRaises(cairn.OptionsError):
                cairn.Run("run", keep=keep)
        for make in (lambda: cairn.every(), lambda: cairn.every(steps=1, hours=1), lambda: cairn.within(),
                     lambda: cairn.tagged("a b"), lambda: cairn.best(1, "loss, last 1"), lambda: cairn.best(1, ""),
                     lambda: cairn.Run("run", keep_remote="last 1"), lambda: cairn.Run("")):
            with self.assertRaises(cairn.OptionsError):
                make()
        with self.assertRaises(TypeError):
            cairn.last(1.5)
        with self.assertRaisesRegex(cairn.OptionsError, "newest"):
            cairn.Run("run", remote="other", keep_remote="newest 3")


class When(unittest.TestCase):
    def test_policies_say_when_to_save(self):
        for c in json.loads((pathlib.Path(__file__).parents[2] / "run" / "testdata" / "due.json").read_text()):
            with self.subTest(c["policy"]):
                if error := c.get("error"):
                    with self.assertRaises(cairn.OptionsError) as refused:
                        cairn.Run("run", save=c["policy"])
                    self.assertEqual(str(refused.exception), error)
                else:
                    due = cairn.Run("run", save=c["policy"])._due
                    self.assertEqual((due.steps, due.period), (c.get("steps", []), c.get("seconds")))


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path, self.remote = os.path.join(self.folder, "run"), os.path.join(self.folder, "remote")

    def save(self, *steps, **options):
        for step in steps:
            saving.checkpoint(os.path.join(self.path, f"step-{step:09}"), SMALL, step=step, **options)

    def steps(self, run):
        return [c.step for c in run.checkpoints()]


class Runs(Case):
    def test_a_run_knows_its_checkpoints(self):
        self.assertEqual(cairn.Run(self.path).checkpoints(), [])
        self.assertIsNone(cairn.Run(self.path).latest())
        self.save(100, metrics={"loss": 2.5, "norm": "NaN", "max": "+Inf"})
        self.save(200)
        os.makedirs(os.path.join(self.path, "step-000000300"))
        with open(os.path.join(self.path, "step-000000300", "cairn.json"), "w") as f:
            f.write("{")
        run = cairn.Run(pathlib.Path(self.path))
        first, second, broken = run.checkpoints()
        self.assertEqual((first.name, first.step, first.copies, first.complete), ("step-000000100", 100, "local", True))
        self.assertEqual((first.metrics["loss"], first.metrics["max"]), (2.5, math.inf))
        self.assertTrue(math.isnan(first.metrics["norm"]))
        self.assertEqual((first.time, first.format), ("2026-01-02T03:04:05Z", "native"))
        self.assertEqual(first.path, os.path.join(self.path, "step-000000100"))
        files = (os.path.join(at, n) for at, _, names in os.walk(first.path) for n in names)
        self.assertEqual(first.bytes, sum(map(os.path.getsize, files)))
        self.assertEqual((second.metrics, second.tags, second.remote, second.not_uploaded), ({}, (), None, False))
        self.assertEqual((broken.step, broken.complete, broken.path), (300, False, None))
        self.assertIn("corrupt", broken.local.problem)
        self.assertEqual(run.latest(), second.path)
        self.assertEqual(repr(cairn.Run(self.path, keep="last 1")), f"cairn.Run({self.path!r}, keep='last 1')")

    def test_prune(self):
        self.save(1, 2, 3, 4)
        run = cairn.Run(self.path, keep=[cairn.last(2), cairn.tagged()])
        self.assertEqual(run.tag(1, "release"), ("release",))
        report = run.prune(dry_run=True)
        self.assertEqual((report.removed, [p.outcome for p in report.local]),
                         (1, ["kept", "would remove", "kept", "kept"]))
        self.assertEqual(report.local[0].reasons, ("tagged",))
        self.assertEqual(report.local[1].path, os.path.join(self.path, "step-000000002"))
        self.assertEqual(self.steps(run), [1, 2, 3, 4])
        self.assertEqual((run.prune().removed, self.steps(run)), (1, [1, 3, 4]))
        self.assertEqual(cairn.Run(os.path.join(self.folder, "nothing"), keep="last 1").prune().removed, 0)
        with self.assertRaises(cairn.OptionsError):
            cairn.Run(self.path).prune()

    def test_tags_and_metrics(self):
        self.save(1, 2)
        run = cairn.Run(self.path)
        self.assertEqual(run.tag("step-000000001", "b", "a"), ("a", "b"))
        with self.assertWarnsRegex(UserWarning, "has no tag"):
            self.assertEqual(run.tag(os.path.join(self.path, "step-000000001"), remove=["b", "c"]), ("a",))
        self.assertEqual(run.tag(run.checkpoints()[0], metrics={"loss": 1e-9, "x": -math.inf}), ("a",))
        first = run.checkpoints()[0]
        self.assertEqual((first.tags, first.metrics), (("a",), {"loss": 1e-9, "x": -math.inf}))
        with self.assertRaises(cairn.NotFoundError):
            run.tag(7, "a")
        with self.assertRaises(cairn.NotFoundError):
            run.tag("step-7", "a")
        with self.assertRaises(cairn.OptionsError):
            run.tag(1, "a b")

    def test_remove(self):
        self.save(1, 2, 3)
        run = cairn.Run(self.path)
        run.remove(1)
        self.assertEqual(self.steps(run), [2, 3])
        with self.assertRaisesRegex(cairn.CairnError, "newest"):
            run.remove(3)
        run.remove("step-000000003", force=True)
        self.assertEqual(self.steps(run), [2])
        with self.assertRaises(cairn.NotFoundError):
            run.remove(1)
        self.assertEqual(os.listdir(self.path), ["step-000000002"])

    def test_remove_of_both_copies_or_none(self):
        self.save(1, 2)
        run = cairn.Run(self.path, remote=self.remote)
        run.sync()
        cairn.Run(self.path).rewind(1)  # in the remote run, 2 is still the newest
        with self.assertRaisesRegex(cairn.CairnError, "newest"):
            run.remove(2)
        self.assertEqual([c.copies for c in run.checkpoints()], ["both", "both"])
        run.remove(2, force=True)
        self.assertEqual(self.steps(run), [1])

    def test_uploads(self):
        self.save(1, 2, 3)
        run = cairn.Run(self.path, keep="last 1", remote=self.remote, keep_remote="last 2")
        self.assertEqual([c.not_uploaded for c in run.checkpoints()], [False, True, True])
        self.assertEqual([p.outcome for p in run.prune(dry_run=True).local], ["would remove", "not uploaded", "kept"])
        self.assertEqual([s.state for s in run.sync(dry_run=True).checkpoints], ["lacking", "lacking"])
        self.assertEqual(sorted(run.sync().copied), ["step-000000002", "step-000000003"])
        self.assertEqual([c.copies for c in run.checkpoints()], ["local", "both", "both"])
        self.assertEqual(run.sync().copied, ())
        run.prune()
        self.assertEqual([(c.step, c.copies, c.uploaded) for c in run.checkpoints()],
                         [(2, "remote", True), (3, "both", True)])
        self.assertEqual(run.checkpoints()[0].path, os.path.join(self.remote, "step-000000002"))
        self.assertEqual(run.tag(2, "far"), ("far",))
        self.assertEqual(run.tag(3, "near"), ("near",))
        self.assertEqual([c.tags for c in cairn.Run(self.remote).checkpoints()], [("far",), ("near",)])
        with self.assertRaisesRegex(cairn.CairnError, "it has tags: near"):
            run.remove(3, force=True)
        run.remove(3, force=True, tagged_too=True)
        self.assertEqual(self.steps(run), [2])
        self.assertEqual(run.latest(), os.path.join(self.remote, "step-000000002"))
        with self.assertRaises(cairn.OptionsError):
            cairn.Run(self.path).sync()

    def test_places(self):
        run = cairn.Run("s3://bucket/run?region=x", remote="gs://other/run")
        member = run.member(7)
        self.assertEqual((member.path, member.remote), ("s3://bucket/run/step-000000007?region=x",
                                                        "gs://other/run/step-000000007"))
        self.assertEqual(run.path_of(7), member.path)
        self.assertEqual(run.find("s3://bucket/run/x.ckpt?region=x"), Member(run, "x.ckpt"))
        for elsewhere in ("s3://bucket/run/x.ckpt", "s3://bucket/run/a/x?region=x", "s3://bucket", "run/x"):
            self.assertIsNone(run.find(elsewhere))
        for step in (None, -1):
            with self.assertRaises(cairn.OptionsError):
                run.member(step)


    def test_the_best_of_both_places(self):
        for step, loss in (1, 2.0), (2, 1.0), (3, 3.0):
            self.save(step, metrics={"loss": loss})
        run = cairn.Run(self.path, remote=self.remote)
        saving.checkpoint(os.path.join(self.remote, "step-000000004"), SMALL, step=4, metrics={"loss": 0.5})
        self.assertEqual(run.best("loss").path, os.path.join(self.remote, "step-000000004"))
        self.assertEqual(run.best("loss", highest=True).path, os.path.join(self.path, "step-000000003"))
        with open(os.path.join(self.path, "step-000000003", "cairn-notes.json"), "w") as f:
            f.write("{")  # it may be the best one
        with self.assertRaisesRegex(cairn.CorruptError, "step-000000003 may be it"):
            run.best("loss")
        os.remove(f.name)
        with self.assertRaisesRegex(cairn.NotFoundError, "the metrics are loss"):
            run.best("los")


class Saves(Case):
    """The work of a saver process on a run after a save."""

    def test_a_save_keeps_the_run_in_order(self):
        run = cairn.Run(self.path, keep="last 2, best 1 by loss", remote=self.remote, keep_remote="every 2 steps")
        saver = _saver.Saver(ceiling=8 << 20)
        try:
            saving.join(saver)
            for step, loss in (1, 5.0), (2, 1.0), (3, "NaN"), (4, 4.0), (5, 3.0):
                uploads = []
                member = run.member(step)
                saving.save(saver, member.path, SMALL, step=step, uploads=uploads, remote=member.remote,
                            metrics={"loss": loss}, run=member.message())
                uploads[0].result(120)
        finally:
            saver.close()
        found = {c.step: c.copies for c in run.checkpoints()}
        self.assertEqual(found, {2: "both", 4: "both", 5: "both"})
        self.assertEqual(run.checkpoints()[0].metrics, {"loss": 1.0})
        # Another program knows the settings.
        again = cairn.Run(self.path)
        self.assertEqual({c.step: c.copies for c in again.checkpoints()}, found)
        self.assertEqual(again.prune(dry_run=True).removed, 0)

    def test_a_failed_upload_is_repeated(self):
        blocker = os.path.join(self.remote, "step-000000001", "cairn.json")
        os.makedirs(os.path.join(blocker, "in the way"))
        run = cairn.Run(self.path, keep="last 1", remote=self.remote)
        saver = _saver.Saver(ceiling=8 << 20)
        try:
            saving.join(saver)

            def save(step):
                uploads = []
                member = run.member(step)
                saving.save(saver, member.path, SMALL, step=step, uploads=uploads, remote=member.remote,
                            run=member.message())
                uploads[0].result(120)

            with self.assertRaises(cairn.CairnError):
                save(1)
            self.assertEqual([(c.step, c.not_uploaded) for c in run.checkpoints()], [(1, True)])
            shutil.rmtree(blocker)
            save(2)
        finally:
            saver.close()
        self.assertEqual([(c.step, c.copies) for c in run.checkpoints()], [(1, "both"), (2, "both")])  # 1 is the parent

    def test_an_interrupted_upload_is_repeated(self):
        run = cairn.Run(self.path, remote=self.remote)
        large = {"w": ("uint8", (64 << 20,), bytes(64 << 20))}
        for step, tensors in (1, large), (2, SMALL), (3, SMALL):
            saver = _saver.Saver(ceiling=160 << 20)
            member, uploads = run.member(step), []
            try:
                saving.join(saver)
                saving.save(saver, member.path, tensors, step=step, uploads=uploads, remote=member.remote,
                            run=member.message())
                if step == 1:
                    saver.process.kill()  # while it uploads
                else:
                    uploads[0].result(120)
            finally:
                saver.close()
            if step == 2:  # it may end before it has uploaded all
                run.sync()
                self.assertEqual([(c.step, c.copies) for c in run.checkpoints()], [(1, "both"), (2, "both")])
                cairn.Run(self.remote).remove(1)
                self.assertEqual([(c.step, c.not_uploaded) for c in run.checkpoints()], [(1, True), (2, False)])
        self.assertEqual([(c.step, c.copies) for c in run.checkpoints()], [(1, "both"), (2, "both"), (3, "both")])
        with cairn.open(os.path.join(self.remote, "step-000000001"), framework="memory") as c:
            self.assertEqual(bytes(c["w"][:]), large["w"][2])

    def test_a_wrong_policy_fails_the_save(self):
        with self.assertRaisesRegex(cairn.OptionsError, "newest"):
            saving.checkpoint(os.path.join(self.path, "step-1"), SMALL, run={"keep": "newest 3"})


if __name__ == "__main__":
    unittest.main()
