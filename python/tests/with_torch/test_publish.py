"""Versions of the weights of a model, published to a run."""

import concurrent.futures
import os
import unittest.mock

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn
import cairn.torch
from cairn._reply import Reply
from cairn.torch import _publish
from cairn.torch._handle import Handle, settle
from device import Case, join, spawn


def model_of(seed=0, size=512):
    torch.manual_seed(seed)
    up, down = torch.nn.Linear(size, 2 * size), torch.nn.Linear(2 * size, size)
    return torch.nn.Sequential(up, torch.nn.BatchNorm1d(2 * size), down).to(torch.bfloat16)


def train(model, seed, share=0.01):
    """Changes a share of the elements of each weight by the least step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            bits = p.view(torch.int16).view(-1)
            bits[torch.randint(len(bits), (int(share * len(bits)),), generator=generator)] ^= 1


def loaded(run, version, like):
    """Returns the tensors of a version."""
    state = {name: torch.zeros_like(t) for name, t in like.items()}
    cairn.torch.load(state, cairn.Run(run).path_of(version))
    return state


class Publishing(Case):
    def assert_version(self, run, version, want):
        got = loaded(run, version, want)
        for name, t in want.items():
            self.assertTrue(torch.equal(got[name], t), name)

    def test_versions_have_what_has_changed(self):
        run, model, versions = self.path("weights"), model_of(), {}
        for v in range(1, 21):
            train(model, v)
            versions[v] = {name: t.clone() for name, t in model.state_dict().items()}
            handle = cairn.torch.publish(model, run, v, metrics={"loss": v}, keep="last 30")
            train(model, 1000 + v)  # the version is copied aside
            self.assertEqual(handle.result().step, v)
            train(model, 1000 + v)  # back again
        cairn.torch.close()
        found = cairn.Run(run).checkpoints()
        self.assertEqual([c.step for c in found], list(range(1, 21)))
        self.assertEqual(found[3].metrics, {"loss": 4.0})
        full = found[0].bytes
        small = [c.bytes for c in found if c.bytes < full / 10]
        self.assertGreaterEqual(len(small), 14, [c.bytes for c in found])  # two of nine versions are whole
        for v in 1, 2, 15, 16, 17, 18, 20:
            self.assert_version(run, v, versions[v])

    def test_old_versions_go(self):
        run, model = self.path("weights"), model_of(size=64)
        for v in range(1, 30):
            train(model, v)
            cairn.torch.publish(model, run, v, keep="last 2").result()
        cairn.torch.close()
        steps = [c.step for c in cairn.Run(run).checkpoints()]
        self.assertEqual(steps[-2:], [28, 29])
        self.assertLess(len(steps), 20)
        self.assert_version(run, 29, model.state_dict())

    def test_versions_ascend(self):
        run = cairn.Run(self.path("weights"), keep="last 3")
        weights = {"w": torch.zeros(1000)}
        for v in 3, 5:
            cairn.torch.publish(weights, run, v).result()
        for v in 5, 4, 1:
            with self.assertRaisesRegex(cairn.ExistsError, "version 5: publish version 6 or a later one"):
                cairn.torch.publish(weights, run, v)
        cairn.torch._job.job().published.clear()  # as a process that resumes
        with self.assertRaises(cairn.ExistsError):
            cairn.torch.publish(weights, run.path, 5)
        self.assertEqual(cairn.torch.publish(weights, run, 6).result().step, 6)

    def test_what_is_refused(self):
        weights = {"w": torch.zeros(10)}
        for run, options in ((cairn.Run(self.path("a"), remote=self.path("b")), {}),
                             (cairn.Run(self.path("a"), alone=True), {}),
                             (cairn.Run(self.path("a")), {"keep": "last 2"}), (self.path("a"), {"keep": "lost 2"})):
            with self.subTest(run=run), self.assertRaises(cairn.OptionsError):
                cairn.torch.publish(weights, run, 1, **options)
        with self.assertRaisesRegex(cairn.OptionsError, "the version is -1"):
            cairn.torch.publish(weights, self.path("a"), -1)
        with self.assertRaises(cairn.StateError):
            cairn.torch.publish(torch.zeros(3), self.path("a"), 1)
        with self.assertRaises(cairn.OptionsError):
            cairn.Run(self.path("a"), alone=True, remember=True)

    def test_a_version_that_fails_can_be_published_again(self):
        run, model = self.path("weights"), model_of(size=64)
        cairn.torch.publish(model, run, 1).result()
        train(model, 1)
        blocker = os.path.join(run, "step-000000002")
        with open(blocker, "w"):  # a file in the place of the folder
            pass
        with self.assertRaises(cairn.CairnError):
            cairn.torch.publish(model, run, 2).result()
        os.unlink(blocker)
        train(model, 2)
        cairn.torch.publish(model, run, 2).result()
        train(model, 3)
        cairn.torch.publish(model, run, 3).result()
        cairn.torch.close()
        self.assert_version(run, 3, model.state_dict())
        sizes = [c.bytes for c in cairn.Run(run).checkpoints()]
        self.assertLess(sizes[2], sizes[0] / 4)

    def test_versions_that_fail_can_be_published_again(self):
        """As many as there are, if no newer one is complete."""
        run, model = self.path("weights"), model_of(size=64)
        cairn.torch.publish(model, run, 1).result()
        blockers = [os.path.join(run, f"step-{v:09}") for v in (2, 3, 4)]
        for v, blocker in enumerate(blockers, 2):
            with open(blocker, "w"):  # a file in the place of the folder
                pass
            train(model, v)
            with self.assertRaises(cairn.CairnError):
                cairn.torch.publish(model, run, v).result()
        for blocker in blockers:
            os.unlink(blocker)
        with self.assertRaisesRegex(cairn.ExistsError, "has version 1: publish version 2 "):
            cairn.torch.publish(model, run, 1)
        for v in 2, 4:
            train(model, v)
            cairn.torch.publish(model, run, v).result()
            self.assert_version(run, v, model.state_dict())
        with self.assertRaisesRegex(cairn.ExistsError, "has version 4: publish version 5 "):
            cairn.torch.publish(model, run, 3)

    def test_another_process_publishes_too(self):
        run, weights = self.path("weights"), {"w": torch.zeros(1000)}
        cairn.torch.publish(weights, run, 1).result()
        for v in 2, 7:
            cairn.torch.save(weights, cairn.Run(run), step=v)  # as another process
        with self.assertRaisesRegex(cairn.ExistsError, "has version 2, which another process has published: publish "
                                                       "version 3 or a later one"):
            cairn.torch.publish(weights, run, 2).result()
        with self.assertRaisesRegex(cairn.ExistsError, "has version 7: publish version 8 "):  # it has looked
            cairn.torch.publish(weights, run, 3)
        self.assertEqual(cairn.torch.publish(weights, run, 8).result().step, 8)

    def test_two_versions_are_under_way(self):
        """publish waits for the older one of two. Its error stays in its handle."""
        handles, waited = [], []

        def begin(request, make, **options):
            make(cairn.torch._job.job())
            handles.append(Handle(request.path.path_of(request.step), Reply(), None))
            return handles[-1]

        def over(pending):
            (handle,) = pending
            waited.append(handles.index(handle))
            settle(handle, error=cairn.CairnError("on purpose"))

        with unittest.mock.patch.object(_publish, "begin", begin), \
                unittest.mock.patch.object(concurrent.futures, "wait", over):
            for version in range(1, 6):
                cairn.torch.publish({"w": torch.zeros(1)}, self.path("weights"), version)
            self.assertEqual(waited, [0, 1, 2])
            cairn.torch.publish({"w": torch.zeros(1)}, self.path("others"), 1)  # another run does not wait
            settle(handles[4], error=cairn.CairnError("on purpose"))  # of two, the newer one is over
            cairn.torch.publish({"w": torch.zeros(1)}, self.path("weights"), 6)
            self.assertEqual(waited, [0, 1, 2])
            with self.assertRaisesRegex(cairn.ExistsError, "has version 6, which is under way: publish version 7 "):
                cairn.torch.publish({"w": torch.zeros(1)}, self.path("weights"), 6)
        with self.assertRaisesRegex(cairn.CairnError, "on purpose"):
            handles[0].result()

    def test_a_process_that_resumes_goes_on_with_the_chain(self):
        run, model = self.path("weights"), model_of()
        for v in 1, 2:
            train(model, v)
            cairn.torch.publish(model, run, v).result()
        cairn.torch.close()  # the next saver process has no files in memory
        train(model, 3)
        cairn.torch.publish(model, run, 3).result()
        cairn.torch.close()
        first, _, last = (c.bytes for c in cairn.Run(run).checkpoints())
        self.assertLess(last, first / 10)
        self.assert_version(run, 3, model.state_dict())

    def test_checkpoints_and_versions_of_one_trainer(self):
        model, versions, run = model_of(), self.path("weights"), cairn.Run(self.path("run"))
        for step in range(1, 5):
            train(model, step)
            cairn.torch.publish(model, versions, 10 * step)
            cairn.torch.async_save({"model": model, "step": step}, run, step=step)
        cairn.torch.close()
        for found in cairn.Run(versions).checkpoints(), run.checkpoints():
            sizes = [c.bytes for c in found]
            self.assertLess(max(sizes[1:]), sizes[0] / 10)
        self.assert_version(versions, 40, model.state_dict())

    def test_ranks(self):
        spawn(2, publish_sharded, self.folder)
        run = self.path("weights")
        found = cairn.Run(run).checkpoints()
        self.assertEqual([c.step for c in found], [1, 2, 3])
        self.assertLess(found[2].bytes, found[0].bytes / 10)
        model = model_of()
        for v in 1, 2, 3:
            train(model, v)
            self.assert_version(run, v, model.state_dict())


def publish_sharded(rank, folder):
    """Publishes versions of a model with parameters that are sharded over two ranks."""
    join("gloo", folder, rank, 2)
    whole = model_of()
    model = model_of()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    for v in 1, 2, 3:
        train(whole, v)
        with torch.no_grad():
            for p, w in zip(model.parameters(), whole.parameters()):
                rows = -(-len(w) // 2)
                local = p.to_local()
                local.copy_(w[rank * rows:rank * rows + len(local)])
        cairn.torch.publish(model, os.path.join(folder, "weights"), v).result()
    try:
        cairn.torch.publish(model, os.path.join(folder, "weights"), 2)
    except cairn.ExistsError:
        pass
    else:
        raise AssertionError("a version was published twice")
    cairn.torch.close()
