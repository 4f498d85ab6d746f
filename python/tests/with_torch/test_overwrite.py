"""Which checkpoints a save replaces, and when a run saves."""

import json
import os
import pathlib
import shutil
import unittest
import unittest.mock

import torch

import cairn
import cairn.torch
from cairn import _ours
from cairn.torch import _due
from device import Case, join, spawn

FORMATS = [("native", None), ("torchdcp", None), ("hf", None), ("hyper", None), ("torch", {"file": "m.pt"})]


def files(folder):
    out = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            out[name] = f.read()
    return out


def refused(rank, folder):
    """Saves to a checkpoint of another job on all ranks."""
    join("gloo", folder, rank, 2)
    try:
        cairn.torch.save({"w": torch.ones(3)}, os.path.join(folder, "a"), step=1)
    except cairn.ExistsError as e:
        if "neither saved nor loaded" in str(e):
            return
    raise AssertionError("the checkpoint was replaced")


def asked(rank, folder, steps):
    """Writes the steps in which a save is due on this rank, and how often it was asked."""
    join("gloo", folder, rank, 2)
    run = cairn.Run(os.path.join(folder, "run"), save="every 40 steps, every 2 seconds")
    now, asks, out = [0.0], 0, []

    def ask(due, real=_due._ask):
        nonlocal asks
        asks += 1
        return real(due)

    clock = unittest.mock.patch.object(_due.time, "monotonic", lambda: now[0])
    with clock, unittest.mock.patch.object(_due, "_ask", ask):
        for step in range(1, steps):
            now[0] += 0.1 + 0.01 * rank  # the clocks of the ranks differ
            if _due.is_due(run._due, step):
                out.append(step)
    with open(os.path.join(folder, f"due-{rank}"), "w") as f:
        json.dump([out, asks], f)


class Overwrite(Case):
    def test_a_save_keeps_the_checkpoint_of_another_job(self):
        state = {"w": torch.ones(3)}
        for format, options in FORMATS:
            with self.subTest(format):
                first, other = self.path(f"{format}-first"), self.path(f"{format}-other")

                def save(path, format=format, options=options, **more):
                    return cairn.torch.save(state, path, step=1, format=format, format_options=options, **more)

                for _ in range(2):  # a loop that saves to one place
                    save(first, metrics={"loss": 1.0})
                for handle in [cairn.torch.async_save(state, first, format=format, format_options=options)
                               for _ in range(3)]:
                    handle.result()
                cairn.torch.close()
                save(first)  # a new saver process
                shutil.copytree(first, other)
                before = files(other)
                with self.assertRaisesRegex(cairn.ExistsError, "overwrite=True"):
                    save(other)
                self.assertEqual(before, files(other))
                cairn.torch.load({"w": torch.zeros(3)}, other)
                save(other)
                with self.assertRaises(cairn.ExistsError):
                    save(other, overwrite=False)
                shutil.rmtree(other)
                shutil.copytree(first, other)
                with self.assertRaisesRegex(cairn.OptionsError, "overwrite is 'no'"):
                    save(other, overwrite="no")
                save(other, overwrite=True)

    def test_a_save_keeps_what_cannot_be_read(self):
        cairn.torch.save({"w": torch.ones(3)}, self.path("a"))
        with open(self.path("a/cairn.json"), "w") as f:
            f.write("{")
        before = files(self.path("a"))
        with self.assertRaisesRegex(cairn.ExistsError, "repair"):
            cairn.torch.save({"w": torch.ones(3)}, self.path("a"))
        self.assertEqual(before, files(self.path("a")))
        cairn.torch.save({"w": torch.ones(3)}, self.path("a"), overwrite=True)

    def test_all_ranks_are_refused(self):
        cairn.torch.save({"w": torch.ones(3)}, self.path("first"))
        shutil.copytree(self.path("first"), self.path("a"))
        before = files(self.path("a"))
        cairn.torch.close()
        spawn(2, refused, self.folder)
        self.assertEqual(before, files(self.path("a")))

    def test_an_upload_keeps_the_checkpoint_of_another_job(self):
        state = {"w": torch.ones(3)}
        cairn.torch.save(state, self.path("other"))
        shutil.copytree(self.path("other"), self.path("remote"))
        before = files(self.path("remote"))
        handle = cairn.torch.async_save(state, self.path("local"), remote=self.path("remote"))
        with self.assertRaises(cairn.ExistsError):
            handle.uploaded.result()
        self.assertEqual(before, files(self.path("remote")))
        cairn.torch.save(state, self.path("local"), remote=self.path("remote"), overwrite=True)
        cairn.torch.save(state, self.path("local"), remote=self.path("remote"))

    def test_saves_that_wait_keep_the_checkpoint_of_another_job(self):
        state, file = {"w": torch.ones(3)}, {"format": "torch", "format_options": {"file": "m.pt"}}
        cairn.torch.save({"w": torch.zeros(3)}, self.path("other"), **file)
        shutil.copytree(self.path("other"), self.path("a"))
        for handle in [cairn.torch.async_save(state, self.path("a"), **file) for _ in range(3)]:
            self.assertIsInstance(handle.exception(), cairn.ExistsError)
        for _ in range(2):
            handle = cairn.torch.async_save(state, self.path("local"), remote=self.path("a"), **file)
            self.assertIsInstance(handle.uploaded.exception(), cairn.ExistsError)
        cairn.torch.save(state, self.path("a"), format="torch", format_options={"file": "n.pt"})
        with self.assertRaises(cairn.ExistsError):
            cairn.torch.save(state, self.path("a"), **file)
        cairn.torch.load(state, self.path("a/m.pt"))
        cairn.torch.save(state, self.path("a"), **file)

    def test_a_save_whose_saver_has_died_counts(self):
        place = _ours.note_begun(self.path("a"), "1")  # the error of its handle does not say whether it was committed
        _ours.note_begun(self.path("a"), "2")
        self.assertEqual(_ours.ids_at(self.path("a")), ["1", "2"])
        _ours.note_loaded(self.path("a"), "0")  # while the saves are pending
        self.assertEqual(_ours.ids_at(self.path("a")), ["0", "", "1", "2"])
        _ours.note_saved(place, "1", "1b")
        self.assertEqual(_ours.ids_at(self.path("a")), ["1b", "", "2"])
        for i in range(100):
            _ours.note_begun(self.path("a"), f"failed-{i}")
        self.assertEqual(_ours.ids_at(self.path("a"))[:2], ["1b", ""])
        self.assertLess(len(_ours.ids_at(self.path("a"))), 70)


