"""Systems without memory files, such as macOS."""

import sys
import unittest.mock

import torch

import cairn
import cairn.torch
from device import Case


class WithoutMemoryFiles(Case):
    def test_the_error_says_what_works(self):
        with unittest.mock.patch.object(sys, "platform", "darwin"):
            for call in (lambda: cairn.torch.save({"x": torch.zeros(1)}, self.path()),
                         lambda: cairn.torch.load({"x": torch.zeros(1)}, self.path())):
                with self.assertRaisesRegex(cairn.SaverError, "needs Linux.*cairn.open"):
                    call()


if __name__ == "__main__":
    unittest.main()
