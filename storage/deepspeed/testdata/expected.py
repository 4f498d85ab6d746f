"""Writes expected.json of a fixture from a checkpoint of DeepSpeed, in plain Python.

    python3 expected.py CKPT [RESULT.safetensors ...] > expected.json

It reads the pickles without DeepSpeed and PyTorch, gathers whole tensors by the rules of the format, and
compares them with results of DeepSpeed's own tools: zero_to_fp32 (NAME), ds_to_universal (NAME/STATE) and what
the running engine reported (NAME.STATE). Names that a tool has are compared; the rest are in this file only.
"""

import collections
import hashlib
import io
import json
import math
import pathlib
import pickle
import re
import struct
import sys
import zipfile

DTYPES = {"FloatStorage": ("float32", 4), "HalfStorage": ("float16", 2), "BFloat16Storage": ("bfloat16", 2),
          "LongStorage": ("int64", 8)}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data

    def fp32(self):
        if self.dtype == "bfloat16":
            wide = b"".join(b"\0\0" + self.data[i:i + 2] for i in range(0, len(self.data), 2))
        elif self.dtype == "float16":
            n = len(self.data) // 2
            wide = struct.pack(f"<{n}f", *struct.unpack(f"<{n}e", self.data))
        else:
            return self
        return Tensor("float32", self.shape, wide)

    def item(self):
        return {"kind": "tensor", "dtype": self.dtype, "shape": self.shape, "nbytes": len(self.data),
                "sha256": hashlib.sha256(self.data).hexdigest()}


class Record:
    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.state = state


def rebuild(storage, offset, shape, strides, *rest):
    dtype, size, data = storage
    n = math.prod(shape)
    assert list(strides) == [math.prod(shape[i + 1:]) for i in range(len(shape))] or n == 0 or 1 in shape
    return Tensor(dtype, shape, data[offset * size:(offset + n) * size])


def rebuild_from_type(fn, cls, args, state):
    return fn(*args)


def load(path):
    z = zipfile.ZipFile(path)
    folder = z.namelist()[0].split("/")[0]

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            known = {"OrderedDict": collections.OrderedDict, "_rebuild_tensor_v2": rebuild,
                     "_rebuild_from_type_v2": rebuild_from_type, "Size": lambda x: tuple(x)}
            if name in known:
                return known[name]
            if name in DTYPES:
                return name
            return type(name, (Record,), {"__module__": module})

        def persistent_load(self, pid):
            dtype, size = DTYPES[pid[1]]
            return dtype, size, z.read(f"{folder}/data/{pid[2]}")

    return Unpickler(io.BytesIO(z.read(f"{folder}/data.pkl"))).load()


