"""Objects of classes: described with a warning, or made again with allow_pickle, in all formats."""

import collections
import dataclasses
import enum
import os
import sys
import types
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp

import cairn
import cairn.torch
from device import Case


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Config:
    rate: float
    color: Color
    parts: list


@dataclasses.dataclass(slots=True)
class Slots:
    a: int


class Outer:
    @dataclasses.dataclass
    class Inner:
        a: int


class Numbers(list):
    pass


class Table(dict):
    pass


class State:
    """An object with a state of its own form."""

    def __getstate__(self):
        return ("state", self.x)

    def __setstate__(self, state):
        self.x = state[1]


class Scheduler:
    """An object with an object in its state_dict."""

    def __init__(self, config):
        self.config = config

    def state_dict(self):
        return {"config": self.config}

    def load_state_dict(self, state):
        self.config = state["config"]


Point = collections.namedtuple("Point", "x y")
CONFIG = Config(0.1, Color.RED, [Slots(1), {"deep": Color.RED}])
MODULE = __name__


def restored(test, got):
    """Checks an object that was made again."""
    test.assertEqual(got, CONFIG)
    test.assertIs(got.color, Color.RED)


class Objects(Case):
    def formats(self):
        """Yields formats, each with a checkpoint that has a tensor and an object, "config"."""
        state = {"w": torch.ones(3), "config": CONFIG}
        os.makedirs(self.path("deepspeed"))
        torch.save({"module": {"w": torch.ones(3)}, "config": CONFIG, "dp_world_size": 1, "mp_world_size": 1},
                   self.path("deepspeed/mp_rank_00_model_states.pt"))
        torch.save(state, self.path("x.pt"))
        dcp.save(dict(state), checkpoint_id=self.path("torchdcp"), no_dist=True)
        cairn.convert(self.path("x.pt"), self.path("native"), format="native")
        return ("x.pt", "torchdcp", "native", "deepspeed")

    def described(self, path, count=1):
        """Returns a context in which one warning names the classes."""
        test = self

        class Context(warnings.catch_warnings):
            def __enter__(self):
                self.found = super().__enter__()
                warnings.simplefilter("always")

            def __exit__(self, *exc):
                super().__exit__(*exc)
                found = [w for w in self.found if w.category is cairn.PickleWarning]
                test.assertEqual(len(found), count, [str(w.message) for w in found])
                test.assertEqual(found[0].filename, __file__)
                test.assertRegex(str(found[0].message), rf"{path} has pickled objects of {MODULE}\.Color, "
                                                        rf"{MODULE}\.Config, {MODULE}\.Slots: .*allow_pickle=True")

        return Context(record=True)

    def test_load(self):
        for name in self.formats():
            with self.subTest(name):
                state = {"config": None}
                with self.described(self.path(name)):
                    cairn.torch.load(state, self.path(name))
                self.assertEqual((state["config"].module, state["config"].name), (MODULE, "Config"))
                self.assertEqual(state["config"].fields["state"]["rate"], 0.1)
                cairn.torch.load(state, self.path(name), allow_pickle=True)
                restored(self, state["config"])

    def test_open(self):
        for name in self.formats():
            with self.subTest(name):
                with self.described(self.path(name)), cairn.open(self.path(name)) as c:
                    self.assertEqual(c["config"].name, "Config")
                    self.assertEqual(c.load("config")["config"].name, "Config")
                with cairn.open(self.path(name), allow_pickle=True) as c:
                    restored(self, c["config"])
                    restored(self, c.load("config")["config"])

    def test_one_warning_for_several_values(self):
        torch.save({"a": CONFIG.color, "b": CONFIG, "c": [Slots(2)]}, self.path("x.pt"))
        with self.described(self.path("x.pt")), cairn.open(self.path("x.pt")) as c:
            for name in c:
                c[name]
        with self.described(self.path("x.pt")):
            cairn.torch.load(dict.fromkeys("abc"), self.path("x.pt"))

    def test_the_reader_of_dcp(self):
        for name in self.formats():
            with self.subTest(name):
                state = {"config": None}
                dcp.load(state, storage_reader=cairn.torch.Reader(self.path(name)), no_dist=True)
                restored(self, state["config"])

    def test_the_state_of_an_object(self):
        torch.save({"scheduler": {"config": CONFIG, "last": 3}}, self.path("x.pt"))
        scheduler = Scheduler(None)
        with self.described(self.path("x.pt")):
            cairn.torch.load({"scheduler": scheduler}, self.path("x.pt"))
        self.assertEqual(scheduler.config.name, "Config")
        cairn.torch.load({"scheduler": scheduler}, self.path("x.pt"), allow_pickle=True)
        restored(self, scheduler.config)

    def test_what_cairn_pickled(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cairn.PickleWarning)
            cairn.torch.save({"w": torch.ones(3), "config": CONFIG}, self.path())
        with self.assertRaisesRegex(cairn.RepresentError, rf"'config': it is a pickle, with .*{MODULE}\.Config.*"
                                                          "allow_pickle=True"):
            cairn.torch.load({"config": None}, self.path())
        with self.described(self.path()), cairn.open(self.path()) as c:
            self.assertEqual(c["config"].name, "Pickled")
        with cairn.open(self.path(), allow_pickle=True) as c:
            restored(self, c["config"])

    def test_all_kinds_of_objects(self):
        state, module = State(), torch.nn.Linear(3, 2)
        state.x = 7
        values = {"slots": Slots(1), "inner": Outer.Inner(2), "numbers": Numbers([1, 2]), "table": Table(a=1),
                  "point": Point(1, Color.RED),
                  "class": Config, "function": restored, "key": {Color.RED: torch.float16}, "none": None,
                  "set": {Color.RED}, "args": types.SimpleNamespace(color=Color.RED)}
        torch.save({**values, "state": state, "module": module, "half": {"t": torch.ones(2)}}, self.path("x.pt"))
        got = dict.fromkeys([*values, "state", "module"])
        for opened in (False, True):
            if opened:
                with cairn.open(self.path("x.pt"), allow_pickle=True) as c:
                    got = {name: c[name] for name in got}
            else:
                cairn.torch.load(got, self.path("x.pt"), allow_pickle=True)
            for name, v in values.items():
                self.assertEqual(got[name], v, name)
                self.assertIs(type(got[name]), type(v), name)
            self.assertEqual(got["state"].x, 7)
            self.assert_same(module.state_dict(), got["module"].state_dict())
            self.assertEqual(len(list(got["module"].parameters())), 2)
            got["module"](torch.ones(3)).sum().backward()

    def test_the_order_of_modules(self):
        net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) if i % 2 else torch.nn.Tanh() for i in range(12)))
        torch.save({"net": net}, self.path("x.pt"))
        cairn.convert(self.path("x.pt"), self.path("native"), format="native")
        for name in "x.pt", "native":
            with cairn.open(self.path(name), allow_pickle=True) as c:
                got = c["net"]
            self.assert_same(net.state_dict(), got.state_dict())
            self.assertEqual(repr(net), repr(got))
            self.assert_same(net(torch.ones(2)), got(torch.ones(2)))

    def test_a_class_that_is_not_there(self):
        gone = types.ModuleType("gone")
        gone.Thing = type("Thing", (), {"__module__": "gone"})
        sys.modules["gone"] = gone
        try:
            thing = gone.Thing()
            thing.x = 1
            torch.save({"thing": thing}, self.path("x.pt"))
            del gone.Thing
            with self.assertRaisesRegex(cairn.RepresentError, r"'thing': gone\.Thing cannot be made: AttributeError"):
                cairn.torch.load({"thing": None}, self.path("x.pt"), allow_pickle=True)
        finally:
            del sys.modules["gone"]
        want = r"'thing': gone\.Thing cannot be made: ModuleNotFoundError"
        with cairn.open(self.path("x.pt"), allow_pickle=True) as c, self.assertRaisesRegex(cairn.RepresentError, want):
            c["thing"]
        state = {"thing": None}
        with self.assertWarnsRegex(cairn.PickleWarning, r"gone\.Thing"):
            cairn.torch.load(state, self.path("x.pt"))
        self.assertEqual(state["thing"].fields["state"], {"x": 1})

    def test_nothing_runs_without_allow_pickle(self):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (folder,)

        folder = self.path("made")
        torch.save({"evil": Evil()}, self.path("x.pt"))
        with self.assertWarnsRegex(cairn.PickleWarning, r"posix\.mkdir"), cairn.open(self.path("x.pt")) as c:
            self.assertEqual(c["evil"].name, "mkdir")
        with self.assertWarns(cairn.PickleWarning):
            cairn.torch.load({"evil": None}, self.path("x.pt"))
        self.assertFalse(os.path.exists(folder))
        cairn.torch.load({"evil": None}, self.path("x.pt"), allow_pickle=True)
        self.assertTrue(os.path.exists(folder))

    def test_plain_values_do_not_warn(self):
        torch.save({"args": types.SimpleNamespace(a=torch.float16), "n": 1, "w": torch.ones(2)}, self.path("x.pt"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cairn.torch.load({"args": None, "n": None}, self.path("x.pt"))
            with cairn.open(self.path("x.pt")) as c:
                self.assertEqual(c["n"], 1)
                c["args"]


if __name__ == "__main__":
    unittest.main()
