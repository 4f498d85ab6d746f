"""Saves to runs and loads from them, and the removal of checkpoints for frameworks."""

import concurrent.futures
import math
import os
import shutil
import threading
import time
import unittest
import unittest.mock
import warnings

import torch
import torch.distributed.checkpoint as dcp

import cairn
import cairn.torch
from cairn.torch import _removal
from cairn.torch._removal import Remover, remove_now
from device import Case, blank, differs, join, noise, spawn


def state_of(seed):
    return {"w": noise((1000,), "int32", seed=seed), "step": seed}


class Runs(Case):
    def run_of(self, **options):
        return cairn.Run(self.path("run"), **options)

    def test_saves_keep_the_run_in_order(self):
        run = self.run_of(keep="last 2, best 1 by loss")
        for step, loss in (1, 3.0), (2, torch.tensor(1.0)), (3, math.nan), (4, 2.0):
            cairn.torch.async_save(state_of(step), run, step=step, metrics={"loss": loss}).result()
        cairn.torch.save(state_of(5), run, step=5, metrics={"loss": 4})
        cairn.torch.close()  # waits until the run is in order
        found = run.checkpoints()
        self.assertEqual([(c.name, c.metrics) for c in found],
                         [("step-000000002", {"loss": 1.0}), ("step-000000004", {"loss": 2.0}),
                          ("step-000000005", {"loss": 4.0})])
        self.assertEqual(found[2].path, run.path_of(5))
        got = blank(state_of(0))
        self.assertEqual(cairn.torch.load(got, run).step, 5)
        self.assert_same(state_of(5), got)

    def test_a_run_in_two_places(self):
        run = self.run_of(keep="last 1", remote=self.path("remote"), keep_remote="every 2 steps")
        for step in range(1, 5):
            handle = cairn.torch.async_save(state_of(step), run, step=step)
            self.assertEqual(handle.uploaded.result().save_id, handle.result().save_id)
        cairn.torch.close()
        self.assertEqual([(c.step, c.copies) for c in run.checkpoints()],
                         [(2, "remote"), (3, "both"), (4, "both")])  # 3 is the parent of 4, which the save protects
        run.remove(3)
        cairn.Run(run.path).remove(4, force=True)  # without remote: from path alone
        self.assertEqual([(c.step, c.copies) for c in run.checkpoints()], [(2, "remote"), (4, "remote")])
        run.remove(4, force=True)
        self.assertEqual([(c.step, c.copies) for c in run.checkpoints()], [(2, "remote")])
        got = blank(state_of(0))
        cairn.torch.load(got, run)
        self.assert_same(state_of(2), got)

    def test_an_upload_that_fails_is_repeated_with_the_next_save(self):
        run = self.run_of(remote=self.path("remote"))
        blocker = os.path.join(self.path("remote"), "step-000000001", "cairn.json")
        os.makedirs(os.path.join(blocker, "in the way"))
        handle = cairn.torch.async_save(state_of(1), run, step=1)
        handle.result()
        self.assertIsInstance(handle.uploaded.exception(), cairn.CairnError)
        self.assertEqual([(c.copies, c.not_uploaded) for c in run.checkpoints()], [("local", True)])
        shutil.rmtree(blocker)
        cairn.torch.save(state_of(2), run, step=2)
        cairn.torch.close()
        self.assertEqual([(c.copies, c.not_uploaded) for c in run.checkpoints()], [("both", False)] * 2)

    def test_problems_after_the_save_are_warnings(self):
        with open(self.path("remote"), "w"):  # a file in the place of the remote run
            pass
        run = self.run_of(keep="last 1", remote=self.path("remote"))
        with self.assertLogs("cairn", "WARNING") as logged:
            handle = cairn.torch.async_save(state_of(1), run, step=1)
            handle.result()
            self.assertIsInstance(handle.uploaded.exception(), cairn.CairnError)
            end = time.monotonic() + 200
            while not logged.output and time.monotonic() < end:
                time.sleep(0.05)
        self.assertIn(self.path("remote"), handle.warnings[-1])
        self.assertIn(handle.warnings[-1], logged.output[0])

    def test_what_is_refused(self):
        run = self.run_of()
        with self.assertRaisesRegex(cairn.NotFoundError, "no complete checkpoint"):
            cairn.torch.load(state_of(0), run)
        for options in ({}, {"step": -1}, {"step": 1, "remote": self.path("remote")},
                        {"step": 1, "metrics": {"loss": "low"}}, {"step": 1, "metrics": {3: 1.0}},
                        {"step": 1, "metrics": {"loss": torch.zeros(2)}}, {"step": 1, "local_bytes": 1}):
            with self.subTest(options), self.assertRaises(cairn.OptionsError):
                cairn.torch.save(state_of(1), run, **options)
        with self.assertRaises(cairn.OptionsError):  # a metric is one word
            cairn.torch.save(state_of(1), run, step=1, metrics={"a b": 1.0})
        self.assertEqual(run.checkpoints(), [])

    def test_a_job_goes_back(self):
        for how in "path", "rewind":
            with self.subTest(how):
                self.goes_back(cairn.Run(self.path(how)), how)

    def goes_back(self, run, how):
        for step in 400, 500, 600:
            cairn.torch.save(state_of(step), run, step=step, metrics={"loss": step})
        run.tag(600, "release")
        run = cairn.Run(run.path, keep="last 2")
        got = blank(state_of(0))
        if how == "rewind":
            run.rewind(500)
            cairn.torch.load(got, run)
        else:
            cairn.torch.load(got, run.path_of(500))
        self.assert_same(state_of(500), got)
        dict(cairn.torch.weights(run.path_of(400)))  # a read that no save goes on from

        for step in 510, 520:
            handle = cairn.torch.async_save(state_of(step), run, step=step, metrics={"loss": step})
            self.assertEqual((handle.result().folder, handle.path), (f"step-000000{step}", run.path_of(step)))
        cairn.torch.close()  # waits until the run is in order
        self.assertEqual([(c.step, c.left, c.head) for c in run.checkpoints()],
                         [(600, True, False), (510, False, False), (520, False, True)])
        got = blank(state_of(0))
        self.assertEqual(cairn.torch.load(got, run).step, 520)
        self.assert_same(state_of(520), got)

        handle = cairn.torch.async_save(state_of(601), run, step=600, metrics={"loss": 1})
        self.assertEqual(handle.result().folder, "step-000000600~2")
        self.assertEqual(handle.path, run.path_of(600) + "~2")
        old, new = (c for c in run.checkpoints() if c.step == 600)
        self.assertEqual((old.path, old.tags, old.metrics), (run.path_of(600), ("release",), {"loss": 600.0}))
        self.assertEqual((new.path, new.head, new.metrics), (handle.path, True, {"loss": 1.0}))
        for path, seed in (old.path, 600), (run, 601):
            got = blank(state_of(0))
            cairn.torch.load(got, path)
            self.assert_same(state_of(seed), got)

    def test_metrics_without_a_run(self):
        cairn.torch.save(state_of(1), os.path.join(self.path("run"), "one"), metrics={"loss": 0.5})
        self.assertEqual([c.metrics for c in self.run_of().checkpoints()], [{"loss": 0.5}])

    def test_only_what_has_changed(self):
        state = {"frozen": torch.randn(1 << 18), "w": torch.zeros(10)}
        alone = cairn.Run(self.path("alone"), alone=True)
        for step in 1, 2, 3:
            state["w"] += 1
            for run in self.run_of(), alone:
                cairn.torch.save(state, run, step=step)
        first, _, last = (c.bytes for c in self.run_of().checkpoints())
        self.assertLess(last, first / 4)
        for run in self.run_of(), alone:
            loaded = {name: torch.zeros_like(value) for name, value in state.items()}
            cairn.torch.load(loaded, run)
            for name, value in state.items():
                self.assertTrue(torch.equal(loaded[name], value), name)
        sizes = [c.bytes for c in alone.checkpoints()]
        self.assertLess(max(sizes), min(sizes) * 1.1)

    def test_writer(self):
        run = self.run_of(keep="last 1", remote=self.path("remote"))
        for step in 1, 2:
            writer = cairn.torch.Writer(run, step=step, metrics={"loss": step})
            dcp.save(state_of(step), storage_writer=writer, no_dist=True)
            self.assertEqual(os.fspath(writer.path), run.path_of(step))
            self.assertEqual(writer.uploaded.result().save_id, writer.report.save_id)
        cairn.torch.close()
        self.assertEqual([(c.step, c.copies, c.metrics) for c in run.checkpoints()],
                         [(1, "both", {"loss": 1.0}), (2, "both", {"loss": 2.0})])
        writer = cairn.torch.Writer(run, step=3)
        dcp.save(state_of(3), storage_writer=writer, checkpoint_id=os.path.join(run.path, "mine"), no_dist=True)
        cairn.torch.close()
        self.assertEqual([c.name for c in run.checkpoints()][-1], "mine")
        with self.assertRaises(BaseException) as caught:
            dcp.save(state_of(4), storage_writer=writer, checkpoint_id=self.path("elsewhere"), no_dist=True)
        self.assertIn("not directly below", str(caught.exception))
        with self.assertRaises(cairn.OptionsError):
            cairn.torch.Writer(run)

    def test_ranks_load_the_same_checkpoint(self):
        run = self.run_of()
        for step in 1, 2:
            cairn.torch.save(state_of(step), run, step=step)
        cairn.torch.close()
        spawn(2, load_both, self.folder)
        self.assertEqual([c.step for c in run.checkpoints()], [2, 3])


