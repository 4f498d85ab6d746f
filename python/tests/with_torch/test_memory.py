"""Checkpoints in the memory of hosts. Each rank is a host of its own here: CAIRN_MEMORY names its folder."""

import gc
import os
import shutil
import time
import weakref

import torch

import cairn
import cairn.torch
from cairn.torch import _job
from device import Case, join, noise, spawn


def state_of(step):
    return {"w": noise((64, 33), "int32", seed=step), "none": noise((3, 0)), "step": step}


def use(folder, host):
    """Makes this process one of a host. The saver process inherits the variable."""
    os.environ["CAIRN_MEMORY"] = os.path.join(folder, f"host-{host}")


def parts(rank, ranks, step):
    """The state of a rank: rows of w as a DTensor, and the rest on all ranks."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (ranks,))
    state = state_of(step)
    return {**state, "w": distribute_tensor(state["w"], mesh, [Shard(0)])}


def save_some(rank, folder, meet, ranks, steps, copies=None):
    use(folder, rank)
    join("gloo", meet, rank, ranks)
    agree, kinds = _job.agree, []

    def counted(kind, *args, **more):
        kinds.append(kind)
        return agree(kind, *args, **more)

    _job.agree = counted
    for step in steps:
        kinds.clear()
        handle = cairn.torch.async_save(parts(rank, ranks, step), "memory:llama", step=step, copies=copies,
                                        copy_rate=None if copies is None else 10 << 20)
        first = (["meet"] if ranks > 1 else []) + ["memory"]
        assert kinds == ["ready"] + (first if step == steps[0] else []), kinds  # a later save takes no other steps
        assert handle.result().step == step
        copied = handle.copied.result()
        assert copied.alone == (ranks == 1) and copied.files == ranks * min(ranks - 1, copies or 1), copied
        assert handle.uploaded.result() is None
        assert handle.path == f"memory://llama/step-{step:09}", handle.path


def replicas(rank, ranks, groups, step):
    """The state of a rank of data-parallel training: the ranks of a group hold the shards of the weights together, and
    so do those of each other group. The counters of the ranks differ."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (groups, ranks // groups))
    model = torch.nn.Linear(8, 8)
    with torch.no_grad():
        model.weight.fill_(step)
        model.bias.fill_(-step)
    model.register_buffer("counter", torch.tensor(rank))
    for i in range(12):
        whole = noise((1 << 12, 8), "int32", seed=100 * step + i).float()  # NaN would be equal to nothing
        model.register_parameter(f"w{i}", torch.nn.Parameter(distribute_tensor(whole, mesh, [Replicate(), Shard(0)])))
    return {"model": model, "step": step}


def save_replicas(rank, folder, meet, ranks, groups, steps):
    use(folder, rank)
    join("gloo", meet, rank, ranks)
    for step in steps:
        handle = cairn.torch.async_save(replicas(rank, ranks, groups, step), "memory:ddp", step=step)
        handle.result()
        copied = handle.copied.result()
        # Only headers, values and the counter travel. Each rank writes as much as each other one.
        assert copied.bytes > 1 << 20, copied
        assert copied.rank_bytes > copied.bytes // ranks // 2, copied
        assert 0 < copied.rank_bytes - copied.rank_held_bytes < 20_000, copied


def save_staged(rank, folder, meet, ranks):
    """Saves a state that a Stager has staged to memory, and then to a folder, while its copies are being made."""
    use(folder, rank)
    join("gloo", meet, rank, ranks)
    state = {f"w{i}": noise((1 << 19,), "int32", seed=i) for i in range(4)}
    state[f"own{rank}"] = noise((1 << 18,), "int32", seed=rank)  # all others but one hold the rest
    staged = cairn.torch.Stager().stage(state)
    first = cairn.torch.async_save(staged, "memory:staged", step=1, copy_rate=1 << 20)
    first.result()
    second = cairn.torch.async_save(staged, os.path.join(folder, "second"), step=1)
    second.result()
    first.copied.result()
    got = {k: torch.zeros_like(v) for k, v in state.items()}
    for path in (cairn.Run("memory:staged"), os.path.join(folder, "second")):
        cairn.torch.load(got, path)
        assert all(torch.equal(got[k], v) for k, v in state.items()), path


