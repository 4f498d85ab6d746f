"""The tests of python/tests/with_torch, which are unittest's. Each runs in a process of its own."""

import importlib
import io
import unittest


def names(file, short):
    """Returns the names of the tests in a file. short leaves out slow tests."""
    return [t.id() for t in tests(load(file)) if not (short and getattr(getattr(t, t._testMethodName), "slow", False))]


def run(file, name):
    """Runs a test, and returns its failure and the reasons why it was skipped."""
    (test,) = (t for t in tests(load(file)) if t.id() == name)
    out = io.StringIO()
    result = unittest.TextTestRunner(out, verbosity=2).run(test)
    return {"failed": "" if result.wasSuccessful() else out.getvalue(),
            "skipped": "; ".join(why for _, why in result.skipped)}


def failures(file, case):
    """Runs the tests of a class in a file, and returns their failures."""
    said = [run(file, name) for name in names(file, False) if f".{case}." in name]
    return [s["failed"] for s in said if s["failed"]]


def load(file):
    return unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(file.removesuffix(".py")))


def tests(suite):
    """Yields the tests of a suite and of the suites within it."""
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            yield from tests(t)
        else:
            yield t
