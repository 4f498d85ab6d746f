"""States that belong to one rank: of data loaders and random number generators, loaded into other numbers of ranks."""

import random
import unittest
import warnings

import numpy
import torch

import cairn
import cairn.torch
from device import CUDA, DEVICE, Case, join, noise, spawn


def draw():
    """Returns numbers of all generators."""
    return (random.random(), numpy.random.rand(), torch.rand(1).item(),
            torch.rand(1, device=DEVICE).item(), random.gauss(0, 1), numpy.random.randn())


class Loader:
    """A data loader, as far as its state goes."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def replicas(rank, folder):
    """Saves on a rank with the data of all ranks, and then on one with other data."""
    join("gloo", folder, rank, 2)
    cairn.torch.save({"loader": cairn.torch.PerRank(Loader(seen=3), rank=0, ranks=1)}, f"{folder}/same")
    got = cairn.torch.PerRank(Loader(), rank=0, ranks=1)
    cairn.torch.load({"loader": got}, f"{folder}/same")
    assert (got.loaded, got.of.state) == (True, {"seen": 3}), got.of.state
    try:
        cairn.torch.save({"loader": cairn.torch.PerRank(Loader(seen=rank), rank=0, ranks=1)}, f"{folder}/other")
    except cairn.StateError as e:
        assert "loader.0" in str(e), e
    else:
        raise AssertionError("states that differ were saved under one name")


class Generators(Case):
    def save(self, ranks):
        """Saves the states of some ranks, and returns the next draws of each."""
        want, state = [], {"random": {}, "w": noise((3,))}
        for rank in range(ranks):
            random.seed(rank)
            numpy.random.seed(rank)
            torch.manual_seed(rank)
            draw()
            state["random"].update(cairn.torch.RandomState(rank=rank, ranks=ranks).state_dict())
            want.append(draw())
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no value is a pickle
            cairn.torch.save(state, self.path())
        return want

    def load(self, rank, ranks, **options):
        """Returns the draws of a rank after a load, whether it has loaded its state, and the log."""
        state = {"random": cairn.torch.RandomState(rank=rank, ranks=ranks)}
        with self.assertLogs("cairn", "INFO") as said:
            cairn.torch._perrank._log.info("begin")
            cairn.torch.load(state, self.path(), **options)
        return draw(), state["random"].loaded, "\n".join(said.output[1:])

    def test_as_many_ranks(self):
        want = self.save(3)
        for rank in range(3):
            self.assertEqual(self.load(rank, 3), (want[rank], True, ""))

    def test_fewer_ranks(self):
        want = self.save(3)
        for rank in range(2):
            got, loaded, said = self.load(rank, 2)
            self.assertEqual((got, loaded), (want[rank], True))
            self.assertIn("saved by 3 ranks, and 2 ranks load them: ranks 0 to 1 get the states of the same number, "
                          "and the others are not used", said)

    def test_more_ranks(self):
        want = self.save(2)
        drawn = []
        for rank in range(5):
            got, loaded, said = self.load(rank, 5)
            self.assertEqual(loaded, rank < 2)
            self.assertIn("saved by 2 ranks, and 5 ranks load them: ranks 0 to 1 get the states of the same number, "
                          "and ranks 2 to 4 new ones, with seeds that are made of the state of rank 0", said)
            self.assertEqual(self.load(rank, 5)[0], got)  # the same whenever it is loaded
            drawn.append(got)
        self.assertEqual(drawn[:2], want)
        for kind in zip(*drawn):
            self.assertEqual(len(set(kind)), 5)

    def test_names_that_differ(self):
        want = self.save(2)
        for rename in ({"other.": "random."}, lambda name: name.replace("other", "random")):
            state = {"other": cairn.torch.RandomState(rank=1, ranks=2)}
            cairn.torch.load(state, self.path(), rename=rename)
            self.assertEqual(draw(), want[1])

    def test_a_checkpoint_without_them(self):
        cairn.torch.save({"w": noise((3,))}, self.path())
        with self.assertRaisesRegex(cairn.MissingError, "random.ranks"):
            cairn.torch.load({"random": cairn.torch.RandomState()}, self.path())
        torch.manual_seed(5)
        before = torch.get_rng_state()
        with self.assertLogs("cairn", "WARNING") as said:
            report = cairn.torch.load({"random": cairn.torch.RandomState()}, self.path(), strict=False)
        self.assertEqual(report.missing, ("random.ranks",))
        self.assertRegex(said.output[0], "saved by no rank.*stay as they are")
        self.assert_same(before, torch.get_rng_state())

    def test_the_current_device(self):
        torch.rand(1, device=DEVICE)
        self.assertEqual("cuda" in cairn.torch.RandomState().of.state_dict(), CUDA)


class Loaders(Case):
    def test_states_keep_their_form(self):
        state = {"seen": 3, "none": None, "empty": {}, "keys": {1: [2, (3,)]}, "t": torch.arange(3), "deep": {"x": {}}}
        cairn.torch.save({"loader": cairn.torch.PerRank(Loader(**state)), "w": noise((3,))}, self.path())
        got = cairn.torch.PerRank(Loader())
        cairn.torch.load({"loader": got}, self.path())
        self.assertTrue(got.loaded)
        self.assertEqual(repr(got.of.state), repr(state))
        with cairn.open(self.path()) as c:
            self.assertEqual(sorted(n for n in c if n.startswith("loader")), ["loader.0", "loader.ranks"])

    def test_ranks_with_the_same_data(self):
        """Two ranks are one rank of data parallelism: their states are equal, and saved once."""
        spawn(2, replicas, self.folder)
        with cairn.open(self.path("same")) as c:
            self.assertEqual((c["loader.ranks"], c["loader.0"]), (1, ({"seen": 3},)))

    def test_another_number_of_ranks(self):
        cairn.torch.save({"loader": cairn.torch.PerRank(Loader(seen=3))}, self.path())
        for rank in range(2):
            got = cairn.torch.PerRank(Loader(seen=0), rank=rank, ranks=2)
            with self.assertLogs("cairn", "WARNING") as said:
                cairn.torch.load({"loader": got}, self.path())
            self.assertEqual((got.loaded, got.of.state), (False, {"seen": 0}))
            self.assertRegex(said.output[0], "Loader was saved by 1 rank, and 2 ranks load it: .* not loaded")

    def test_arguments(self):
        for rank, ranks in ((0, None), (None, 1), (2, 2), (-1, 2)):
            with self.assertRaises(ValueError):
                cairn.torch.PerRank(Loader(), rank=rank, ranks=ranks)


if __name__ == "__main__":
    unittest.main()
