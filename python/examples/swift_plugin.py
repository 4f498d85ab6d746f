"""Saves the trainings of ms-swift through cairn, which go on with the newest complete checkpoint of output_dir:

swift sft --external_plugins swift_plugin.py --callbacks cairn --add_version false --output_dir run …
"""

from swift.callbacks import callbacks_map

from cairn.transformers import CheckpointCallback

callbacks_map["cairn"] = lambda args, trainer: CheckpointCallback(auto_resume=True)