class Choose(Case):
    def test_steps_and_the_best_of_a_run(self):
        run, state = cairn.Run(self.path("run")), {"w": torch.ones(3)}
        for step, loss in enumerate([3.0, 1.0, 2.0, float("nan")]):
            cairn.torch.save({"w": torch.full((3,), float(step))}, run, step=step, metrics={"loss": loss})
        for options, want in [({"step": 2}, 2), ({"best": "loss"}, 1), ({"best": "highest loss"}, 0), ({}, 3)]:
            self.assertEqual(cairn.torch.load(state, run, **options).step, want)
            self.assertEqual(state["w"][0].item(), want)
        self.assertEqual((run.best("loss").step, run.best("loss", highest=True).step, run.step(2).step), (1, 0, 2))
        with self.assertRaisesRegex(cairn.NotFoundError, "metric los: no checkpoint has the metric los; .* loss"):
            run.best("los")
        with self.assertRaisesRegex(cairn.OptionsError, "^unusable policy: best by .*is unexpected"):
            cairn.torch.load(state, run, best="first loss")
        with open(os.path.join(run.step(0).path, "cairn-notes.json"), "w") as f:
            f.write("{")
        with self.assertRaisesRegex(cairn.CorruptError, "step-000000000 may be it: .*remove the file"):
            cairn.torch.load(state, run, best="loss")
        with self.assertRaisesRegex(cairn.OptionsError, r"pass cairn.Run\("):
            cairn.torch.load(state, self.path("run"), best="loss")
        with self.assertRaises(cairn.NotFoundError):
            cairn.torch.load(state, run, step=9)
        for options in {"step": 1, "best": "loss"}, {"best": "first loss"}:
            with self.assertRaises(cairn.OptionsError):
                cairn.torch.load(state, run, **options)


class Due(Case):
    def test_steps(self):
        here = pathlib.Path(__file__).parent  # interop puts the file there
        beside = here / "due.json"
        with open(beside if beside.exists() else here.parents[2] / "run" / "testdata" / "due.json") as f:
            cases = [c for c in json.load(f) if "calls" in c]
        self.assertGreater(len(cases), 3)
        for c in cases:
            run = cairn.Run(self.path("run"), save=c["policy"])
            with unittest.mock.patch.object(_due, "broadcast", side_effect=AssertionError("rank 0 was asked")):
                self.assertEqual([s for s in c["calls"] if _due.is_due(run._due, s)], c["due"], c["policy"])
        run = cairn.Run(self.path("run"), save=[cairn.every(steps=10)])
        for handle in [run.save_if_due({"w": torch.ones(3)}, step) for step in (49, 50)]:
            if handle is not None:
                handle.result()
        self.assertEqual([c.step for c in run.checkpoints()], [50])

    def test_policies_that_do_not_say_when(self):
        with self.assertRaises(cairn.OptionsError):
            cairn.Run(self.path("run"), save="")
        with self.assertRaises(cairn.OptionsError):
            cairn.Run(self.path("run")).save_if_due({}, 1)

    def test_ranks_decide_alike_and_rarely_ask(self):
        spawn(2, asked, self.folder, 200)
        said = []
        for rank in range(2):
            with open(self.path(f"due-{rank}")) as f:
                said.append(json.load(f))
        (first, asks), (second, none) = said
        self.assertEqual(first, second)
        self.assertEqual(none, 0)  # only rank 0 looks at its clock
        self.assertTrue({40, 80, 120, 160} <= set(first), first)
        gaps = [b - a for a, b in zip([0, *first], first)]
        self.assertTrue(all(gap <= 22 for gap in gaps), first)
        self.assertLess(asks, 100)


if __name__ == "__main__":
    unittest.main()
