"""Runs PyTorch's own tests of torch.distributed.checkpoint with cairn's Writer and Reader in place of its file system.

    own.py FOLDER FILE…     the tests of these files of PyTorch's folder test/distributed/checkpoint

It prints a JSON object for each test: its name, and how it ended. A test that fails is run
again with PyTorch's own storage: a test that fails there too is no failure of cairn.
"""

import json
import os
import subprocess
import sys
import types
import unittest

STORAGE = "CAIRN_OWN_STORAGE"  # "cairn" or "torch", in the processes that run tests
LIMIT = 600  # seconds for the tests of one file


def replace():
    """Puts Writer and Reader in the place of PyTorch's classes, everywhere that they are used by name."""
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint._storage_utils  # noqa: F401  it chooses a storage by the path

    import cairn.torch

    for old, new in ((dcp.FileSystemWriter, cairn.torch.Writer), (dcp.FileSystemReader, cairn.torch.Reader)):
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.distributed.checkpoint") and getattr(module, old.__name__, None) is old:
                setattr(module, old.__name__, new)


def prepare():
    """Makes PyTorch's tests run in this process. Those that start other processes import this file there."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # the tests of this folder do not use it
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    if os.environ[STORAGE] == "cairn":
        replace()
    from torch.multiprocessing import get_context
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    # PyTorch takes seconds to import, so that ranks are forked from this process, which has no threads yet.
    MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(get_context("fork").Process)


if STORAGE in os.environ:
    prepare()


class Result(unittest.TestResult):
    """Prints how each test ended."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed", ""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped", reason

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = "failed", self.failures[-1][1]

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome = "failed", self.errors[-1][1]

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome = "failed", "an unexpected success"

    def stopTest(self, test):
        super().stopTest(test)
        out.write(json.dumps({"test": test.id(), "outcome": self.outcome[0], "text": self.outcome[1][-8000:]}) + "\n")
        out.flush()


def tests_of(file, names):
    """Runs tests of a file, or all of them."""
    module = os.path.splitext(os.path.basename(file))[0]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.loadTestsFromName(module)
    suite.run(Result())


def run(folder, file, storage, names=()):
    """Runs tests of a file in a process of their own. Yields how they ended."""
    path = os.path.dirname(os.path.join(folder, file))
    env = {**os.environ, STORAGE: storage,
           "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), path])}
    command = [sys.executable, os.path.abspath(__file__), "--run", file, *names]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True,
                              timeout=LIMIT, errors="replace")
        said, noise, why = done.stdout, done.stderr, f"the process ended with {done.returncode}"
    except subprocess.TimeoutExpired as e:
        said, noise = ((b or b"").decode(errors="replace") for b in (e.stdout, e.stderr))
        why = f"the tests of the file took more than {LIMIT} seconds"
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if not any(f["test"] == "" for f in found):  # the line that main prints at the end
        found.append({"test": f"{file} as a whole", "outcome": "failed", "text": f"{why}\n{noise[-4000:]}"})
    return [f for f in found if f["test"]]


def main():
    folder, *files = sys.argv[1:]
    for file in files:
        results = {f["test"]: f for f in run(folder, file, "cairn")}
        failed = [t for t, f in results.items() if f["outcome"] == "failed"]
        if failed:
            whole = any(" " in t for t in failed)
            for own in run(folder, file, "torch", () if whole else failed):
                if own["outcome"] == "failed" and own["test"] in results:
                    results[own["test"]].update(outcome="failed with PyTorch's storage too", text=own["text"])
        for f in results.values():
            print(json.dumps(f), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # the output of tests is no outcome
        tests_of(sys.argv[2], sys.argv[3:])
        out.write('{"test": ""}\n')
        out.flush()
        os._exit(0)  # threads that a test has left behind do not delay it
    main()
