"""Writes python.json: pickles that Python, numpy and PyTorch made.

Run it once with any Python 3 and once with one that has torch and numpy; each
run replaces the pickles that it can make and keeps the others.
"""
import argparse, base64, collections, datetime as D, decimal, fractions, json, os, pathlib, pickle, types, uuid

shared = [1, 2]
groups = collections.defaultdict(list)
groups["a"].append(1)
od = collections.OrderedDict([("z", 1), ("a", 2)])
attributed = collections.OrderedDict(w=1)
attributed._metadata = {"version": 1}
utc = D.timezone.utc

values = {
    "none": None,
    "bools": [True, False],
    "ints": [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**57, -(2**57) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**80)],
    "floats": [0.0, -1.5, 1e300, float("inf"), float("-inf")],
    "strings": ["", "a", "ü", "\ud800x", "x" * 300, "\U0001f600", "a\\u0041\n"],
    "bytes": [b"", b"\x00\xff", b"a" * 300],
    "bytearray": bytearray(b"abc"),
    "bytearrays": [bytearray(), bytearray(b"a\x80\xff")],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((1, 2),), ("a", None), ((),)],
    "dict": {"a": 1, "b": {"c": 2}},
    "keys": {1: 2, (1, 2): "x", None: 3, "s": 4, 1.5: 5, b"b": 6},
    "ordered": od,
    "attributed": attributed,
    "set": {7},
    "frozenset": frozenset(["a"]),
    "emptyset": set(),
    "complex": 1 + 2j,
    "defaultdict": groups,
    "counter": collections.Counter("aab"),
    "deque": collections.deque([1, 2, 3], 5),
    "paths": [pathlib.PurePosixPath("/a/b"), pathlib.PurePosixPath("x/./y"), pathlib.PurePosixPath(""), pathlib.PurePosixPath("//a")],
    "datetimes": [D.datetime(2026, 5, 11, 7, 26), D.datetime(2026, 5, 11, 7, 26, 0, 5), D.datetime(2026, 1, 1, tzinfo=utc)],
    "dates": [D.date(2026, 5, 11), D.time(1, 2), D.time(1, 2, 3, 4), D.timedelta(0), D.timedelta(-1, 5), D.timezone(D.timedelta(hours=2), "X")],
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "decimal": decimal.Decimal("1.50"),
    "fraction": fractions.Fraction(1, 3),
    "namespace": argparse.Namespace(a=1, b="x"),
    "simplenamespace": types.SimpleNamespace(q=[1]),
    "range": range(1, 9, 2),
    "shared": [shared, shared, (shared,)],
    "types": [int, ..., list],
    "many": list(range(1500)),
}
protocols = range(6)
try:
    import numpy as np, torch

    values = {
        "np_scalars": [np.float64(1.5), np.float32(0.25), np.float16(-2), np.int8(-3), np.uint64(2**63), np.bool_(True), np.complex64(1 + 2j)],
        "np_array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "np_fortran": np.asfortranarray(np.arange(4, dtype=np.float64).reshape(2, 2)),
        "np_strings": np.array(["ab", "c"]),
        "np_dtype": [np.dtype("f4"), np.dtype("i1"), np.dtype("U3")],
        "np_odd": [np.array([None, 1], dtype=object), np.datetime64("2026-05-11"), np.zeros(1, dtype=[("a", "i4")])],
        "torch_plain": [torch.bfloat16, torch.Size([3, 4]), torch.Size([]), torch.device("cpu"), torch.device("cuda", 1), torch.strided],
        "torch_formats": [torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format],
    }
    protocols = range(2, 6)
except ImportError:
    pass

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python.json")
have = {(e["name"], e["protocol"]): e for e in (json.load(open(here)) if os.path.exists(here) else [])}
for name, v in values.items():
    for p in protocols:
        b = base64.b64encode(pickle.dumps(v, p)).decode()
        have[name, p] = {"name": name, "protocol": p, "pickle": b}
with open(here, "w") as f:
    json.dump([have[k] for k in sorted(have)], f, indent=0)
    f.write("\n")
