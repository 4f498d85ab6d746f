"""Trainings with python/examples/swift_plugin.py: ms-swift loads it, and its callback goes to a stock Trainer."""

import os

from swift.callbacks import callbacks_map
from swift.utils import import_external_file

import interrupt
import with_transformers

HERE = os.path.dirname(os.path.abspath(__file__))


def train(folder, stop=None, how=None):
    """Trains with the callback that the plug-in has registered."""
    import_external_file(os.path.join(HERE, "examples", "swift_plugin.py"))
    callback = callbacks_map["cairn"](None, None)
    return with_transformers.train(folder, stop=stop, how=how, stock=True, callbacks=[callback])


def resumed(folder):
    """Trains undisturbed, and again with a kill. Returns the differences."""
    interrupt.killed(lambda: train(folder + "/run", stop=10, how="kill"))
    want, got = train(folder + "/undisturbed"), train(folder + "/run")
    return [f"step {step}: {got.get(step)}, not {want[step]}" for step in want if got.get(step) != want[step]]
