"""A plugin for Axolotl: its trainings save and go on through cairn. It needs the package ``axolotl``.

In the configuration::

    plugins: [cairn.axolotl.Plugin]
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin

from cairn.transformers import CheckpointCallback


class Plugin(BasePlugin):
    """Adds a :class:`cairn.transformers.CheckpointCallback` to the Trainer of Axolotl.

    ``auto_resume_from_checkpoints: true`` goes on with the newest complete checkpoint. Axolotl itself would take
    the one with the highest number, which may be incomplete.
    """

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        auto_resume = bool(cfg.auto_resume_from_checkpoints) and not cfg.resume_from_checkpoint
        cfg.auto_resume_from_checkpoints = False
        return [CheckpointCallback(auto_resume=auto_resume)]
