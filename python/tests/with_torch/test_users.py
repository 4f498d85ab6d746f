"""Habits of training loops, in one process: results that are forgotten, wrapped models, values that are not tensors."""

import argparse
import collections
import datetime
import os
import pathlib
import subprocess
import sys
import types
import unittest
import unittest.mock
import warnings

import numpy
import torch

import cairn
import cairn.torch
from device import DEVICE, ENV, Case, noise

AT_EXIT = """
import sys, warnings, torch, cairn.torch
cairn.torch.async_save({"x": torch.zeros(3)}, sys.argv[1], overlap=sys.argv[2] == "overlap")
"""


class Thing:
    """An object of a class of anybody's."""


class Unseen(Case):
    """Errors of saves with results that the program does not ask for."""

    def fails(self, **options):
        """Begins a save that fails: in its place there is a checkpoint of another format."""
        if not os.path.exists(self.path("other")):
            cairn.torch.save({"x": noise((3,))}, self.path("other"), format="torchdcp")
        handle = cairn.torch.async_save({"x": noise((3,))}, self.path("other"), **options)
        handle._reply.wait(100)
        return handle

    def test_the_next_save_warns_once(self):
        self.fails()
        with self.assertWarnsRegex(cairn.SaveWarning, "other.*has failed") as caught:
            cairn.torch.async_save({"x": noise((3,))}, self.path()).result(100)
        self.assertEqual(caught.filename, __file__)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cairn.torch.async_save({"x": noise((3,))}, self.path()).result(100)

    def test_the_next_save_raises_if_it_shall(self):
        self.fails(overlap=True)
        cairn.torch._handle.unseen._errors.append(([], "another one", ValueError()))
        with warnings.catch_warnings():
            warnings.simplefilter("error", cairn.SaveWarning)
            for text in ("has failed", "another one"):
                with self.assertRaisesRegex(cairn.SaveWarning, text):
                    cairn.torch.save({"x": noise((3,))}, self.path())
        cairn.torch.save({"x": noise((3,))}, self.path())

    def test_close_warns(self):
        self.fails()
        with self.assertWarns(cairn.SaveWarning):
            cairn.torch.close()

    def test_what_was_raised_is_not_reported(self):
        for seen in (lambda h: h, lambda h: h.uploaded):
            with self.assertRaises(cairn.ExistsError):
                seen(self.fails()).result(100)
            self.assertIsInstance(seen(self.fails()).exception(100), cairn.ExistsError)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cairn.torch.close()

    def test_an_error_while_the_state_is_copied_is_that_of_the_result(self):
        for overlap in (False, True):
            with self.subTest(overlap=overlap), unittest.mock.patch.object(cairn.torch._staging, "copy_units",
                                                                           side_effect=OSError("no copy")):
                handle = cairn.torch.async_save({"x": noise((3,))}, self.path(), overlap=overlap)
                with self.assertRaisesRegex(OSError, "no copy"):
                    handle.staged.result(100)
                with self.assertRaisesRegex(OSError, "no copy"):
                    handle.result(100)
                self.assertRegex(repr(handle), "failed: no copy")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cairn.torch.save({"x": noise((3,))}, self.path())

    def test_a_handle_says_why(self):
        handle = self.fails()
        self.assertRegex(repr(handle), "failed: .*torchdcp")
        with self.assertRaises(cairn.ExistsError):
            handle.result()
        ok = cairn.torch.async_save({"x": noise((3,))}, self.path())
        ok.result(100)
        self.assertIn("complete", repr(ok))

    def test_the_end_of_the_process_warns(self):
        for how in ("overlap", "wait"):
            done = subprocess.run([sys.executable, "-c", AT_EXIT, "/proc/nowhere/step-1", how], env=ENV,
                                  capture_output=True, text=True, timeout=200)
            self.assertIn("SaveWarning: the save to", done.stderr)


