"""Reports of saves, loads and uploads."""

import dataclasses
import json
import pathlib
import unittest

import cairn

MESSAGES = pathlib.Path(__file__).parents[2] / "background" / "saver" / "testdata" / "messages"


def golden(name):
    """Returns the report of a message that the Go tests keep."""
    return json.loads((MESSAGES / name).read_text(encoding="utf-8"))["body"]["report"]


class Reports(unittest.TestCase):
    def test_the_messages_of_the_saver_process(self):
        traffic = cairn.Traffic(requests=6, retries=1, bytes_sent=1144)
        phases = (cairn.Phase("stage", 0.0, 0.12, 8192), cairn.Phase("write", 0.2, 2.2, 144))
        self.assertEqual(cairn.SaveReport.from_message(golden("saved.json")), cairn.SaveReport(
            save_id="0b1k2m3n4p5q6r7s8t9v", step=100, bytes=512, rank_bytes=144, files=8, plan_reused=True,
            plan_seconds=0.001, write_seconds=2.0, phases=phases, traffic=traffic))
        self.assertAlmostEqual(phases[1].seconds, 2.0)
        self.assertEqual(cairn.UploadReport.from_message(golden("uploaded.json")), cairn.UploadReport(
            save_id="b", bytes=512, rank_bytes=400, files=8, seconds=3.0,
            traffic=cairn.Traffic(requests=7, retries=1, bytes_sent=1400)))
        self.assertEqual(cairn.LoadReport.from_message(golden("loaded.json")), cairn.LoadReport(
            save_id="0b1k2m3n4p5q6r7s8t9v", step=100, missing=("scale",), bytes=72, bytes_read=136, requests=1,
            seconds=1.001, traffic=cairn.Traffic(requests=4, bytes_received=936)))

    def test_other_programs(self):
        for kind in (cairn.SaveReport, cairn.UploadReport, cairn.LoadReport):
            with self.subTest(kind.__name__):
                self.assertEqual(kind.from_message({}), kind())
                newer = {"save_id": "a", "of_a_newer_program": {"x": 1},
                         "traffic": {"requests": 2, "of_a_newer_program": 3}}
                self.assertEqual(kind.from_message(newer), kind(save_id="a", traffic=cairn.Traffic(requests=2)))
                self.assertEqual(kind.from_message(dict.fromkeys(("save_id", "step", "bytes", "phases", "missing",
                                                                  "local", "traffic"))), kind())
        self.assertEqual(cairn.Phase.from_message({"name": "write", "of_a_newer_program": 1}), cairn.Phase("write"))

    def test_they_do_not_change(self):
        report = cairn.SaveReport(save_id="a", step=7, bytes=10)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            report.bytes = 11
        self.assertEqual(repr(report), "SaveReport(save_id='a', step=7, bytes=10, rank_bytes=0, files=0, "
                                       "plan_reused=False, "
                                       "plan_seconds=0.0, write_seconds=0.0, folder='')")
        self.assertEqual(len({report, dataclasses.replace(report)}), 1)

    def test_a_load_in_parts(self):
        parts = [cairn.LoadReport("a", 1, ("x",), 10, 12, 1, 5.0, cairn.Traffic(requests=2)),
                 cairn.LoadReport("a", 1, ("y",), 20, 24, 2, 6.0)]
        self.assertEqual(cairn.LoadReport.total(parts, 7.0),
                         cairn.LoadReport("a", 1, ("x", "y"), 30, 36, 3, 7.0, cairn.Traffic(requests=2)))
        self.assertEqual(cairn.LoadReport.total([], 0.0), cairn.LoadReport())


if __name__ == "__main__":
    unittest.main()