def load_both(rank, folder):
    """Loads from a run, and from one without checkpoints, and saves with a policy."""
    join("gloo", folder, rank, 2)
    run = cairn.Run(os.path.join(folder, "run"), keep="last 2")
    for _ in range(3):
        got = blank(state_of(0))
        cairn.torch.load(got, run)
        if difference := differs(state_of(2), got):
            raise AssertionError(difference)
    try:
        cairn.torch.load(blank(state_of(0)), cairn.Run(os.path.join(folder, "nothing")))
    except cairn.NotFoundError:
        pass
    else:
        raise AssertionError("a run without checkpoints was loaded")
    cairn.torch.save(state_of(3), run, step=3)


class Removals(Case):
    """The removal of checkpoints for Lightning and the Trainer of Hugging Face."""

    def save(self, step):
        path = os.path.join(self.path("run"), f"step-{step}")
        return path, cairn.torch.async_save({"w": noise((1 << 20,), seed=step)}, path, step=step)

    def test_a_checkpoint_whose_save_is_under_way(self):
        remover = Remover()
        path, handle = self.save(1)
        remover.add(path)
        remover.begin(handle)
        remover.settle()
        self.assertTrue(handle.done())
        self.assertFalse(os.path.exists(path))

    def test_nothing_is_removed_if_the_save_fails(self):
        remover = Remover()
        path, handle = self.save(1)
        handle.result()
        os.makedirs(self.path("run"), exist_ok=True)
        with open(os.path.join(self.path("run"), "step-2"), "w"):
            pass
        cairn.torch.save({"w": noise((3,))}, os.path.join(self.path("run"), "other"), format="torchdcp")
        bad = cairn.torch.async_save({"w": noise((3,))}, os.path.join(self.path("run"), "other"))
        remover.add(path)
        remover.begin(bad)
        remover.settle(last=True)
        self.assertTrue(os.path.exists(path))
        self.assertIsInstance(bad.exception(), cairn.ExistsError)

    def test_a_checkpoint_with_tags_stays_and_is_reported_once(self):
        remover, run = Remover(), cairn.Run(self.path("run"))
        paths = []
        for step in (1, 2, 3):
            path, handle = self.save(step)
            handle.result()
            paths.append(path)
        run.tag("step-1", "release")
        with open(os.path.join(paths[1], "cairn-notes.json"), "w") as f:
            f.write("{")  # it may have tags
        with self.assertWarnsRegex(UserWarning, "a checkpoint stays: .*it has tags: release") as told:
            for _ in range(2):
                for path in paths:
                    remover.add(path)
                remover.begin(None)
                remover.settle()
        self.assertEqual(sum("it has tags" in str(w.message) for w in told.warnings), 2)
        self.assertEqual([os.path.exists(path) for path in paths], [True, True, False])

    def test_what_is_not_a_checkpoint(self):
        run = self.path("run")
        for name in ("half", "link", "file"):
            path = os.path.join(run, name)
            os.makedirs(run, exist_ok=True)
            if name == "half":
                os.makedirs(path)
                with open(os.path.join(path, "x.safetensors"), "w"):
                    pass
            elif name == "link":
                os.symlink(self.path("target"), path)
                os.makedirs(self.path("target"))
            else:
                with open(path, "w"):
                    pass
            remove_now(path)
            self.assertFalse(os.path.lexists(path), name)
        self.assertTrue(os.path.isdir(self.path("target")))
        remove_now(os.path.join(run, "nothing"))

    def test_a_checkpoint_whose_record_is_damaged_stays(self):
        path, handle = self.save(1)
        handle.result()
        with open(os.path.join(path, "cairn.json"), "r+") as f:
            f.write("#")
        remover = Remover()
        remover.add(path)
        remover.begin(None)
        with self.assertWarnsRegex(UserWarning, "a checkpoint could not be removed: .*cairn.json"):
            remover.settle()
        self.assertIn("cairn.json", os.listdir(path))
        self.assertTrue(any(name.endswith(".safetensors") for name in os.listdir(path)))

    def test_what_is_in_use_is_removed_later(self):
        remover, calls = Remover(), []

        def remove_one(address, force):
            calls.append(address)
            if len(calls) < 3:
                raise cairn.InUseError("it is being read", ("storage.inuse",))

        with unittest.mock.patch.object(_removal, "remove_one", remove_one):
            remover.add("s3://bucket/run/step-1")
            for n in 1, 2, 3, 3:
                remover.begin(None)
                remover.settle()
                self.assertEqual(calls, ["s3://bucket/run/step-1"] * n)
            calls.clear()
            remover.add("s3://bucket/run/step-2")
            with self.assertWarnsRegex(UserWarning, "a checkpoint stays: it is being read"):
                remover.settle(last=True)
            remover.settle(last=True)
            self.assertEqual(calls, ["s3://bucket/run/step-2"])

    def test_an_upload_that_is_under_way_is_not_disturbed(self):
        remover, calls = Remover(), []
        run = cairn.Run("s3://bucket/run", remote="gs://bucket/run")
        handle = unittest.mock.Mock(uploaded=concurrent.futures.Future(), path=run.member(1).path)
        with unittest.mock.patch.object(_removal, "remove_one", lambda address, force: calls.append(address)):
            remover.note_save(handle)
            remover.add(run.member(1))
            remover.begin(None)
            remover.settle()
            self.assertEqual(calls, [])
            threading.Timer(0.2, handle.uploaded.set_result, [None]).start()
            remover.settle(last=True)
        self.assertEqual(calls, [run.member(1).path, run.member(1).remote])

    def test_problems_are_warnings(self):
        remover = Remover()
        remover.add("gopher://bucket/run/step-1")
        remover.begin(None)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            remover.settle(last=True)
        self.assertIn("could not be removed", str(said[0].message))
        remover.begin(None, lambda: cairn.Run("gopher://bucket/run").checkpoints())
        with self.assertWarnsRegex(UserWarning, "could not be listed"):
            remover.settle()


if __name__ == "__main__":
    unittest.main()
