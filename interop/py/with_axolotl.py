"""Trainings with the plugin of Axolotl, which adds a callback to the Trainer."""

import os
import re

from axolotl.integrations.base import PluginManager
from axolotl.utils.dict import DictDefault
from axolotl.utils.train import determine_last_checkpoint

import interrupt
import with_transformers


def train(folder, stop=None, how=None, resume=None, **more):
    """Trains as Axolotl does: with the callbacks of its plugins, and from the checkpoint of its configuration."""
    manager = PluginManager.get_instance()
    manager.plugins.clear()
    cfg = DictDefault(plugins=["cairn.axolotl.Plugin"], output_dir=folder, auto_resume_from_checkpoints=True,
                      resume_from_checkpoint=resume)
    manager.cfg = cfg
    for name in cfg.plugins:
        manager.register(name)
    callbacks = manager.add_callbacks_pre_trainer(cfg=cfg, model=None)
    return with_transformers.train(folder, stop=stop, how=how, stock=True, callbacks=callbacks,
                                   resume=lambda: determine_last_checkpoint(cfg), **more)


def resumed(folder):
    """Trains undisturbed, and again with a kill and an explicit checkpoint. Returns the differences."""
    interrupt.killed(lambda: train(folder + "/run", stop=10, how="kill"))
    os.makedirs(folder + "/run/checkpoint-99")  # such as a save that was killed
    want = train(folder + "/undisturbed")
    got = train(folder + "/run")
    found = sorted(int(m[1]) for name in os.listdir(folder + "/run") if (m := re.fullmatch(r"checkpoint-(\d+)", name)))
    wrong = [] if found == [12, 15, 99] else [f"the checkpoints are {found}"]
    for losses in (got, train(folder + "/run", resume=f"{folder}/run/checkpoint-12")):
        wrong += [f"step {step}: {losses.get(step)}, not {want[step]}" for step in want
                  if losses.get(step) != want[step]]
    return wrong
