"""Names of a state beside the names of a checkpoint: missing names, similar names, and rules that rename them."""

import unittest

from cairn import errors, names

LAYERS = [f"model.layers.{i}.{kind}.weight" for i in range(3) for kind in ("attn", "mlp")]


def missing(lacks, wanted, there):
    return names.missing(lacks, {n: n for n in wanted}, there)


class Missing(unittest.TestCase):
    def test_the_option_that_finds_what_is_missing(self):
        def wrapped(name, wrapper):
            return name.replace("model.", f"model.{wrapper}.", 1)

        table = [
            ("DDP saved", LAYERS, [wrapped(n, "module") for n in LAYERS], "{'model.': 'model.module.'}"),
            ("DDP loads", [wrapped(n, "module") for n in LAYERS], LAYERS, "{'model.module.': 'model.'}"),
            ("compile saved", LAYERS, [wrapped(n, "_orig_mod") for n in LAYERS], "{'model.': 'model._orig_mod.'}"),
            ("another key", LAYERS, [n.replace("model.", "net.") for n in LAYERS], "{'model.': 'net.'}"),
            ("no key", LAYERS, [n.removeprefix("model.") for n in LAYERS], "{'model.': ''}"),
            ("more keys", [n.removeprefix("model.") for n in LAYERS], LAYERS, "{'': 'model.'}"),
            ("each layer compiled", LAYERS,
             [n.replace(".attn", "._orig_mod.attn").replace(".mlp", "._orig_mod.mlp") for n in LAYERS],
             "'wrappers'"),
            ("both wrapped", [n.replace("layers", "layers.module") for n in LAYERS],
             [n.replace(".attn", "._orig_mod.attn").replace(".mlp", "._orig_mod.mlp") for n in LAYERS], "'wrappers'"),
        ]
        for what, mine, theirs, want in table:
            with self.subTest(what=what):
                e = missing(mine, mine, theirs)
                self.assertIn(f"rename={want})", str(e))
                self.assertIsInstance(e, errors.MissingError)
                rename = names.renamer(eval(want), theirs)  # the rule in the message works
                self.assertEqual([rename(n) for n in mine], theirs)

    def test_several_options(self):
        def below(*prefixes):
            return [p + n for p in prefixes for n in ("a.weight", "a.bias", "b.weight")]

        table = [
            ("a wrapper, and EMA in a wrapper", [""], ["model.module.", "ema.module."], "{'': 'model.module.'}",
             ["{'': 'ema.module.'} (an EMA copy)"]),
            ("an EMA copy has more of the name", ["model."], ["model.module.", "ema.model."],
             "{'model.': 'model.module.'}", ["{'': 'ema.'} (an EMA copy)"]),
            ("the EMA copy is asked for", ["ema."], ["model.module.", "ema.module."], "{'ema.': 'ema.module.'}",
             ["{'ema.': 'model.module.'} (not an EMA copy)"]),
            ("moments of an optimizer", [""], ["module.module.", "optimizer.state.exp_avg.", "opt.master."],
             "{'': 'module.module.'}", ["(optimizer state)"]),
            ("a wrapper, and another model", [""], ["net.", "_orig_mod."], "{'': '_orig_mod.'}",
             ["{'': 'net.'} (another prefix)"]),
            ("the key of models, and another model", [""], ["critic.", "state_dict.module."],
             "{'': 'state_dict.module.'}", ["{'': 'critic.'} (another prefix)"]),
            ("several EMA copies", [""], ["ema_0.999.", "EMAWeightAveraging.module.", "state_dict_ema.", "net."],
             "{'': 'net.'}", ["{'': 'EMAWeightAveraging.module.'} (an EMA copy)", "{'': 'state_dict_ema.'}"]),
        ]
        for what, mine, theirs, want, others in table:
            with self.subTest(what=what):
                e = str(missing(below(*mine), below(*mine), below(*theirs)))
                self.assertIn(f"load(…, rename={want}) finds them. Others fit too: ", e)
                for other in others:
                    self.assertIn(other, e)

    def test_no_option_is_recommended_if_several_are_as_good(self):
        for theirs, want in (
                (["actor.", "critic."], "Several prefixes fit: rename={'': 'actor.'} (another prefix), "
                                        "rename={'': 'critic.'} (another prefix)"),
                (["module.", "_orig_mod."], "Several prefixes fit: rename={'': '_orig_mod.'} (in a wrapper), "),
                (["ema."], "Only copies have such names: rename={'': 'ema.'} (an EMA copy)"),
                (["ema.", "opt.exp_avg."], "Only copies have such names: rename={'': 'ema.'} (an EMA copy), "
                                           "rename={'': 'opt.exp_avg.'} (optimizer state)")):
            e = str(missing(LAYERS, LAYERS, [p + n for p in theirs for n in LAYERS]))
            self.assertIn(want, e)
            self.assertNotIn("finds them", e)
        mine = ["x.weight"]
        e = str(missing(mine, mine, [f"layers.{i}.weight" for i in range(20)]))  # too many candidates
        self.assertNotIn("rename", e)

    def test_an_option_finds_all_names_of_the_state(self):
        e = str(missing(["a.w", "b.w"], ["a.w", "b.w", "step"], ["module.a.w", "module.b.w", "step"]))
        self.assertNotIn("{'': 'module.'}", e)  # which would not find the step
        self.assertIn("rename='wrappers') finds them", e)
        e = str(missing(["m.w"], ["m.w"], ["module.m._orig_mod.w", "m._orig_mod.w"]))
        self.assertNotIn("'wrappers'", e)  # which cannot tell them apart

    def test_an_option_finds_what_fits(self):
        shapes = {"a.w": 3, "b.w": 4, "x.a.w": 3, "x.b.w": 4, "y.a.w": 4, "y.b.w": 4}
        e = str(names.missing(["a.w", "b.w"], {n: n for n in ("a.w", "b.w")}, [n for n in shapes if n[1:] != ".w"],
                              fits=lambda mine, theirs: shapes[mine] == shapes[theirs]))
        self.assertRegex(e, r"rename=\{'': 'x\.'\}\) finds them\. load")

    def test_a_name_that_the_state_has_is_not_an_option(self):
        wanted = [f"model.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
        self.assertNotIn("rename", str(missing(wanted[4:], wanted, wanted[:4])))

    def test_chosen(self):
        has = ["a.w", "a.b", "c"]
        for which, want in ((None, has), ("c", ["c"]), ("a.*", ["a.w", "a.b"]), (["c", "a.b"], ["c", "a.b"]),
                            (lambda n: n != "c", ["a.w", "a.b"]), ([], [])):
            self.assertEqual(names.chosen(has, which, "weights"), want)
        with self.assertRaisesRegex(errors.MissingError, "^2 of the 3 names for weights are not in the checkpoint: "
                                                         "'d', 'x[*]'"):
            names.chosen(has, ["c", "d", "x*"], "weights")

    def test_one_summary(self):
        e = str(missing([f"a.{i}" for i in range(1000)], [f"a.{i}" for i in range(2000)], ["b"]))
        self.assertLess(len(e), 300)
        self.assertIn("1000 of the 2000 names", e)
        self.assertIn("997 more", e)

    def test_nearest_names(self):
        e = str(missing(["model.head.wieght"], ["model.head.wieght"], [*LAYERS, "model.head.weight"]))
        self.assertIn("'model.head.weight'", e)
        self.assertNotIn("rename", e)

    def test_an_empty_checkpoint(self):
        self.assertIn("1 of the 1 names", str(missing(["a"], ["a"], [])))

    def test_a_partial_map_is_not_an_option(self):
        self.assertNotIn("rename", str(missing(["model.a", "model.z"], ["model.a", "model.z"], ["net.a", "net.b"])))


class Renamer(unittest.TestCase):
    def test_what_is_refused(self):
        with self.assertRaisesRegex(errors.OptionsError, "returns None for 'a'"):
            names.renamer(lambda name: None, ())("a")
        with self.assertRaisesRegex(errors.OptionsError, "both 'm.w' and 'm.module.w'"):
            names.distinct({"m.w": "m.w", "m.v": "m.v", "m.module.w": "m.w"})

    def test_prefixes(self):
        rename = names.renamer({"a.": "x.", "a.b.": "y."}, ())
        self.assertEqual([rename(n) for n in ("a.c", "a.b.c", "b", "ab")], ["x.c", "y.c", "b", "ab"])

    def test_a_function(self):
        self.assertEqual(names.renamer(str.upper, ())("a"), "A")

    def test_nothing(self):
        self.assertEqual(names.renamer(None, ())("a"), "a")

    def test_what_it_cannot_be(self):
        with self.assertRaises(errors.OptionsError):
            names.renamer("module.", ())
        with self.assertRaisesRegex(errors.OptionsError, "both"):
            names.renamer("wrappers", ["a.module.b", "a.b"])


if __name__ == "__main__":
    unittest.main()
