"""States and arguments that PyTorch's own storage takes, with Writer, Reader and Stager, in one process."""

import contextlib
import importlib.util
import os
import pathlib
import tempfile
import unittest
import warnings

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem

import cairn
import cairn.torch
import cairn.torch.dcp


class Empty:
    """An object with an empty state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        self.loaded = state


class DCPTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "ck")
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(cairn.torch.close)
        cairn.torch.dcp._noted.clear()

    def test_one_element_with_a_stride(self):
        for path, x in enumerate((torch.arange(2.0)[::2], torch.arange(12.0).reshape(4, 3)[::4, ::3],
                                  torch.arange(3, dtype=torch.int64)[1::2])):
            cairn.torch.save({"x": x}, f"{self.path}-{path}")
            got = torch.zeros(8, dtype=x.dtype).as_strided(x.shape, [5] * x.dim())
            cairn.torch.load({"x": got}, f"{self.path}-{path}")
            self.assertTrue(torch.equal(got, x), f"{got}; want {x}")

    def test_arrays_that_begin_at_the_same_place(self):
        a = numpy.arange(1000.0)
        state = {"short": torch.from_numpy(a[:10]), "long": torch.from_numpy(a), "later": torch.from_numpy(a[5:20]),
                 "again": torch.from_numpy(a)}
        cairn.torch.save(state, self.path)
        got = {k: torch.zeros_like(v) for k, v in state.items()}
        cairn.torch.load(got, self.path)
        for k, v in state.items():
            self.assertTrue(torch.equal(got[k], v), k)
        dcp.save(state, storage_writer=cairn.torch.Writer(self.path))
        staged = cairn.torch.Stager().stage(state)
        for k, v in state.items():
            self.assertTrue(torch.equal(staged[k], v), k)

    def test_an_empty_state(self):
        cairn.torch.save({}, self.path)
        self.assertEqual(cairn.torch.load({}, self.path).bytes, 0)
        with cairn.open(self.path) as c:
            self.assertEqual(len(c), 0)
        for format in ("native", "torchdcp"):
            for state in ({}, {"model": Empty()}, {"model": torch.nn.Identity(), "more": {"nothing": {}}}):
                dcp.save(state, storage_writer=cairn.torch.Writer(f"{self.path}-{format}", format=format))
                dcp.load(state, storage_reader=cairn.torch.Reader(f"{self.path}-{format}"))
                dcp.async_save(state, storage_writer=cairn.torch.Writer(f"{self.path}-{format}", format=format),
                               no_dist=True).result()
        dcp.load({}, storage_reader=dcp.FileSystemReader(f"{self.path}-torchdcp"))
        state = {"model": Empty()}
        cairn.torch.save(state, self.path)
        cairn.torch.load(state, self.path)
        self.assertEqual(state["model"].loaded, {})

    def test_casts_that_lose_numbers(self):
        cairn.torch.save({"n": torch.tensor([1, 300]), "x": torch.tensor([0.5, 1e6])}, self.path)
        small = torch.zeros(2, dtype=torch.int8)
        for target in ({"n": small}, {"x": small}, {"x": torch.zeros(2, dtype=torch.bool)}):
            with self.assertRaisesRegex(cairn.CastError, "cast=any") as caught:
                cairn.torch.load(target, self.path)
            self.assertIn(repr(next(iter(target))).replace("'", '"'), str(caught.exception))
            with self.assertRaisesRegex(BaseException, "cast=any"):
                dcp.load(target, storage_reader=cairn.torch.Reader(self.path))
        with self.assertRaisesRegex(cairn.CastError, '"n".*300'):
            cairn.torch.load({"n": small}, self.path)
        cairn.torch.load({"n": small}, self.path, cast="any")
        self.assertEqual(small.tolist(), [1, 44])
        small.zero_()
        dcp.load({"n": small}, storage_reader=cairn.torch.Reader(self.path, cast="any"))
        self.assertEqual(small.tolist(), [1, 44])
        half = torch.zeros(2, dtype=torch.float16)  # floats are rounded, to an infinity too
        cairn.torch.load({"x": half}, self.path)
        self.assertEqual(half.tolist(), [0.5, float("inf")])
        with self.assertRaises(cairn.CastError):
            cairn.torch.load({"x": half}, self.path, cast="widen")
        with self.assertRaises(cairn.OptionsError):
            cairn.torch.load({"x": half}, self.path, cast="all")

    def test_addresses(self):
        for checkpoint_id, want in (("abc://abc.abc", False), ("http://host/run", False), ("s3://bucket/run", True),
                                    ("gs://bucket/run", True),
                                    ("run/step-1", True), (pathlib.Path("run"), True), ("s3:/bucket/run", False),
                                    ("file:///tmp/run", True)):
            self.assertIs(cairn.torch.Writer.validate_checkpoint_id(checkpoint_id), want, checkpoint_id)
            self.assertIs(cairn.torch.Reader.validate_checkpoint_id(checkpoint_id), want, checkpoint_id)

    def test_what_pytorchs_storage_has(self):
        writer = cairn.torch.Writer(self.path)
        first = writer.save_id
        self.assertEqual(writer.path, pathlib.Path(self.path))
        self.assertEqual(writer.checkpoint_id, writer.path)
        self.assertFalse(writer.fs.exists(writer.path))
        metadata = dcp.save({"x": torch.ones(2)}, storage_writer=writer)
        self.assertTrue(writer.fs.exists(writer.path))
        self.assertEqual(writer.save_id, first)
        metadata = dcp.save({"x": torch.ones(2)}, storage_writer=writer)
        self.assertNotEqual(writer.save_id, first)
        self.assertEqual(metadata.storage_meta.save_id, writer.save_id)
        with cairn.open(self.path) as c:
            self.assertEqual(c.save_id, writer.save_id)
        reader = cairn.torch.Reader(self.path)
        described = reader.read_metadata()
        self.assertEqual(described.storage_meta.load_id, reader.load_id)
        self.assertEqual(described.storage_meta.save_id, writer.save_id)
        version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
        self.assertEqual([getattr(m, "version", None) for m in (metadata, described)], [version] * 2)
        before = reader.load_id
        reader.reset()
        self.assertNotEqual(reader.load_id, before)
        self.assertEqual(reader.path, pathlib.Path(self.path))
        self.assertEqual(cairn.torch.Writer("s3://bucket/run").path, "s3://bucket/run")
        self.assertIsNone(cairn.torch.Writer("s3://bucket/run").fs)

    def test_a_checkpoint_that_must_not_be_replaced(self):
        dcp.save({"x": torch.ones(2)}, storage_writer=cairn.torch.Writer(self.path))
        with self.assertRaisesRegex(BaseException, "Checkpoint already exists and self.overwrite=False"):
            dcp.save({"x": torch.zeros(2)}, storage_writer=cairn.torch.Writer(self.path, overwrite=False))
        with cairn.open(self.path, framework="torch") as c:
            self.assertEqual(c["x"].torch().tolist(), [1, 1])

    def test_arguments_of_pytorchs_storage(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            writer = cairn.torch.Writer(self.path, True, True, 2, overwrite=True, _extensions=None)
        dcp.save({"x": torch.ones(2), "y": torch.ones(3)}, storage_writer=writer)
        self.assertEqual(writer.report.files, 2)  # thread_count
        for name, value in (("single_file_per_rank", False), ("sync_files", False), ("per_thread_copy_ahead", 5),
                            ("cache_staged_state_dict", True)):
            with self.assertWarnsRegex(UserWarning, f"{name}.* has no meaning for cairn: "):
                cairn.torch.Writer(self.path, **{name: value})
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                cairn.torch.Writer(self.path, **{name: value})  # once is enough
        with self.assertWarnsRegex(UserWarning, "_extension_registry has no meaning"):
            cairn.torch.Reader(self.path, _extension_registry=object())
        if formats := getattr(filesystem, "SerializationFormat", None):
            with self.assertWarnsRegex(UserWarning, "serialization_format has no meaning"):
                cairn.torch.Writer(self.path, serialization_format=formats.SAFETENSORS)

    @unittest.skipUnless(importlib.util.find_spec("zstandard") or importlib.util.find_spec("pyzstd"),
                         "PyTorch's ZStandard needs zstandard or pyzstd")
    def test_extensions(self):
        from torch.distributed.checkpoint._extension import StreamTransformExtension

        class Secret(StreamTransformExtension):
            def transform_to(self, output):
                return output

            def transform_from(self, input):
                return input

            def get_descriptor(self):
                return "secret"

            @staticmethod
            def from_descriptor(version):
                return Secret()

            @staticmethod
            def registry_name():
                return "secret"

        with self.assertRaisesRegex(cairn.OptionsError, "Secret"):  # it may encrypt
            cairn.torch.Writer(self.path, _extensions=[Secret()])
        with contextlib.suppress(ImportError):
            from torch.distributed.checkpoint._extension import ZStandard

            with self.assertWarnsRegex(UserWarning, "_extensions has no meaning"):
                cairn.torch.Writer(self.path, _extensions=[ZStandard()])

    def test_folders_of_hugging_face(self):
        from safetensors.torch import save_file

        os.mkdir(self.path)
        save_file({"x": torch.arange(4.0)}, os.path.join(self.path, "model-00001-of-00001.safetensors"))
        got = {"x": torch.zeros(4)}
        dcp.load(got, storage_reader=cairn.torch.Reader(self.path))
        self.assertEqual(got["x"].tolist(), [0, 1, 2, 3])


if __name__ == "__main__":
    unittest.main()