def save_and_forget(rank, folder, meet, ranks):
    """The tensors of a state are given up when it is saved, before its copies are complete."""
    use(folder, rank)
    join("gloo", meet, rank, ranks)
    state = {"w": noise((1 << 20,), "int32"), f"own{rank}": noise((1 << 18,), "int32", seed=rank)}
    held = weakref.ref(state["w"])
    handle = cairn.torch.async_save(state, "memory:forget", step=1, copy_rate=200 << 10)  # 5 seconds
    del state
    handle.result()
    while held() is not None and not handle.copied.done():
        gc.collect()
        time.sleep(0.05)
    assert held() is None and not handle.copied.done()
    handle.copied.result()


def load_replicas(rank, folder, meet, hosts, groups, step):
    use(folder, hosts[rank])
    join("gloo", meet, rank, len(hosts))
    got, want = replicas(rank, len(hosts), groups, 0), replicas(rank, len(hosts), groups, step)
    report = cairn.torch.load(got, cairn.Run("memory:ddp"))
    assert report.step == step, report
    for i in range(12):
        assert torch.equal(getattr(got["model"], f"w{i}").to_local(), getattr(want["model"], f"w{i}").to_local()), i
    assert torch.equal(got["model"].weight, want["model"].weight)
    assert got["model"].counter == 0  # of rank 0


def save_too_much(rank, folder, meet, ranks):
    use(folder, rank)
    os.environ["CAIRN_MEMORY_BYTES"] = "1000"
    join("gloo", meet, rank, ranks)
    handle = cairn.torch.async_save(parts(rank, ranks, 1), "memory:llama", step=1)
    for outcome in handle.result, handle.copied.result:
        try:
            outcome()
        except cairn.RoomError as e:
            assert "CAIRN_MEMORY_BYTES is 1000 bytes" in str(e), e
        else:
            raise AssertionError("a save above the ceiling succeeded")


def load_newest(rank, folder, meet, hosts, step, forget):
    use(folder, hosts[rank])
    join("gloo", meet, rank, len(hosts))
    got, want = parts(rank, len(hosts), 0), parts(rank, len(hosts), step)
    report = cairn.torch.load(got, cairn.Run("memory:llama"))
    assert report.step == step, report
    assert torch.equal(got["w"].to_local(), want["w"].to_local())
    assert got["step"] == step
    if forget:
        cairn.torch.close(forget=True)


def load_nothing(rank, folder, meet, hosts):
    use(folder, hosts[rank])
    join("gloo", meet, rank, len(hosts))
    try:
        cairn.torch.load(parts(rank, len(hosts), 0), cairn.Run("memory:llama"))
    except cairn.NotFoundError:
        return
    raise AssertionError("a run that no host has was loaded")


def train(rank, folder, meet, ranks, first, last):
    """Trains from the newest checkpoint on: every 10 steps go to the folder, every 2 to memory."""
    use(folder, rank)
    os.environ["CAIRN_RUN"] = "job 7"
    join("gloo", meet, rank, ranks)
    run = cairn.Run(os.path.join(folder, "run"), save="every 10 steps", memory="every 2 steps",
                    keep_if=lambda: rank != 0 or step != 8)
    state = parts(rank, ranks, 0)
    if first:
        report = cairn.torch.load(state, run)
        assert report.step == first == state["step"], report
    for step in range(first + 1, last + 1):
        handle = run.save_if_due(parts(rank, ranks, step), step, format_options={"file_bytes": 1 << 20})
        assert (handle is None) == (step % 2 == 1 or step == 8), step  # rank 0 refuses step 8
        if handle is not None:
            handle.copied.result()
            assert handle.path.startswith("memory:") == (step % 10 != 0), handle.path
    assert run.latest().endswith(f"/step-{last:09}"), run.latest()


