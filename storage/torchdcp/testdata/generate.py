"""Writes the checkpoints beside this file: generate.py FOLDER, with a PyTorch that has zstandard.

zstd         every record compressed
rot13-zstd   compressed, and then rotated by a transformation that only tests know
legacy       records as torch.save wrote them before PyTorch 1.6
"""
import hashlib
import io
import json
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import StreamTransformExtension, ZStandard


class Rotate(StreamTransformExtension):
    """Adds 13 to every byte."""

    @staticmethod
    def registry_name():
        return "stream.rot13@example.com"

    @staticmethod
    def from_descriptor(version):
        return Rotate()

    def get_descriptor(self):
        return self.registry_name() + "/2.1"

    def transform_to(self, output):
        class Writer(io.RawIOBase):
            def write(self, b):
                output.write(bytes((x + 13) & 255 for x in bytes(b)))
                return len(b)

            def flush(self):
                output.flush()

            def close(self):
                output.close()

        return Writer()

    def transform_from(self, input):
        raise NotImplementedError


def state(rows):
    long = torch.arange(1000 * rows, dtype=torch.int32).reshape(rows, 1000) // 997
    return {
        "long": long,
        "turned": torch.arange(60, dtype=torch.float32).reshape(6, 10).t(),
        "cube": torch.arange(4 * 30 * 50, dtype=torch.int16).reshape(4, 30, 50).permute(2, 0, 1),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "step": 7,
        "text": "ab" * 5000,
    }


def expected(items):
    out = {}
    for name, v in items.items():
        if isinstance(v, torch.Tensor):
            b = v.contiguous().numpy().tobytes()
            out[name] = {"kind": "tensor", "dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape),
                         "nbytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
        else:
            out[name] = {"kind": "object", "type": type(v).__name__, "repr": repr(v)[:400]}
    return out


def main(folder):
    for name, extensions in {"zstd": [ZStandard()], "rot13-zstd": [Rotate(), ZStandard()], "legacy": None}.items():
        place = os.path.join(folder, name)
        save = torch.save
        items = state(9 if name == "legacy" else 300)
        if name == "legacy":
            torch.save = lambda obj, f: save(obj, f, _use_new_zipfile_serialization=False)
        writer = dcp.FileSystemWriter(os.path.join(place, "ckpt"), _extensions=extensions)
        dcp.save(items, storage_writer=writer, no_dist=True)
        torch.save = save
        with open(os.path.join(place, "expected.json"), "w", encoding="utf-8") as f:
            json.dump({"items": expected(items)}, f, indent=1, sort_keys=True)


main(sys.argv[1])
