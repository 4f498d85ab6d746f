"""Indices: the box that is read, and the elements that are selected in it."""

import itertools
import math
import random
import unittest

from cairn._boxes import PIECE, box, cut

try:
    import numpy
except ImportError:
    numpy = None


def nested(shape, start=0):
    """Returns 0, 1, 2, … in nested lists of a shape."""
    if not shape:
        return start
    step = math.prod(shape[1:])
    return [nested(shape[1:], start + i * step) for i in range(shape[0])]


def select(a, index, dims):
    """Indexes nested lists with one entry for each dimension."""
    if not dims:
        return a
    if isinstance(index[0], int):
        return select(a[index[0]], index[1:], dims - 1)
    return [select(x, index[1:], dims - 1) for x in a[index[0]]]


def want(shape, index):
    """Returns the elements of an index, by numpy if it is there."""
    if numpy is not None:
        return numpy.arange(math.prod(shape)).reshape(shape)[index].tolist()
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at:at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    parts += [slice(None)] * (len(shape) - len(parts))
    return select(nested(shape), parts, len(shape))


def got(shape, index):
    """Returns the elements of an index by way of its box."""
    offsets, sizes, after = box(shape, index)
    read = select(nested(shape), [slice(o, o + n) for o, n in zip(offsets, sizes)], len(shape))
    return select(read, [slice(None) if a is None else a for a in after], len(shape))


class Index(unittest.TestCase):
    def test_table(self):
        s = slice
        table = [
            ((5,), s(1, 3)), ((5,), 0), ((5,), -1), ((5,), s(None)), ((5,), s(-2, None)), ((5,), s(3, 1)),
            ((5,), s(10, 20)), ((5,), s(-10, 2)),
            ((5,), s(None, None, 2)), ((5,), s(1, None, 3)), ((5,), s(None, None, -1)), ((5,), s(None, None, -2)),
            ((6,), s(4, 0, -2)),
            ((6,), s(4, 1, -2)), ((5,), s(1, 4, -1)), ((5,), ...), ((), ()), ((), ...), ((3, 4), 1), ((3, 4), (1, 2)),
            ((3, 4), (s(None), 2)),
            ((3, 4), (..., 2)), ((3, 4), (1, ...)), ((3, 4), (1, ..., 2)), ((2, 3, 4), (..., s(1, 3), 0)),
            ((2, 3, 4), (0, ..., s(None, None, -2))),
            ((2, 3, 4), (s(None, None, -1), s(None, None, -1), s(None, None, -1))), ((0,), s(None)), ((3, 0), s(1, 2)),
            ((3, 0), 2), ((3, 4), ()), ((3, 4), (s(0, 0), 1)),
        ]
        for shape, index in table:
            with self.subTest(shape=shape, index=index):
                self.assertEqual(got(shape, index), want(shape, index))

    def test_the_box_is_exact(self):
        self.assertEqual(box((100, 8), (slice(10, 20), slice(None))), ([10, 0], [10, 8], [None, None]))
        self.assertEqual(box((100, 8), 7), ([7, 0], [1, 8], [0, None]))
        self.assertEqual(box((100,), slice(9, 2, -3)), ([3], [7], [slice(None, None, -3)]))

    def test_random(self):
        seed = random.randrange(1 << 32)
        r = random.Random(seed)
        for _ in range(500):
            shape = tuple(r.randrange(0, 5) for _ in range(r.randrange(0, 4)))
            index = []
            for n in shape[:r.randrange(0, len(shape) + 1)]:
                if n and r.random() < 0.3:
                    index.append(r.randrange(-n, n))
                else:
                    index.append(slice(*(r.choice([None, r.randrange(-6, 7)]) for _ in range(2)),
                                       r.choice([None, 1, 2, 3, -1, -2, -3])))
            with self.subTest(seed=seed, shape=shape, index=index):
                self.assertEqual(got(shape, tuple(index)), want(shape, tuple(index)))

    def test_errors(self):
        table = [
            ((5,), 5, IndexError), ((5,), -6, IndexError), ((0,), 0, IndexError), ((5,), (0, 0), IndexError),
            ((), 0, IndexError),
            ((5, 5), (..., ...), IndexError), ((5, 5), (1, ..., 1, 1), IndexError), ((5,), 1.0, TypeError),
            ((5,), None, TypeError), ((5,), [1, 2], TypeError), ((5,), "a", TypeError), ((5,), True, TypeError),
            ((5,), slice(None, None, 0), ValueError),
        ]
        for shape, index, kind in table:
            with self.subTest(shape=shape, index=index), self.assertRaises(kind):
                box(shape, index)


class Cut(unittest.TestCase):
    def test_pieces_cover_the_box_once(self):
        for shape, most in itertools.product([(7,), (3, 5), (1, 1, 9), (2, 3, 4), (1,), ()], [4, 8, 12, 20, 64, PIECE]):
            with self.subTest(shape=shape, most=most):
                seen = []
                end = 0
                for w, at in cut({"name": "t", "dtype": "float32"}, [2 * n for n in shape], list(shape), list(shape),
                                 most):
                    self.assertLessEqual(w["nbytes"], most)
                    self.assertEqual(w["nbytes"], 4 * math.prod(w["sizes"]))
                    self.assertEqual(at, end)
                    end += w["nbytes"]
                    seen += itertools.product(*(range(o, o + n) for o, n in zip(w["offsets"], w["sizes"])))
                self.assertEqual(seen, list(itertools.product(*(range(n, 2 * n) for n in shape))))

    def test_a_box_without_elements_is_one_piece(self):
        self.assertEqual([(w["nbytes"], at) for w, at in cut({"name": "t", "dtype": "int64"}, [3, 0], [0, 0], [3, 0])],
                         [(0, 0)])


if __name__ == "__main__":
    unittest.main()