class Names(Case):
    def net(self):
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)).to(DEVICE)

    def test_wrapped_models(self):
        class Wrapped(torch.nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module

        net, other = self.net(), self.net()
        opt, other_opt = torch.optim.AdamW(net.parameters()), torch.optim.AdamW(other.parameters())
        net(torch.ones(4, device=DEVICE)).sum().backward()
        opt.step()
        cairn.torch.save({"net": Wrapped(net), "opt": opt}, self.path())
        with self.assertRaisesRegex(cairn.MissingError, r"4 of the 4 names.*rename=\{'net\.': 'net\.module\.'\}"):
            cairn.torch.load({"net": other}, self.path())
        for rename in ({"net.": "net.module."}, "wrappers", lambda name: name.replace("net.", "net.module.")):
            other, other_opt = self.net(), torch.optim.AdamW(other.parameters())
            cairn.torch.load({"net": other, "opt": other_opt}, self.path(), rename=rename)
            self.assert_same(net.state_dict(), other.state_dict())
            self.assert_same(opt.state_dict(), other_opt.state_dict())
        cairn.torch.load({"a": other, "o": other_opt}, self.path(), rename={"a.": "net.module.", "o.": "opt."})
        report = cairn.torch.load({"net": {"x": noise((2,))}}, self.path(), strict=False, rename={"net.": "y."})
        self.assertEqual(report.missing, ("net.x",))

    def test_an_ema_copy_is_not_recommended(self):
        net, ema, other = self.net(), self.net(), self.net()
        wider = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
        state = {"model": torch.nn.ModuleDict({"module": net}), "ema": torch.nn.ModuleDict({"module": ema}),
                 "wider": wider, "step": 3}
        cairn.torch.save(state, self.path())
        with self.assertRaises(cairn.MissingError) as caught:
            cairn.torch.load(other, self.path())
        self.assertIn("rename={'': 'model.module.'}) finds them. Others fit too: "
                      "rename={'': 'ema.module.'} (an EMA copy). ", str(caught.exception))  # not wider
        cairn.torch.load(other, self.path(), rename={"": "model.module."})
        self.assert_same(net.state_dict(), other.state_dict())

    def test_a_layer_that_the_state_lacks(self):
        cairn.torch.save({"net": self.net(), "step": 3}, self.path())
        small = torch.nn.Sequential(torch.nn.Linear(4, 5)).to(DEVICE)
        with self.assertRaisesRegex(cairn.MismatchError, r"2 names that 'net' of the state lacks: 'net\.1\.bias'"):
            cairn.torch.load({"net": small}, self.path())
        self.assertEqual(cairn.torch.load({"net": small}, self.path(), strict=False).missing, ())
        cairn.torch.load({"net": {"0.weight": noise((5, 4))}}, self.path())  # a part of a state
        cairn.torch.load({"net": self.net()}, self.path())  # without the step

    def test_an_optimizer_whose_names_a_function_maps(self):
        net = self.net()
        frozen = torch.nn.Parameter(torch.ones(3, device=DEVICE))
        opt = torch.optim.AdamW([*net.parameters(), frozen])
        net(torch.ones(4, device=DEVICE)).sum().backward()
        opt.step()
        cairn.torch.save({"net": net, "opt": opt}, self.path())
        other = self.net()
        new = torch.optim.AdamW([*other.parameters(), torch.nn.Parameter(torch.ones(3, device=DEVICE))])
        names = {f"adam.{name[4:]}": name for name in cairn.open(self.path()) if name.startswith("opt.")}
        cairn.torch.load({"net": other, "adam": new}, self.path(), rename=lambda name: names.get(name, name))
        self.assert_same(opt.state_dict(), new.state_dict())

    def test_other_objects_get_all_that_was_saved_of_them(self):
        class Loader:
            def __init__(self, **state):
                self.state = state

            def state_dict(self):
                return self.state

            def load_state_dict(self, state):
                self.state = state

        full = {"n": 3, "seen": {"0": 1, 7: [1, 2]}, "order": noise((5,), "int64"),
                "list": [{"a": noise((2,))}, {"b": 4}], "empty": {}}
        cairn.torch.save({"data": Loader(**full), "other": {"x": 1}}, self.path())
        for old in ({}, {"n": 0}, {"n": 0, "seen": {"0": 5}, "list": [{"a": torch.zeros(2, device=DEVICE)}]}):
            new = Loader(**old)
            cairn.torch.load({"data": new}, self.path())
            self.assertEqual((new.state["n"], new.state["seen"], new.state["list"][1]),
                             (3, {"0": 1, 7: [1, 2]}, {"b": 4}))
            self.assert_same(full["order"].cpu(), new.state["order"])
            self.assert_same(full["list"][0]["a"].cpu(), new.state["list"][0]["a"].cpu())

    def test_paths_that_are_none(self):
        for path in (None, ""):
            for call in (lambda: cairn.torch.save({"x": noise((2,))}, path),
                         lambda: cairn.torch.load({"x": noise((2,))}, path),
                         lambda: cairn.open(path), lambda: cairn.latest(path)):
                with self.assertRaises(cairn.OptionsError):
                    call()
        pathlib.Path(self.path("file")).write_text("")
        with self.assertRaisesRegex(cairn.OptionsError, "is a file"):
            cairn.latest(self.path("file"))

    def test_nothing_to_load(self):
        cairn.torch.save({"x": noise((2,))}, self.path())
        with self.assertWarnsRegex(UserWarning, "empty"):
            cairn.torch.load({}, self.path())


class Inference(Case):
    def test_load(self):
        net = torch.nn.Linear(300, 20).to(DEVICE)
        cairn.torch.save({"net": net, "t": net.weight.t()}, self.path())

        def made():
            return {"net": torch.nn.Linear(300, 20).to(DEVICE), "t": torch.zeros(20, 300, device=DEVICE).t()}

        for inside in (False, True):
            for within in (False, True):
                with self.subTest(made_inside=inside, loaded_inside=within):
                    with torch.inference_mode(inside):
                        state = made()
                    with torch.inference_mode(within):
                        cairn.torch.load(state, self.path())
                    self.assert_same(net.state_dict(), state["net"].state_dict())
                    self.assert_same(net.weight.t(), state["t"])
        net(torch.ones(300, device=DEVICE)).sum().backward()

    def test_save(self):
        with torch.inference_mode():
            state = {"x": noise((3, 4)), "many": [noise((n,)) for n in range(1, 5)]}
            cairn.torch.close()  # the next job begins here
            self.round_trip(state)
        self.round_trip({"x": noise((7,))})


class Values(Case):
    def test_what_is_no_pickle(self):
        state = {
            "array": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
            "fortran": numpy.asfortranarray(numpy.ones((2, 3))),
            "empty": numpy.zeros((0, 3)), "text": numpy.array(["a", "bc"]), "swapped": numpy.arange(3, dtype=">i4"),
            "number": numpy.float64(1.5), "bool": numpy.bool_(True), "dtype": numpy.dtype("int16"),
            "random": numpy.random.get_state(), "path": pathlib.Path("a/b"), "time": datetime.datetime(2026, 1, 2, 3),
            "zone": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            "delta": datetime.timedelta(2, 3), "none": (numpy.str_(""), numpy.bytes_(b"")), "classes": [int, dict],
            "keys": ({torch.float16: 1}, {torch.Size([2]): 2}),
            "nested": (collections.deque([torch.float32]), types.SimpleNamespace(d=torch.float16)),
            "args": argparse.Namespace(lr=0.1, path=pathlib.Path("x")),
            "torch": (torch.float16, torch.Size([2, 3]), torch.device("cpu")),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cairn.torch.save(state, self.path())
        got = dict.fromkeys(state)
        cairn.torch.load(got, self.path())
        for k, v in state.items():
            self.assertEqual(repr(got[k]), repr(v), k)
            self.assertIs(type(got[k]), type(v), k)
        for name in ("torchdcp", "torch"):  # pickles, which cairn reads
            options = {"file": "x.pt"} if name == "torch" else None
            plain = {k: v for k, v in state.items() if k != "args"}
            cairn.torch.save({"w": noise((2,)), **plain}, self.path(name), format=name, format_options=options)
            again = dict.fromkeys(plain)
            cairn.torch.load(again, self.path(name))
            for k, v in plain.items():
                self.assertEqual(repr(again[k]), repr(v), (name, k))
        got["array"][0] = 7  # it can be written to
        numpy.random.set_state(got["random"])
        with cairn.open(self.path()) as c:
            self.assertEqual(repr(c["args"]), repr(state["args"]))
            self.assertEqual(repr(c["array"]), repr(state["array"]))

    def test_what_is_a_pickle_is_named(self):
        cairn.torch._pickled._warned.clear()
        with self.assertWarnsRegex(cairn.PickleWarning, "'a.thing' is .*Thing"):
            cairn.torch.save({"a": {"thing": Thing()}}, self.path())
        with self.assertRaisesRegex(cairn.RepresentError, "'a.thing'"):
            cairn.torch.load({"a": {"thing": None}}, self.path())
        got = {"a": {"thing": None}}
        cairn.torch.load(got, self.path(), allow_pickle=True)
        self.assertIsInstance(got["a"]["thing"], Thing)
        for v in (lambda: 1, numpy.array([lambda: 1], dtype=object)):
            with self.assertRaisesRegex(cairn.StateError, "'a.f' is .*cannot be pickled"):
                cairn.torch.save({"a": {"f": v}}, self.path())


class Open(Case):
    def test_a_prefix_that_is_left_out(self):
        net = torch.nn.Linear(3, 4)
        cairn.torch.save({"model": net}, self.path())
        with cairn.open(self.path(), framework="torch") as c:
            got = c.load("model.", strip=True)
            self.assert_same(dict(net.state_dict()), {k: got[k] for k in net.state_dict()})
            torch.nn.Linear(3, 4).load_state_dict(c.load("model.", strip=True))

    def test_dir(self):
        for module in (cairn, cairn.torch):
            self.assertLessEqual(set(module.__all__), set(dir(module)))


if __name__ == "__main__":
    unittest.main()