class Memory(Case):
    def setUp(self):
        super().setUp()
        self.folder = self.path("memory")
        os.mkdir(self.folder)
        self.meetings = 0

    def ranks(self, count, call, *args):
        self.meetings += 1
        meet = self.path(f"meet-{self.meetings}")
        os.mkdir(meet)
        spawn(count, call, self.folder, meet, *args)

    def files(self):
        return sorted(os.path.relpath(os.path.join(above, name), self.folder)
                      for above, _, names in os.walk(self.folder) for name in names)

    def test_one_host(self):
        self.ranks(1, save_some, 1, [1, 2])
        self.assertEqual({name.split("/")[2] for name in self.files() if name.count("/") == 3}, {"step-000000002"})
        old = os.environ.get("CAIRN_MEMORY")
        use(self.folder, 0)
        try:
            run = cairn.Run("memory:llama")
            self.assertEqual([c.step for c in run.checkpoints()], [2])
            self.assertEqual(run.latest(), "memory://llama/step-000000002")
            self.assertEqual(cairn.latest("memory:llama"), run.latest())
            with cairn.open(run.latest(), framework="torch") as c:
                self.assertTrue(torch.equal(c["w"][:], state_of(2)["w"]))
        finally:
            if old is None:
                del os.environ["CAIRN_MEMORY"]
            else:
                os.environ["CAIRN_MEMORY"] = old

    def test_a_host_is_lost_and_an_empty_one_joins(self):
        self.ranks(3, save_some, 3, [1, 2])
        shutil.rmtree(os.path.join(self.folder, "host-1"))
        self.ranks(2, load_nothing, [4, 5])  # another job, on other hosts
        self.ranks(3, load_newest, [9, 2, 0], 2, True)
        self.assertEqual([name for name in self.files() if name[:6] in ("host-0", "host-2", "host-9")],
                         ["host-0/host", "host-2/host", "host-9/host"])

    def test_data_parallel_ranks_send_nothing(self):
        for ranks, groups in ((2, 2), (4, 2)):
            with self.subTest(ranks=ranks, groups=groups):
                self.ranks(ranks, save_replicas, ranks, groups, [1, 2, 3])
                shutil.rmtree(os.path.join(self.folder, f"host-{ranks - 1}"))
                hosts = [*range(ranks - 1)]
                self.ranks(len(hosts), load_replicas, hosts, 1, 3)
                shutil.rmtree(self.folder)
                os.mkdir(self.folder)

    def test_a_staged_state_is_saved_again_before_its_copies_are_complete(self):
        self.ranks(2, save_staged, 2)

    def test_tensors_are_given_up_before_the_copies_are_complete(self):
        self.ranks(2, save_and_forget, 2)

    def test_two_copies(self):
        self.ranks(3, save_some, 3, [1], 2)
        for host in 0, 2:
            shutil.rmtree(os.path.join(self.folder, f"host-{host}"))
        self.ranks(2, load_newest, [1, 7], 1, True)

    def test_a_save_above_the_ceiling(self):
        self.ranks(2, save_too_much, 2)
        self.assertEqual([name for name in self.files() if "step-" in name], [])

    def test_a_run_with_saves_to_memory_between_others(self):
        self.ranks(2, train, 2, 0, 14)
        self.ranks(2, train, 2, 14, 18)
        for host in 0, 1:
            shutil.rmtree(os.path.join(self.folder, f"host-{host}"))
        self.ranks(1, train, 1, 10, 12)

    def test_a_run_without_an_id_of_the_job(self):
        with self.assertRaisesRegex(cairn.OptionsError, "set CAIRN_RUN"):
            cairn.Run(self.path("run"), memory="every 2 steps")

    def test_arguments(self):
        for path, step, text in (("memory:llama", None, "needs one"), ("memory:.x", 1, "the name of a run has")):
            with self.subTest(path=path), self.assertRaisesRegex(cairn.CairnError, text):
                cairn.torch.save({"x": torch.ones(1)}, path, step=step)
