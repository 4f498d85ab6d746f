"""The request of a save: its fields are those of docs/saver.md, and its message has what the caller asked for."""

import dataclasses
import math
import os
import pathlib
import re
import tempfile
import unittest
import unittest.mock

import cairn
from cairn import _ours
from cairn._messages import InRun, Item, SaveMessage
from cairn._request import SaveRequest

PAGE = pathlib.Path(__file__, "../../../docs/saver.md").resolve()


def tables(section):
    """Returns the fields of each table in a section of the page."""
    text = PAGE.read_text("utf-8").partition(f"\n{section}\n")[2]
    text = re.split(r"\n##+ ", text)[0]
    found = [[]]
    for line in text.splitlines():
        if line.startswith("| `"):
            found[-1] += re.findall(r"`(\w+)`", line.split("|")[1])
        elif found[-1]:
            found.append([])
    return [set(fields) for fields in found if fields]


class Specification(unittest.TestCase):
    def test_fields_of_the_message(self):
        save, item = tables("## save")
        self.assertEqual(set(SaveMessage.__annotations__), save)
        self.assertEqual(set(Item.__annotations__), item)
        (run,) = tables("### Runs")
        self.assertEqual(set(InRun.__annotations__), run)

    def test_fields_of_the_request(self):
        save, _ = tables("## save")
        names = {f.name for f in dataclasses.fields(SaveRequest)}
        self.assertLessEqual(names - {"path", "overwrite", "export"}, save)

    def test_fields_of_messages(self):
        """What a request makes of all of its fields is on the page."""
        save, _ = tables("## save")
        with tempfile.TemporaryDirectory() as folder:
            for path, more in ((folder, {"remote": folder + "/there", "local_bytes": 5}),
                               (folder, {"overwrite": False}), (cairn.Run(folder, keep="last 3"), {})):
                message = SaveRequest(path=path, step=3, tags={"a": "b"}, metrics={"loss": math.nan}, format="torch",
                                      format_options={"file": "m.pt"}, files_per_rank=2, tensors_may_differ=True,
                                      **more).checked().message()
                self.assertLessEqual(set(message), save)


class Messages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def message(self, path=None, **fields):
        return SaveRequest(path=self.folder if path is None else path, **fields).checked().message()

    def test_defaults(self):
        message = self.message()
        self.assertRegex(message.pop("time"), r"^\d{4}-\d\d-\d\dT[\d:.]+Z$")
        self.assertRegex(message.pop("save_id"), r"^\d{8}t\d{6}-[0-9a-f]{12}$")
        self.assertEqual(message, {"store": self.folder, "format": "native", "writer": "cairn.torch",
                                   "fail_if_exists": False, "cache": True, "files_per_rank": 0, "replaces": []})

    def test_what_it_replaces(self):
        _ours.note_loaded(self.folder, "a")
        _ours.note_loaded(f"{self.folder}/there", "b")
        message = self.message(remote=f"{self.folder}/there")
        self.assertEqual(set(message["replaces"]), {"a", ""})
        self.assertEqual(set(message["replaces_remote"]), {"a", "b", ""})
        for overwrite in (True, False):
            message = self.message(overwrite=overwrite)
            self.assertEqual(message["fail_if_exists"], not overwrite)
            self.assertNotIn("replaces", message)

    def test_a_run(self):
        run = cairn.Run(self.folder)
        message = self.message(run, step=7)
        self.assertEqual((message["store"], message["run"]), (f"{self.folder}/step-000000007", {"refer": True}))
        self.assertNotIn("replaces", message)
        cairn.runs.loaded(f"{self.folder}/step-000000007", "x")
        loaded = {"folder": "step-000000007", "save_id": "x"}
        request = SaveRequest(path=run, step=8).checked()
        self.assertEqual(request.message()["run"], {"refer": True, "loaded": loaded})
        self.assertEqual(request.message()["run"], {"refer": True})  # the save after it goes on from it
        self.assertEqual(request.title(), f"save to '{os.path.basename(self.folder)}/step-000000008', step 8")

    def test_copies_in_memory(self):
        for path in ("memory:llama", cairn.Run("memory:llama", copies=3, copy_rate=7)):
            message = self.message(path, step=1, copies=2, copy_rate=1000)
            self.assertEqual((message["copies"], message["copy_rate"]), (2, 1000))
        message = self.message(cairn.Run("memory:llama", copies=3, copy_rate=7), step=1)
        self.assertEqual((message["copies"], message["copy_rate"]), (3, 7))
        with unittest.mock.patch.dict(os.environ, CAIRN_RUN="job"):
            run = cairn.Run(self.folder, memory="every 2 steps", copies=2, copy_rate=9)
        self.assertEqual((self.message(run.memory, step=1)["copies"], run.memory.copy_rate), (2, 9))
        self.assertNotIn("copies", self.message(run, step=1))
        self.assertNotIn("copies", self.message("memory:llama", step=1))
        for wrong in ({"copies": 2}, {"copy_rate": 2}, {"copies": 0}):
            with self.subTest(wrong), self.assertRaises(cairn.OptionsError):
                cairn.Run(self.folder, **wrong)

    def test_metrics(self):
        metrics = {"a": 1, "b": math.nan, "c": math.inf, "d": -math.inf}
        want = {"a": 1.0, "b": "NaN", "c": "+Inf", "d": "-Inf"}
        self.assertEqual(self.message(metrics=metrics)["metrics"], want)

    def test_mistakes(self):
        file = os.path.join(self.folder, "file")
        pathlib.Path(file).touch()
        for fields in ({"path": file}, {"path": f"{file}/below"}, {"step": 1 << 63}, {"local_bytes": 1},
                       {"copies": 1}, {"copy_rate": 1}, {"path": "memory:x", "step": 1, "copies": -1},
                       {"overwrite": "no"}, {"tags": {"a": 1}}, {"metrics": {"a": "x"}}, {"metrics": {1: 1}},
                       {"path": cairn.Run(self.folder)}, {"path": ""},
                       {"path": cairn.Run(self.folder), "step": 1, "remote": self.folder}):
            with self.subTest(fields), self.assertRaises(cairn.OptionsError):
                self.message(**fields)


if __name__ == "__main__":
    unittest.main()
