"""Descriptions of states that are remembered: a later save sees every difference that counts."""

import gc
import sys
import unittest
import weakref
from unittest import mock

import torch

import cairn
import cairn.torch
from cairn.torch import _remembered
from device import DEVICE, Case, noise


class Remembered(Case):
    def saved(self, state, again):
        """Saves a state and loads it, and reports whether its description was remembered."""
        found = []
        look = _remembered.Remembered.again

        def looked(*args):
            found.append(look(*args))
            return found[-1]

        with mock.patch.object(_remembered.Remembered, "again", looked):
            cairn.torch.save(state, self.path())
        self.assertEqual(any(f is not None for f in found), again)
        with cairn.open(self.path(), framework="torch") as c:
            return c.load()

    def test_other_contents_in_the_same_form(self):
        def made(seed):
            return {"w": {"a": noise((5, 7), seed=seed), "b": noise((3,), "int64", seed=seed)},
                    "list": [noise((2,), "bfloat16", seed=seed), {"x": seed}],
                    "step": seed, "none": None, "large": noise((1 << 19,), seed=seed),
                    "byte": noise((9,), "float8_e5m2", seed=seed)}

        for seed in range(4):
            state = made(seed)
            got = self.saved(state, seed > 0)
            for name, want in (("w.a", state["w"]["a"]), ("w.b", state["w"]["b"]), ("list.0", state["list"][0]),
                               ("large", state["large"]), ("byte", state["byte"])):
                self.assert_same(want.cpu(), got[name])
            self.assertEqual((got["step"], got["list.1.x"], got["none"]), (seed, seed, None))

    def test_every_other_form(self):
        base = {"a": torch.zeros(4, 6, device=DEVICE), "b": torch.zeros(3, device=DEVICE), "step": 1,
                "d": {"x": torch.zeros(2, device=DEVICE)}}
        wide = torch.zeros(4, 12, device=DEVICE)
        one = torch.ones(4, 6, device=DEVICE)
        for what, other in {
            "a name": {**{k: v for k, v in base.items() if k != "b"}, "c": base["b"]},
            "a shape": {**base, "a": torch.ones(6, 4, device=DEVICE)},
            "a dtype": {**base, "a": one.half()}, "a stride": {**base, "a": torch.ones(6, 4, device=DEVICE).t()},
            "a part of a row": {**base, "a": wide[:, :6]}, "requires_grad": {**base, "a": one.clone().requires_grad_()},
            "a value": {**base, "b": 3}, "a tensor": {**base, "step": torch.ones(1, device=DEVICE)},
            "a dict": {**base, "step": {"y": 2}},
            "more": {**base, "e": 1}, "less": {"a": base["a"]}, "tied": {**base, "b": base["a"]},
            "a parameter": {**base, "a": torch.nn.Parameter(one)}, "the order": dict(reversed(base.items())),
            "a complex number": {**base, "a": torch.ones(4, 6, dtype=torch.complex64, device=DEVICE)},
            "a list": {**base, "d": [torch.ones(2, device=DEVICE)]}, "below": {**base, "d": {"x": 1}},
        }.items():
            with self.subTest(what):
                cairn.torch.close()
                self.saved(base, False)
                self.saved(base, True)
                got = self.saved(other, False)
                for name, t in other.items():
                    if isinstance(t, torch.Tensor):
                        self.assert_same(t.detach().cpu(), got[name])
                self.saved(base, True)

    def test_the_same_tensors_in_another_form(self):
        def half(t):
            t.data = t.data.half()

        def other_bits(t):
            t.data = t.data.view(torch.int32)

        def other_shape(t):
            t.data = t.data.view(6, 4)

        def other_memory(t):
            t.set_(torch.full((4, 6), 5.0, device=DEVICE))

        changes = {"resized": (lambda t: t.resize_(2, 6), False), "turned": (lambda t: t.t_(), False),
                   "half": (half, False), "other bits": (other_bits, False), "other shape": (other_shape, False),
                   "a dimension more": (lambda t: t.unsqueeze_(0), False),
                   "requires_grad": (lambda t: t.requires_grad_(), False), "other memory": (other_memory, True),
                   "contents": (lambda t: t.fill_(3), True)}
        for fast in True, False:
            for what, (change, again) in changes.items():
                # Without the module, PyTorch lacks the call that compares all tensors at once.
                lacks = {} if fast else {"torch._C._dynamo": None}
                with self.subTest(what, fast=fast), mock.patch.dict(sys.modules, lacks):
                    cairn.torch.close()
                    state = {"a": noise((4, 6)), "b": noise((3,)), "d": {"x": noise((2,), seed=1)}}
                    self.saved(state, False)
                    self.saved(state, True)
                    change(state["a"])
                    got = self.saved(state, again)
                    self.assert_same(state["a"].detach().cpu(), got["a"])
                    self.assert_same(state["d"]["x"].cpu(), got["d.x"])

    def test_nothing_is_kept(self):
        state = {"a": noise((4, 6)), "b": noise((3,))}
        seen = list(map(weakref.ref, state.values()))
        self.saved(state, False)
        self.saved(state, True)
        state.clear()
        gc.collect()
        self.assertEqual([ref() for ref in seen], [None, None])

    def test_modules_and_ties(self):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9, bias=False)
                self.head.weight = self.embed.weight

        net = Net().to(DEVICE)
        for n in range(3):
            with torch.no_grad():
                net.embed.weight.fill_(n)
            got = self.saved({"net": net, "n": n}, n > 0)
            self.assertEqual((got["net.head.weight"].unique().tolist(), got["net.embed.weight"].unique().tolist(),
                              got["n"]), ([n], [n], n))
        net.head.weight = torch.nn.Parameter(torch.full_like(net.embed.weight, 7))  # not tied any more
        got = self.saved({"net": net, "n": 4}, False)
        self.assertEqual((got["net.head.weight"].unique().tolist(), got["net.embed.weight"].unique().tolist()),
                         ([7], [2]))

    def test_memory_that_is_shared_later(self):
        self.saved({"a": torch.zeros(4, device=DEVICE), "b": torch.zeros(4, device=DEVICE)}, False)
        base = noise((6,))
        got = self.saved({"a": base[:4], "b": base[2:]}, True)
        self.assert_same({"a": base[:4].cpu(), "b": base[2:].cpu()}, got)

    def test_tensors_that_are_joined_as_bytes(self):
        w = noise((1, 4))
        for n in range(4):
            state = {"z": torch.full((2000,), float(n), device=DEVICE), "w": w, "w2": w.as_strided((1, 4), (1, 1)),
                     "bytes": torch.full((600,), n, dtype=torch.uint8, device=DEVICE),
                     "y": torch.full((100,), n, device=DEVICE),
                     "x": torch.full((200,), n, dtype=torch.int32, device=DEVICE)}
            cairn.torch.save(state, self.path())
            with cairn.open(self.path(), framework="torch") as c:
                self.assert_same({k: v.cpu() for k, v in sorted(state.items())}, c.load())
        cairn.torch.close()
        for n in range(3):
            state = {"bytes": torch.full((56,), n, dtype=torch.uint8, device=DEVICE),
                     "w": noise((64,), "float8_e5m2", seed=n), "u": noise((7,), "uint16", seed=n)}
            self.assert_same({k: v.cpu() for k, v in sorted(state.items())}, self.saved(state, n > 0))

    def test_another_module_of_the_same_form(self):
        def marked(net):
            return [item.get("may_differ", False)
                    for item in _remembered.describe(cairn.torch._job.job(), {"net": net}, False).items]

        buffer, parameter = torch.nn.Module(), torch.nn.Module()
        buffer.register_buffer("x", torch.zeros(3))
        parameter.x = torch.nn.Parameter(torch.zeros(3))
        for net, want in (buffer, True), (parameter, False), (buffer, True), (buffer, True):
            self.assertEqual(marked(net), [want])

    def test_state_dict_is_called_once(self):
        class Own:
            calls = 0

            def state_dict(self):
                self.calls += 1
                return {"n": torch.zeros(self.calls)}

            def load_state_dict(self, state):
                pass

        own = Own()
        for n in range(1, 7):
            cairn.torch.save({"own": own}, self.path())
            self.assertEqual(own.calls, n)

    def test_prepare(self):
        state = {"large": noise((8 << 20,), "uint8"), "small": noise((3,))}
        cairn.torch.prepare(state)
        j = cairn.torch._job.job()
        j.preparing.join()
        backed = sum(hi - lo for lo, hi in j.arena.backed)
        self.assertGreaterEqual(backed, 8 << 20)
        got = self.saved(state, True)
        self.assert_same(state["large"].cpu(), got["large"])
        self.assertEqual(sum(hi - lo for lo, hi in j.arena.backed), backed)
        with self.assertRaises(cairn.StateError):
            cairn.torch.prepare([])


if __name__ == "__main__":
    unittest.main()
