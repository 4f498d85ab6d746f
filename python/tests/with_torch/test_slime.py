"""Delta versions of slime that cairn writes, read by the libraries that slime's receiver uses."""

import importlib.util
import json
import pathlib
import unittest
import zlib

import safetensors.torch
import torch

import cairn
import cairn.torch
from device import Case


def raw(x):
    """The bytes of a tensor, which may be changed in place."""
    return bytearray(x.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def apply(folder, state):
    """Applies the version in a folder to the bytes of tensors as slime's receiver does: all files of the folder, each
    tensor by its real name, and then its checksum."""
    import zstandard

    about = json.loads((folder / "model.safetensors.index.json").read_text())
    names = []
    for file in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(file, "pt") as f:
            sums = f.metadata()
        for name, blob in safetensors.torch.load_file(file).items():
            # decompress refuses a frame that does not declare its size.
            diff = zstandard.ZstdDecompressor().decompress(raw(blob))
            old = state[name]
            if about["metadata"]["delta_encoding"] == "xor":
                assert len(diff) == len(old)
                old[:] = (int.from_bytes(old, "big") ^ int.from_bytes(diff, "big")).to_bytes(len(old), "big")
            else:
                k = int.from_bytes(diff[:4], "little")
                for i in range(k):
                    old[int.from_bytes(diff[4 + 4 * i:8 + 4 * i], "little")] = diff[4 + 4 * k + i]
            assert f"{zlib.adler32(old):08x}" == sums[name], name
            assert about["weight_map"][name] == file.name
            names.append(name)
    assert sorted(names) == sorted(about["weight_map"])
    return about["metadata"]


@unittest.skipUnless(importlib.util.find_spec("zstandard"), "slime's receiver needs zstandard")
class Versions(Case):
    def test_what_is_written(self):
        folder = pathlib.Path(self.path())
        model = {
            "w": torch.randn(300, 70).bfloat16(), "scale": torch.ones(1), "large": torch.randn(1 << 18),
            "f8": torch.randn(16, 16).to(torch.float8_e4m3fn), "norm": torch.ones(32).bfloat16(),
        }
        cairn.torch.save(model, folder / "base", format="hf")
        state = {n: raw(x) for n, x in model.items()}
        for version, encoding in enumerate(("xor", "overwrite", "xor"), 1):
            model["w"][:: version + 1] += 1
            model["scale"] *= 3
            model["large"][version::1000] -= 1
            model["f8"] = (model["f8"].float() + 0.25 * version).to(torch.float8_e4m3fn)
            place = folder / "published" / f"weight_v{version:06}"
            options = {"base": str(folder / "base")}
            cairn.torch.save(model, place, format="slime",
                             format_options={**options, "encoding": encoding, "checksum": "adler32"})
            about = apply(place, state)
            self.assertEqual((about["version"], about["base_version"]), (f"{version:06}", f"{version - 1:06}"))
            self.assertEqual(state, {n: raw(x) for n, x in model.items()})
            with cairn.open(place, framework="torch", format="slime", format_options=options) as c:
                self.assertEqual({n: raw(x) for n, x in c.load().items()}, state)
            got = cairn.torch.weights(place, base=folder / "base")
            self.assertEqual({n: raw(x) for n, x in got}, state)


if __name__ == "__main__":
    unittest.main()
