"""Megatron-Bridge with the checkpoint manager of cairn.megatron.

Bridge imports packages that need a GPU, or are large, and that a checkpoint manager does not use: they have stand-ins.
"""

import importlib.abc
import importlib.machinery
import sys
import types

import with_megatron  # noqa: F401 -- its stand-ins for what needs a GPU

MISSING = ("PIL", "datasets", "einops", "megatron.energon", "modelopt", "omegaconf", "torch.utils.tensorboard",
           "transformer_engine")


class Module(types.ModuleType):
    """A module that has every name."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {"__init__": lambda self, *_, **__: None}))
        return getattr(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == m or name.startswith(f"{m}.") for m in MISSING):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
import megatron.core.utils  # noqa: E402
from packaging.version import Version  # noqa: E402

megatron.core.utils._te_version = Version("2.0")  # the stand-in has no metadata
from megatron.bridge.training import checkpointing  # noqa: E402


def manager():
    """A configuration names the manager of cairn, and then what Bridge saves and loads is cairn's."""
    config = types.SimpleNamespace(custom_manager_class="cairn.megatron.CheckpointManager",
                                   non_persistent_ckpt_type=None)
    found = []
    try:
        checkpointing.create_checkpoint_manager(config)
        found.append("Bridge knows the class before cairn.megatron is imported")
    except Exception as e:
        if "allowlist" not in str(e):
            found.append(str(e))
    import cairn.megatron

    made = checkpointing.create_checkpoint_manager(config)
    if type(made) is not cairn.megatron.CheckpointManager:
        found.append(f"the manager is a {type(made)}")
    for name, ours in (("TorchDistSaveShardedStrategy", cairn.megatron.SaveStrategy),
                       ("TorchDistLoadShardedStrategy", cairn.megatron.LoadStrategy)):
        for module in ("megatron.bridge.training.checkpointing", "megatron.training.checkpointing",
                       "megatron.core.dist_checkpointing.serialization"):
            if getattr(sys.modules[module], name) is not ours:
                found.append(f"{module} has another {name}")
    return found
