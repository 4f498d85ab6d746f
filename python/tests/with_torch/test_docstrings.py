"""The examples in the docstrings of cairn.torch."""

import os
import unittest

import torch

import cairn.torch
import cairn.torch.dcp
import docstrings
from device import Case


class Docstrings(Case):
    def test_the_examples_run(self):
        self.addCleanup(os.chdir, os.getcwd())
        names = {"cairn": cairn, "torch": torch}
        for module in (cairn.torch, cairn.torch._follow, cairn.torch._handle, cairn.torch._load, cairn.torch._perrank,
                       cairn.torch._preempt, cairn.torch._save, cairn.torch.dcp):
            with self.subTest(module.__name__):
                os.makedirs(self.path(module.__name__))
                os.chdir(self.path(module.__name__))
                self.assertEqual(docstrings.failures(module, names), "")

    def test_public_names_have_examples(self):
        self.assertEqual(docstrings.without(cairn.torch), [])


if __name__ == "__main__":
    unittest.main()
