"""Errors: codes decide the class."""

import pathlib
import pickle
import re
import unittest

import cairn
from cairn import errors

ROOT = pathlib.Path(__file__).parents[2]


class Errors(unittest.TestCase):
    def test_errors_of_recipes_name_arguments(self):
        for text, want in [
            ("set it with --set heads=VALUE, or give the model's config.json (--config)",
             "set it with variables={'heads': VALUE}, or give the model's config.json (config)"),
            ("use --set check_padding=false", "use variables={'check_padding': False}"),
            ("check the variables (--set) and config.json", "check the variables and config.json"),
            ("use hf-to-titan/llama, without --reverse", "use hf-to-titan/llama, without reverse=True"),
            ("--recipe auto: name the recipe", "recipe='auto': name the recipe"),
        ]:
            self.assertEqual(str(errors.from_message({"text": text, "codes": ["recipe.variable"]})), want)
            self.assertEqual(str(errors.from_message({"text": text, "codes": ["storage.options"]})), text)

    def test_no_error_of_recipes_names_a_flag(self):
        texts = [text for folder in ("recipe", "storage/view") for file in sorted((ROOT / folder).glob("*.go"))
                 if not file.name.endswith("_test.go")
                 for text in re.findall(r'"(?:[^"\\\n]|\\.)*--[a-z](?:[^"\\\n]|\\.)*"', file.read_text())]
        self.assertGreater(len(texts), 8)
        for text in texts:
            said = errors.from_message({"text": text.replace("%s", "x"), "codes": ["recipe.unknown"]})
            self.assertNotRegex(str(said), "--[a-z]")

    def test_codes_decide_the_class(self):
        table = [
            (["plan.missing", "plan.mismatch"], cairn.MissingError, (cairn.MismatchError, KeyError, ValueError)),
            (["plan.mismatch"], cairn.MismatchError, (ValueError,)),
            (["plan.state"], cairn.StateError, (ValueError,)),
            (["storage.incomplete", "storage.underway"], cairn.UnderWayError, (cairn.IncompleteError,)),
            (["storage.incomplete"], cairn.IncompleteError, ()),
            (["storage.notfound", "fs.ErrNotExist"], cairn.NotFoundError, (FileNotFoundError,)),
            (["fs.ErrNotExist"], cairn.NotFoundError, (OSError,)),
            (["storage.inuse", "storage.removing"], cairn.InUseError, ()),
            (["storage.exists"], cairn.ExistsError, (FileExistsError,)),
            (["storage.corrupt"], cairn.CorruptError, ()),
            (["storage.version"], cairn.VersionError, ()),
            (["storage.changed"], cairn.ChangedError, ()),
            (["storage.uncertain"], cairn.UncertainError, ()),
            (["memory.full", "memory.room"], cairn.RoomError, ()),
            (["storage.options"], cairn.OptionsError, (ValueError,)),
            (["formats.unknown"], cairn.OptionsError, ()),
            (["storage.represent"], cairn.RepresentError, ()),
            (["tensor.cast"], cairn.CastError, (cairn.MismatchError, ValueError)),
            (["plan.mismatch", "tensor.cast"], cairn.CastError, (cairn.MismatchError, ValueError)),
            (["saver.ended"], cairn.SaverError, ()),
            (["saver.replaced"], cairn.ReplacedError, ()),
            (["group.ErrGone"], cairn.GoneError, ()),
            (["of.tomorrow"], cairn.CairnError, ()),
            ([], cairn.CairnError, ()),
        ]
        for codes, kind, also in table:
            with self.subTest(codes=codes):
                e = errors.from_message({"text": "what is wrong", "codes": codes})
                self.assertIs(type(e), kind)
                self.assertIsInstance(e, (cairn.CairnError, *also))
                for k in also:
                    self.assertIsInstance(e, k)
                self.assertEqual(str(e), "what is wrong")
                self.assertEqual(e.codes, tuple(codes))
                again = pickle.loads(pickle.dumps(e))
                self.assertEqual((type(again), str(again), again.codes), (kind, "what is wrong", tuple(codes)))

    def test_an_error_of_a_saver_has_its_code(self):
        e = errors.SaverError("it has ended")
        self.assertIs(type(errors.from_message({"text": str(e), "codes": e.codes})), errors.SaverError)

    def test_every_class_is_exported(self):
        for name, v in vars(errors).items():
            if isinstance(v, type) and issubclass(v, errors.CairnError):
                self.assertIs(getattr(cairn, name), v)
                self.assertIn(name, cairn.__all__)


if __name__ == "__main__":
    unittest.main()