def gather(stage, flats, groups, paddings):
    """Yields the name of each parameter, its group and its tensor, of one flat tensor a rank and group."""
    for g, params in enumerate(groups):
        parts = [rank[g].data for rank in flats]
        dtype, size = flats[0][g].dtype, 4
        at = 0
        for k, (name, shape) in enumerate(params.items()):
            n = math.prod(shape)
            if stage == 3:
                part = -(-n // len(parts))
                data = b"".join(p[at * size:(at + part) * size] for p in parts)[:n * size]
                at += part
            else:
                data = b"".join(parts)[at * size:(at + n) * size]
                at += n + (paddings[g][k] if paddings else 0)
            assert len(data) == n * size, (name, len(data), n)
            yield name, g, Tensor(dtype, shape, data)


def flatten(out, name, v):
    if isinstance(v, dict) and v:
        for k, x in v.items():
            flatten(out, f"{name}.{k}", x)
    elif isinstance(v, list) and any(isinstance(x, dict) for x in v):
        for i, x in enumerate(v):
            flatten(out, f"{name}.{i}", x)
    elif isinstance(v, Record):
        flatten(out, name, v.state)
    else:
        out[name] = {"kind": "object", "type": type(v).__name__, "repr": repr(v)}


def number(path):
    return int(re.search(r"zero_pp_rank_(\d+)", path.name).group(1))


def main(place, results):
    place = pathlib.Path(place)
    pointer = next(p for p in (place / "latest", place / "latest_universal") if p.exists())
    tag = place / pointer.read_text().strip()
    models = [load(p) for p in sorted(tag.glob("zero_pp_rank_*_model_states.pt"), key=number)] \
        or [load(tag / "mp_rank_00_model_states.pt")]
    model = models[0]
    groups, stage = model["param_shapes"], model["ds_config"]["zero_optimization"]["stage"]
    tensors = {}
    ranks = [load(p)["optimizer_state_dict"] for p in sorted(tag.glob("*_optim_states.pt"), key=number)]
    if ranks:
        rest = ranks[0]
        base = rest.get("base_optimizer_state") or rest["optimizer_state_dict"]
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        pads = rest.get("param_alignment_paddings")
        for name, g, t in gather(stage, [r[key] for r in ranks], groups, pads):
            tensors[f"model.{name}"] = t
        states = [(r.get("base_optimizer_state") or r["optimizer_state_dict"])["state"] for r in ranks]
        for s in ("exp_avg", "exp_avg_sq"):
            for name, g, t in gather(stage, [{g: x[g][s] for g in x} for x in states], groups, pads):
                tensors[f"optimizer.state.{name}.{s}"] = t
                tensors[f"optimizer.state.{name}.step"] = states[0][g]["step"]
    else:
        rest = load(tag / "zero/optimizer_state.pt")
        base = rest
        for g, params in enumerate(groups):
            for name, shape in params.items():
                for s in ("fp32", "exp_avg", "exp_avg_sq", "step"):
                    if not (tag / "zero" / name / f"{s}.pt").exists():
                        t = rest["optimizer_state_dict"]["state"][g]["step"]
                    else:
                        t = load(tag / "zero" / name / f"{s}.pt")
                        t = t["param"] if isinstance(t, dict) else t
                        t = t if s == "step" else Tensor(t.dtype, shape, t.data)
                    tensors[f"model.{name}" if s == "fp32" else f"optimizer.state.{name}.{s}"] = t
    for name, shape in (model["frozen_param_shapes"] or {}).items():
        data = b"".join(m["frozen_param_fragments"][name].data for m in models)
        t = model["frozen_param_fragments"][name]
        size = len(t.data) // math.prod(t.shape)
        tensors[f"model.{name}"] = Tensor(t.dtype, shape, data[:math.prod(shape) * size]).fp32()
    for name, first in model["shared_params"].items():
        tensors[f"model.{name}"] = tensors[f"model.{first}"]
    for name, t in model["module"].items():
        tensors.setdefault(f"model.{name}", t.fp32())
        if stage < 3 and t.dtype in ("float16", "bfloat16"):
            tensors[f"model16.{name}"] = t
    compare(tensors, model["module"], model["shared_params"], results)
    out = {name: t.item() for name, t in tensors.items()}
    for i, group in enumerate(base["param_groups"]):
        names = [name for g in group["params"] for name in groups[g]]
        flatten(out, f"optimizer.param_groups.{i}", dict(group, params=names))
    gone = {"module", "buffer_names", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params"}
    for k, v in model.items():
        if v is not None and k not in gone:
            flatten(out, f"client.{k}" if k in ("note", "epoch") else f"deepspeed.{k}", v)
    for k in ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"):
        if k in rest:
            flatten(out, f"deepspeed.{k}", rest[k])
    json.dump({"items": out}, sys.stdout, indent=1, sort_keys=True)
    print()


def compare(tensors, saved, shared, results):
    compared = 0
    for path in results:
        raw = pathlib.Path(path).read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        for name, e in json.loads(raw[8:8 + n]).items():
            if name == "__metadata__":
                continue
            data = raw[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]]
            kinds = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
            got = Tensor(kinds[e["dtype"]], e["shape"], data).fp32()
            param, state = name, "fp32"
            for sep in ("/", "."):
                head, _, tail = name.rpartition(sep)
                if tail in ("fp32", "exp_avg", "exp_avg_sq", "step", "frozen", "buffer"):
                    param, state = head, tail
            if state == "buffer" and param not in saved:
                continue  # the running engine had buffers that are not saved
            want = tensors[f"optimizer.state.{param}.{state}" if state.startswith(("exp", "step")) else f"model.{param}"]
            if want.dtype == "int64":  # the tools make float32 of it
                continue
            if "/" in name and param in shared:  # ds_to_universal takes the weight from the module, in 16 bits
                continue
            assert want.data == got.data and (want.shape == got.shape or len(got.shape) == 1), name
            compared += 1
    print(f"{compared} tensors are as DeepSpeed's tools say", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
