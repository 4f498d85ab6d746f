"""Values: an encoded value is decoded as it was."""

import argparse
import collections
import datetime
import decimal
import fractions
import json
import math
import pathlib
import types
import unittest
import uuid

from cairn import errors, values


class Derived(fractions.Fraction):
    """A class of anybody's, of a class that does no harm."""


class Values(unittest.TestCase):
    def test_what_goes_in_comes_out(self):
        table = [
            None, True, False, 0, -1, 2**63 - 1, 2**64, -(10**300), 0.0, 1.0, -1.5, 1e300, 5e-324, "", "text",
            "\x00\n\"\\\u2028☃𝄞",
            "half \ud800 of a pair", b"", b"\x00\xff", bytearray(b"ab"), [bytearray()], [], [1, [2.0, "x"]], (),
            (1, (2,)), {}, {"a": 1, "b": {"c": [None]}},
            {"$tuple": [1]}, {"$a": 1, "b": 2}, {1: "one", "1": "text", (2, 3): None, None: True},
            {"key \udfff": "value"},
            set(), {1, 2}, {"a", "b"}, frozenset({1, (2, 3)}), collections.OrderedDict([("b", 1), ("a", 2)]),
            complex(1, -2), complex(math.inf, 0.0), math.inf, -math.inf, {"deep": [{"x": (b"bytes", {3: {4}})}]},
        ]
        for v in table:
            with self.subTest(v=v):
                got = values.decode(*values.encode(v))
                self.assertEqual(got, v)
                self.assertIs(type(got), type(v))
                if not isinstance(v, (set, frozenset)):  # in any order
                    self.assertEqual(repr(got), repr(v))

    def test_not_a_number_and_the_sign_of_zero(self):
        self.assertTrue(math.isnan(values.decode(*values.encode(math.nan))))
        self.assertEqual(math.copysign(1, values.decode(*values.encode(-0.0))), -1)
        self.assertTrue(math.isnan(values.decode(*values.encode([complex(0, math.nan)]))[0].imag))

    def test_types_of_numbers_stay(self):
        for v in (1, 1.0, True):
            self.assertIs(type(values.decode(*values.encode([v]))[0]), type(v))

    def test_order_of_keys_stays(self):
        self.assertEqual(list(values.decode(*values.encode({"z": 1, "a": 2, "m": 3}))), ["z", "a", "m"])

    def test_bytes_alone_are_raw(self):
        self.assertEqual(values.encode(b"ab"), ("raw", b"ab"))

    def test_what_cannot_be_encoded(self):
        loop: list = []
        loop.append(loop)
        deep: list = []
        for _ in range(300):
            deep = [deep]
        point = collections.namedtuple("point", "x y")
        for v in (object(), print, loop, deep, [object()], {"a": {object()}}, point(1, 2), 10**5000,
                  collections.defaultdict(lambda: 1),
                  collections.deque([object()]), argparse.Namespace(f=print), Exception, Derived(1), pathlib.PurePath):
            with self.subTest(kind=type(v)), self.assertRaises(values.NotPlain):
                values.encode(v)

    def test_objects_of_classes_that_do_no_harm(self):
        table = [
            pathlib.Path("/a/b"), pathlib.PurePosixPath("c"), pathlib.PureWindowsPath("c:/d"),
            datetime.date(2026, 1, 2),
            datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
            datetime.time(1, 2),
            datetime.timedelta(days=1, seconds=2), datetime.timezone(datetime.timedelta(hours=1), "x"),
            decimal.Decimal("1.50"),
            fractions.Fraction(1, 3), uuid.UUID(int=7), argparse.Namespace(lr=0.1, paths=[pathlib.Path("x")]),
            types.SimpleNamespace(a=1, b=(2,)), collections.Counter("aab"),
            collections.defaultdict(list, {"a": [1], 2: []}),
            collections.defaultdict(None, {"a": 1}), collections.deque([1, "b"], maxlen=3), collections.deque(),
            range(1, 9, 2),
            slice(1, None, 2), {pathlib.Path("key"): {datetime.date(2026, 1, 1)}}, int, [list, {"d": dict}], {str: 1},
            datetime.datetime(2024, 10, 27, 2, 30, fold=1), datetime.time(2, 30, fold=1),
        ]
        for v in table:
            with self.subTest(v=v):
                got = values.decode(*values.encode(v))
                self.assertEqual(got, v)
                self.assertIs(type(got), type(v))
                self.assertEqual(repr(got), repr(v))

    def test_objects_that_do_not_fit_their_class_stay_described(self):
        for module, name, fields in [
            ("datetime", "date", {"call": True, "args": ["x"]}),
            ("datetime", "date", {"call": True, "kwargs": {"year": 1}}),
            ("datetime", "date", {}), ("collections", "defaultdict",
                                       {"call": True, "args": [{"$object": {"module": "builtins", "name": "eval"}}]}),
            ("uuid", "UUID", {"call": True, "new": True, "state": 3}), ("pathlib", "os", {"call": True}),
            ("numpy", "dtype", {"call": True, "args": ["O8"], "state": [3, "|"]}),
            ("numpy._core.multiarray", "scalar", {"call": True}),
            ("numpy._core.multiarray", "_reconstruct", {"call": True, "args": [1], "state": 2}),
            ("numpy", "load", {"call": True, "args": ["x"]}),
        ]:
            with self.subTest(module=module, name=name, fields=fields):
                got = values.decode("json", json.dumps({"$object": {"module": module, "name": name,
                                                                    **fields}}).encode())
                self.assertIsInstance(got, values.Object)

    def test_what_only_other_writers_encode(self):
        table = [
            ('{"$map":[["$x",1]]}', {"$x": 1}),
            ('{"$object":{"module":"datetime","name":"timedelta","call":true,"kwargs":{"days":2}}}',
             datetime.timedelta(days=2)),
            ('{"$object":{"module":"datetime","name":"time","call":true,"args":[1,2],"kwargs":{"fold":1}}}',
             datetime.time(1, 2, fold=1)),
            ('{"$map":[[{"$object":{"module":"torch","name":"float16"}},1]]}', {values.Object("torch", "float16"): 1}),
            ('{"$ref":"model.w"}', values.Ref("model.w")),
            ('{"$tensor":{"dtype":"int8","shape":[2],"data":"AQI="}}', values.RawTensor("int8", (2,), b"\x01\x02")),
            ('{"$object":{"module":"os","name":"system","call":true,"args":["false"]}}',
             values.Object("os", "system", {"call": True, "args": ["false"]})),
        ]
        for text, want in table:
            with self.subTest(text=text):
                self.assertEqual(values.decode("json", text.encode()), want)

    def test_damaged_values(self):
        table = ["", "{", "[1", '{"$what":1}', '{"$bytes":1}', '{"$bytes":"a"}', '{"$float":"x"}', '{"$complex":[1]}',
                 '{"$complex":["a","b"]}',
                 '{"$dict":[[[1],2]]}', '{"$dict":[1]}', '{"$set":[[1]]}', '{"$tensor":{}}', '{"$tensor":1}',
                 '{"$object":1}', "[" * 100_000]
        for text in table:
            with self.subTest(text=text[:40]), self.assertRaises(errors.CorruptError):
                values.decode("json", text.encode())
        with self.assertRaises(errors.CorruptError):
            values.decode("json", b"\xff\xfe\xfd")
        with self.assertRaises(errors.CorruptError):
            values.decode("pickle", b"")

    def test_text_is_json(self):
        codec, data = values.encode({"a": [1, 2.5, "ü", math.nan]})
        self.assertEqual(codec, "json")
        self.assertEqual(json.loads(data), {"a": [1, 2.5, "ü", {"$float": "nan"}]})


if __name__ == "__main__":
    unittest.main()
