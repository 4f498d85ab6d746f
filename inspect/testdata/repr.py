"""Prints the reprs and pickles of objects, one JSON object a line.

    python3 repr.py > repr.jsonl

needs PyTorch and numpy 2. Only values that Repr prints exactly like Python are here.
"""
import base64
import collections
import datetime as dt
import decimal
import fractions
import json
import pathlib
import pickle
import uuid

import numpy as np
import torch

nan, inf = float("nan"), float("inf")
utc = dt.timezone.utc

VALUES = [
    # containers
    (1, "two", 3.0), (1,), (), ((), [()]), {1, 2}, set(), frozenset({1}), frozenset(), {(1, 2)},
    collections.OrderedDict(a=1), collections.OrderedDict(), collections.OrderedDict([(1, (2,))]),
    {1: "a", 2: None}, {(1, 2): 3.5}, {None: True}, [1, (2, {3}), {"a": (torch.bfloat16, torch.Size([1]))}],
    collections.defaultdict(list, {1: [2]}), collections.defaultdict(None, {}),
    collections.defaultdict(int, {"a": 1}), collections.defaultdict(dict), collections.Counter({1: 2}),
    collections.deque([1, 2]), collections.deque([1, 2], maxlen=3), collections.deque(),
    # numbers and text
    1 + 2j, 2j, -2j, complex(0, -0.0), complex(-0.0, 2), complex(1.5, -inf), complex(nan, nan),
    complex(1e20, 1e-7), complex(inf, 0), complex(-0.0, -0.0),
    decimal.Decimal("1.50"), decimal.Decimal("NaN"), fractions.Fraction(1, 3), fractions.Fraction(-2),
    range(1, 9, 2), range(5, 0, -1), slice(1, 2), slice(None), bytearray(), bytearray(b"abc"),
    "a\udc80", "\ud800\udc00", "\x85\xa0\xad\u3000\ufffd\ufffe\U0010ffff", "\u0378",
    # torch
    torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64,
    torch.Size([3, 4]), torch.Size([]), torch.Size([7]),
    torch.device("cpu"), torch.device("cuda", 0), torch.device("meta"), torch.device("cuda:3"),
    torch.strided, torch.sparse_coo, torch.sparse_csr, torch.jagged,
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
    # times, paths, identifiers
    dt.datetime(2026, 5, 11, 7, 26), dt.datetime(2026, 5, 11), dt.datetime(2026, 5, 11, 7, 26, 3),
    dt.datetime(2026, 5, 11, 7, 26, 0, 5), dt.datetime(2026, 5, 11, 7, 26, fold=1),
    dt.datetime(2026, 5, 11, 7, 26, 3, 5, tzinfo=utc), dt.datetime(2026, 5, 11, 7, 26, 3, 5, tzinfo=utc, fold=1),
    dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5), "EST")),
    dt.date(2026, 5, 11), dt.time(1, 2), dt.time(), dt.time(1, 2, 3), dt.time(1, 2, 3, 4),
    dt.time(1, 2, tzinfo=utc), dt.time(1, 2, fold=1),
    dt.timedelta(1, 2, 3), dt.timedelta(0), dt.timedelta(hours=-1), dt.timedelta(microseconds=5), dt.timedelta(days=-999999999),
    utc, dt.timezone(dt.timedelta(0)), dt.timezone(dt.timedelta(hours=2)), dt.timezone(dt.timedelta(hours=2), "X'"),
    pathlib.PosixPath("/x"), pathlib.PosixPath("a/b"), pathlib.PurePosixPath("/x/y"), pathlib.PosixPath("."),
    pathlib.PosixPath("/"), uuid.UUID(int=5), uuid.UUID("12345678-1234-5678-1234-567812345678"),
    # numpy
    np.float32(1.5), np.float64(0.1), np.float32(0.1), np.float32(1e16), np.float32(1e-5),
    np.float64(1e16), np.float32(nan), np.float32(-inf), np.float64(nan), np.float32(-0.0),
    np.float64(1e300), np.int64(7), np.int8(-7), np.uint64(2**64 - 1), np.bool_(True), np.bool_(False),
    np.complex64(1 + 2j), np.complex128(0.1j), np.array([], dtype=np.int64),
    # classes
    int, list, dict, float, str,
]

for v in VALUES:
    for protocol in 2, 5:
        if protocol < 4 and getattr(v, "fold", 0):
            continue  # the older protocols lose it
        data = base64.b64encode(pickle.dumps(v, protocol)).decode()
        print(json.dumps({"type": type(v).__name__, "repr": repr(v), "protocol": protocol, "pickle": data}))
