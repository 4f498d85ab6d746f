"""The values that native_test.go saves, as Python should have them."""

import digest
import loads

OF_GO = {
    "step": 12,
    "lr": 3.25e-4,
    "whole": 2.0,
    "name": "run-ü-7",
    "resumed": True,
    "nothing": None,
    "large": 1 << 62,
    "bytes": b"\x00\x01\xff",
    "list": [1, 2.5, "x", None, [True]],
    "layers": [{"k": 3}, {"k": 4}],
}


def of_go(path):
    return digest.differences(OF_GO, loads.rebuilt(path)["values"], "values")
