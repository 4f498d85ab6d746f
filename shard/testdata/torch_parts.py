"""Writes torch_parts.jsonl: what real PyTorch says that each rank of a mesh holds.

Run with PyTorch 2.14 (no process group is needed):
    python3 torch_parts.py > torch_parts.jsonl

Each line is one case. "ranks" is in row-major order of the mesh; every rank has
the local shape, the global offset of its first element, and for each tensor
dimension the half-open runs of global indices in the order of the local tensor.
"""
import itertools
import json
import random

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard


def parse(text):
    if text == "R":
        return Replicate()
    name, rest = text[:-1].split("(")
    numbers = [int(n) for n in rest.split(",")]
    return Shard(numbers[0]) if name == "S" else _StridedShard(numbers[0], split_factor=numbers[1])


def runs(indices):
    out = []
    for i in indices:
        if out and out[-1][1] == i:
            out[-1][1] = i + 1
        else:
            out.append([i, i + 1])
    return out


def held(size, dim, mesh, coordinate, placements):
    """The global indices of one dimension, cut by each placement in turn."""
    indices = torch.arange(size)
    for n, i, p in zip(mesh, coordinate, placements):
        if isinstance(p, Replicate) or p.dim != dim:
            continue
        flat = _StridedShard(0, split_factor=p.split_factor) if isinstance(p, _StridedShard) else Shard(0)
        shards, _ = flat._split_tensor(indices, n, with_padding=False, contiguous=False)
        indices = shards[i]
    return indices.tolist()


def case(shape, mesh, names):
    placements = [parse(n) for n in names]
    ranks = []
    for coordinate in itertools.product(*(range(n) for n in mesh)):
        local, offset = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
        index = [held(n, d, mesh, coordinate, placements) for d, n in enumerate(shape)]
        assert [len(i) for i in index] == list(local)
        ranks.append({"shape": list(local), "offset": list(offset), "runs": [runs(i) for i in index]})
    return {"shape": shape, "mesh": mesh, "placements": names, "ranks": ranks}


def random_case(rng):
    shape = [rng.choice([0, 1, 2, 3, 5, 7, 8, 10, 13, 16, 37]) for _ in range(rng.randint(1, 3))]
    mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    names = []
    for _ in mesh:
        dim = rng.randrange(len(shape))
        names.append(rng.choice(["R", f"S({dim})", f"S({dim})", f"SS({dim},{rng.randint(1, 4)})"]))
    return shape, mesh, names


def main():
    fixed = [
        ([10], [4], ["S(0)"]),
        ([9], [4], ["SS(0,2)"]),
        ([7], [3, 2], ["SS(0,2)", "S(0)"]),
        ([13, 4], [3, 2], ["SS(0,2)", "S(0)"]),
        ([20, 12], [2, 2], ["SS(0,2)", "S(0)"]),
        ([16], [2, 2, 2], ["S(0)", "SS(0,2)", "S(0)"]),
        ([24, 6], [2, 3, 2], ["SS(0,6)", "SS(0,2)", "S(0)"]),
        ([12], [2], ["SS(0,3)"]),
        ([], [2, 2], ["R", "R"]),
    ]
    rng = random.Random(7)
    for args in itertools.chain(fixed, (random_case(rng) for _ in range(110))):
        print(json.dumps(case(*args), separators=(",", ":")))


main()
