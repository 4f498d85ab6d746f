"""Megatron-Bridge with the checkpoint manager of cairn.megatron.

Bridge imports packages that need a GPU, or are large, and that a checkpoint manager does not use: they have stand-ins.
"""

import sys
import types

import stand_ins
import with_megatron  # noqa: F401 -- its stand-ins for what needs a GPU

stand_ins.use("PIL", "datasets", "einops", "megatron.energon", "modelopt", "omegaconf", "torch.utils.tensorboard",
              "transformer_engine")
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
