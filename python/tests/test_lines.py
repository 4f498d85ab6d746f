"""Runs with jobs that go back: lines, folders of saves, and policies."""

import datetime
import os
import struct

import cairn
import saving
from cairn import _saver, runs
from test_run import Case


def tensors(step):
    return {"w": ("float32", (4,), struct.pack("<4f", *[step] * 4))}


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


class Lines(Case):
    def job(self):
        """Returns a saver process of its own, as a new job has."""
        saver = _saver.Saver(ceiling=8 << 20)
        self.addCleanup(saver.close)
        saving.join(saver)
        return saver

    def save_to(self, run, saver, *steps, name=None, **options):
        for step in steps:
            member = run.member(step) if name is None else runs.Member(run, name)
            report = saving.save(saver, member.path, tensors(step), step=step, time=now(),
                                 run=member.message(), **options)
        return report

    def go_on(self, run, checkpoint):
        """Notes a load of a checkpoint for the next save."""
        runs.loaded(checkpoint.path, checkpoint.save_id)

    def described(self, run):
        return [(c.name.removeprefix("step-").lstrip("0"), c.left, c.head) for c in run.checkpoints()]

    def test_a_job_goes_back(self):
        run = cairn.Run(self.path)
        self.save_to(run, self.job(), 400, 500)
        self.save_to(run, self.job(), 600, metrics={"loss": 2.5})
        run.tag(600, "release")
        by_step = {c.step: c for c in run.checkpoints()}
        self.assertEqual([c.parent for c in by_step.values()], ["", by_step[400].save_id, by_step[500].save_id])
        self.assertLess(by_step[400].commit, by_step[500].commit)

        second, run = self.job(), cairn.Run(self.path, keep="last 2")
        self.go_on(run, by_step[500])
        self.save_to(run, second, 510, 520)
        second.close()  # waits until the run is in order
        self.assertEqual(self.described(run), [("600", True, False), ("510", False, False), ("520", False, True)])
        left, _, head = run.checkpoints()
        self.assertIsNotNone(left.left_since)
        self.assertIsNone(head.left_since)
        self.assertEqual(run.latest(), head.path)

        report = self.save_to(run, self.job(), 600)
        self.assertEqual(report.folder, "step-000000600~2")
        old, new = (c for c in run.checkpoints() if c.step == 600)
        self.assertEqual((old.name, old.tags, old.metrics, old.left),
                         ("step-000000600", ("release",), {"loss": 2.5}, True))
        self.assertEqual((new.name, new.head), ("step-000000600~2", True))
        self.assertEqual(run.tag(600, "again"), ("again",))  # the one of the current line
        with cairn.open(old.path, framework="memory") as c:
            self.assertEqual(c["w"][:].tolist(), [600.0] * 4)

    def test_rewind(self):
        run = cairn.Run(self.path, remote=self.remote)
        first = self.job()
        for step in 500, 510, 600:
            uploads, member = [], run.member(step)
            saving.save(first, member.path, tensors(step), step=step, uploads=uploads, remote=member.remote,
                        run=member.message())
            uploads[0].result(120)
        for to in 500, "step-000000500", os.path.join(self.path, "step-000000500"), run.checkpoints()[0]:
            found = run.rewind(to)
            self.assertEqual((found.step, found.head, run.latest()), (500, True, found.path))
        self.assertEqual(self.described(cairn.Run(self.remote)),
                         [("500", False, True), ("510", True, False), ("600", True, False)])
        with self.assertRaises(cairn.NotFoundError):
            run.rewind(7)

        # Without a load, the process goes on from its own last save.
        self.save_to(cairn.Run(self.path), first, 700)
        self.assertEqual([c[0] for c in self.described(cairn.Run(self.path)) if not c[1]], ["500", "510", "600", "700"])
        found = run.rewind(500)
        self.go_on(run, found)
        self.save_to(cairn.Run(self.path), first, 510)
        self.assertEqual([c[0] for c in self.described(cairn.Run(self.path)) if not c[1]], ["500", "510~2"])
        self.assertEqual(run.rewind(600).name, "step-000000600")  # back to the line that was left

    def test_a_load_from_the_remote_run_counts(self):
        run = cairn.Run(self.path, remote=self.remote)
        runs.loaded(os.path.join(self.remote, "step-000000500"), "abc")
        self.assertEqual(run.member(510).message()["loaded"], {"folder": "step-000000500", "save_id": "abc"})
        self.assertNotIn("loaded", run.member(520).message())
        runs.loaded(os.path.join(self.folder, "other", "x"), "abc")
        self.assertNotIn("loaded", run.member(530).message())

    def test_a_folder_that_is_saved_to_again_and_again(self):
        run, saver = cairn.Run(self.path), self.job()
        for step in 1, 2, 3:
            self.save_to(run, saver, step)
            self.assertEqual(self.save_to(run, saver, step, name="last").folder, "last")
        self.assertEqual([(c.name, c.step) for c in run.checkpoints() if c.head], [("last", 3)])
        run.tag("last", "release")
        self.assertEqual(self.save_to(run, saver, 4, name="last").folder, "last~2")

    def test_prune_decides_about_tags(self):
        run = cairn.Run(self.path, keep="last 1")
        self.save_to(cairn.Run(self.path), self.job(), 1, 2)
        run.tag(1, "release")
        self.assertEqual([p.outcome for p in run.prune(dry_run=True).local], ["would remove", "kept"])

    def test_a_metric_that_no_checkpoint_has(self):
        policy = "last 1, best 2 by los"
        self.assertEqual(cairn.Run(self.path, keep=policy).keep, policy)  # the run has not begun
        self.save_to(cairn.Run(self.path), self.job(), 1, metrics={"loss": 2.0})
        with self.assertRaisesRegex(cairn.OptionsError, "the metrics are loss"):
            cairn.Run(self.path, keep=policy)
        with self.assertRaisesRegex(cairn.OptionsError, "metric los"):
            cairn.Run(self.path, keep=cairn.best(2, "los"))
        remote = os.path.join(self.folder, "remote")
        with self.assertRaisesRegex(cairn.OptionsError, "metric los"):
            cairn.Run(self.path, remote=remote, keep_remote=policy)
        cairn.Run(self.path, remote=remote, keep_remote="best 2 by loss")
        run = cairn.Run(self.path, keep="last 1, best 2 by loss")

        # A job that starts again before the first save with the metric is not refused, however it writes the policy.
        saver, keep = self.job(), [cairn.last(1), cairn.every(days=1), cairn.best(1, "eval_loss")]
        other = cairn.Run(os.path.join(self.folder, "other"), keep=keep)
        self.save_to(other, saver, 1, metrics={"loss": 2.0})
        saver.close()
        self.assertEqual(cairn.Run(other.path, keep=keep).keep, other.keep)
        with self.assertRaises(cairn.OptionsError):
            other.prune()
        self.assertEqual(run.prune().removed, 0)
