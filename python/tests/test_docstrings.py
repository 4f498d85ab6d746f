"""The examples in the docstrings of cairn."""

import os
import struct
import sys
import tempfile
import unittest

import cairn
import cairn._convert
import cairn.checkpoint
import cairn.reports
import cairn.runs
import saving
from cairn import _saver

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "with_torch"))

import docstrings


class Docstrings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def test_the_examples_run(self):
        saving.checkpoint(os.path.abspath("run/step-100"), {
            "model.weight": ("float32", (4, 2), struct.pack("<8f", *range(8))),
            "model.bias": ("float32", (4,), bytes(16)),
        }, {"step": 100}, step=100)
        self.addCleanup(close)
        for module in (cairn, cairn._convert, cairn.checkpoint, cairn.reports, cairn.runs):
            with self.subTest(module.__name__):
                self.assertEqual(docstrings.failures(module, {"cairn": cairn}), "")

    def test_public_names_have_examples(self):
        self.assertEqual(docstrings.without(cairn), [])


def close():
    """Ends the process that cairn.open has started."""
    if _saver._shared is not None:
        _saver._shared.close()
        _saver._shared = None


if __name__ == "__main__":
    unittest.main()
