"""Megatron-core saves and loads with cairn.megatron. Its functions and queues are the real ones."""

import importlib
import inspect
import os
import pathlib
import signal
import sys
import time
import types

import with_megatron as job  # isort: skip -- first, because of its stand-ins for what needs a GPU

import numpy
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.safe_globals import register_safe_globals

import cairn
import cairn.megatron

TRACKER = "latest_checkpointed_iteration.txt"
FORM = {"distrib_optim_sharding_type": "fully_reshardable"}
# The other queue is a package of its own, which needs a GPU. Older releases have no such argument.
MCORE = {"async_strategy": "mcore"} if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters else {}
register_safe_globals()  # as Megatron-LM does


def begun(sizes, salt="", steps=2):
    """Begins a training, and returns its model and optimizer."""
    chunks, optimizer = job.build(**sizes)
    job.train(chunks, optimizer, salt, steps)
    return chunks, optimizer


def state_of(chunks, optimizer, metadata, loading, iteration):
    """Returns what Megatron-LM saves, with an object of each rank and with objects that are not sharded."""
    state = job.whole(chunks, optimizer, metadata, loading)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    random = {"numpy": numpy.random.get_state(), "torch": torch.get_rng_state(), "of": rank}
    state["rng_state"] = ShardedObject("rng_state", [random], (ranks,), (rank,))
    if not loading:
        args = types.SimpleNamespace(ranks=ranks, rate=0.1, dtype=torch.bfloat16, folder=pathlib.Path("x"))
        state.update(args=args, iteration=iteration, checkpoint_version=3.0)
    return state


def save(run, sizes, steps=2, how="sync", form=None, options=None):
    """Saves a job after some steps. With how="kill", the ranks die when the state is copied aside, and with "complete"
    when the checkpoint is complete.
    """
    if not job.parallel_state.model_parallel_is_initialized():
        job.start(**sizes)
    chunks, optimizer = begun(sizes, steps=steps)
    metadata = {**job.METADATA, **(form or FORM)}
    folder = os.path.join(run, f"iter_{steps:07}")
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    strategy = FullyParallelSaveStrategyWrapper(cairn.megatron.SaveStrategy(**(options or {})), job.data_parallel())
    if how == "complete":
        cairn.megatron._complete = lambda handle, *_: [handle.result(), dist.barrier(), os.kill(os.getpid(),
                                                                                                signal.SIGKILL)]
    later = {} if how in ("sync", "complete") else {"async_sharded_save": True, **MCORE}
    request = dist_checkpointing.save(state_of(chunks, optimizer, metadata, False, steps), folder, strategy,
                                      content_metadata=metadata, **later)

    def track():
        if dist.get_rank() == 0:
            with open(os.path.join(run, TRACKER), "w") as f:
                f.write(str(steps))

    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sync":
        track()
        return
    request.add_finalize_fn(track)
    queue = AsyncCallsQueue(persistent=how == "persistent")
    queue.schedule_async_request(request)
    job.train(chunks, optimizer, "other", 1)  # the checkpoint does not change
    while not queue.maybe_finalize_async_calls():
        time.sleep(0.01)
    queue.close()


def saved_again(run, ranks, **more):
    """Saves, and saves the same iteration again. The ranks are killed when that is complete, and the files by which
    Megatron finds it are those of the first save.
    """
    found = killed(run, ranks, how="sync", ended=0, **more)
    torch.save({"iteration": "of the first save"}, os.path.join(run, "iter_0000002", "common.pt"))
    return found + killed(run, ranks, how="complete", **more)


def over_stock(run, sizes):
    """A save to a folder with a checkpoint of Megatron itself fails, and that checkpoint keeps its files."""
    job.start(**sizes)
    state = {"part": ShardedTensor.from_rank_offsets("w", torch.ones(2, 3), (0, dist.get_rank(), 2)), "iteration": 1}
    dist_checkpointing.save(dict(state), run, cairn.megatron.SaveStrategy.__mro__[1]("torch_dist", 1))
    had = sorted(os.listdir(run))
    dist.barrier()
    try:
        dist_checkpointing.save(dict(state), run, cairn.megatron.SaveStrategy())
        return ["no error"]
    except cairn.ExistsError:
        dist.barrier()
        return [] if sorted(os.listdir(run)) == had else [f"{had} became {sorted(os.listdir(run))}"]


def odd_states(run, sizes):
    """States without a part that is not sharded, with tensors and numbers as keys in it, and with a name twice; a rank
    that loads what is not there. Returns the problems of all ranks.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = []

    def part(**more):
        return ShardedTensor.from_rank_offsets("w", torch.full((2, 3), float(rank)), (0, rank, ranks), **more)

    def fails(error, call, *args):
        try:
            call(*args)
            found.append(f"no {error.__name__}")
        except error:
            pass

    for name, common in (("nothing", {}), ("tensors", {"t": torch.arange(3), 5: {"a": 1}})):
        folder = os.path.join(run, name, "iter_0000001")
        if rank == 0:
            os.makedirs(folder)
        dist.barrier()
        dist_checkpointing.save({**common, "part": part()}, folder, cairn.megatron.SaveStrategy())
        if rank == 0:
            os.unlink(os.path.join(folder, "common.pt"))
            pathlib.Path(run, name, TRACKER).write_bytes(b"\xff\xb2")
            cairn.megatron.finish(os.path.join(run, name))
        dist.barrier()
        state = {"part": part()}
        state["part"].data.fill_(-1)
        got = dist_checkpointing.load(state, folder, cairn.megatron.LoadStrategy(), strict="raise_all")
        if not torch.equal(got.pop("part"), part().data) or repr(got) not in (repr(common), repr(dict(
                reversed(common.items())))):
            found.append(f"{name}: {got}")
    again = os.path.join(run, "again")
    os.makedirs(again, exist_ok=True)
    dist.barrier()
    fails(cairn.StateError, dist_checkpointing.save, {"w": 5, "part": part()}, again, cairn.megatron.SaveStrategy())
    state = {"part": part()}
    if rank == 1:
        state["other"] = ShardedTensor.from_rank_offsets("other", torch.ones(2), allow_shape_mismatch=True)
    fails(cairn.MissingError, dist_checkpointing.load, state, folder, cairn.megatron.LoadStrategy())
    every = [None] * ranks
    dist.all_gather_object(every, found)
    return sum(every, [])


def files_of(run):
    return sorted(name for name in os.listdir(run) if name.startswith("iter_"))


def one_fails(run, sizes):
    """A save fails on one rank: before anything is staged, and after that. It is an error on all ranks, and the
    checkpoint before it stays the newest. Returns the problems of all ranks.
    """
    save(run, sizes)
    found = []
    rank = dist.get_rank()

    def killing(staging, own=cairn.torch._save.Staging.run):
        saver = cairn.torch._job.job().saver.process
        saver.send_signal(signal.SIGSTOP)  # otherwise the checkpoint may be complete before the signal that kills
        own(staging)
        saver.kill()

    for how in ("describe", "saver"):
        chunks, optimizer = begun(sizes, steps=3)
        state = state_of(chunks, optimizer, {**job.METADATA, **FORM}, False, 3)
        if how == "describe" and rank == 1:
            state["rng_state"].data = [lambda: 0]
        folder = os.path.join(run, "iter_0000003")
        os.makedirs(folder, exist_ok=True)
        queue = AsyncCallsQueue()
        begin = time.monotonic()
        if how == "saver" and rank == 1:
            cairn.torch._save.Staging.run = killing
        try:
            request = dist_checkpointing.save(state, folder, cairn.megatron.SaveStrategy(), async_sharded_save=True,
                                              validate_access_integrity=False, **MCORE)
            queue.schedule_async_request(request)
            while queue.get_num_unfinalized_calls():
                queue.maybe_finalize_async_calls()
                time.sleep(0.01)
            found.append(f"{how}: no error")
        except cairn.CairnError:
            pass
        if time.monotonic() - begin > 100:
            found.append(f"{how}: the error came after {time.monotonic() - begin:.0f} seconds")
        if os.path.exists(os.path.join(folder, "metadata.json")):
            found.append(f"{how}: the failed save looks like a checkpoint")
    if cairn.megatron.finish(run) != 2:
        found.append("the newest checkpoint is not the one before")
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    return sum(every, [])


def installed(run, sizes):
    """What Megatron saves and loads without a strategy is cairn's. A checkpoint of Megatron itself loads, too."""
    job.start(**sizes)
    want, found = job.live(*begun(sizes)), []
    metadata = {**job.METADATA, **FORM}
    for name in ("stock", "cairn"):
        if name == "cairn":
            sys.modules["absent"] = None  # as programs do, so that nothing imports it
            cairn.megatron.install()
        folder = os.path.join(run, name)
        if dist.get_rank() == 0:
            os.makedirs(folder, exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(state_of(*begun(sizes), metadata, False, 2), folder, content_metadata=metadata)
        if os.path.exists(os.path.join(folder, "cairn.json")) != (name == "cairn"):
            found.append(f"{name}: {os.listdir(folder)}")
    for name in ("stock", "cairn"):
        folder = os.path.join(run, name)
        chunks, optimizer = begun(sizes, "other")
        metadata = dist_checkpointing.load_content_metadata(folder)
        got = dist_checkpointing.load(state_of(chunks, optimizer, metadata, True, None), folder, strict="raise_all")
        job.give(chunks, optimizer, got)
        found += [f"{name}: {problem}" for problem in job.compared(want, job.live(chunks, optimizer))[:3]]
    tensors = dist_checkpointing.load_tensors_metadata(os.path.join(run, "cairn"))
    if {k: t.global_shape for k, t in tensors.items()} != {
            k: t.global_shape for k, t in dist_checkpointing.load_tensors_metadata(os.path.join(run, "stock")).items()}:
        found.append("other tensors")
    stock = cairn.megatron.SaveStrategy.__mro__[1]("torch_dist", 1)
    dist_checkpointing.save(state_of(*begun(sizes), metadata, False, 2), folder, FullyParallelSaveStrategyWrapper(
        stock, job.data_parallel()))
    try:
        dist_checkpointing.load(state_of(chunks, optimizer, metadata, True, None), folder)
        found.append("a folder with two checkpoints is loaded")
    except cairn.ExistsError:
        pass
    return found


def in_a_run(run, sizes):
    """Saves to a run with a policy and a remote place."""
    found = []
    kept = cairn.Run(run, keep="last 1", remote=f"{run}-remote", keep_remote="last 2")
    for steps in (1, 2, 3):
        save(run, sizes, steps, "async", options={"run": kept})
    want = (["iter_0000002", "iter_0000003"],) * 2  # a save leaves the checkpoint before it
    end = time.monotonic() + 100
    while dist.get_rank() == 0 and (got := (files_of(run), files_of(f"{run}-remote"))) != want:
        if time.monotonic() > end:
            found.append(f"the run and its remote place have {got}")
            break
        time.sleep(0.1)
    cairn.torch.close()
    return found


def back(run, sizes):
    """A training is to go back to an older iteration: finish leaves the tracker file as it is."""
    for steps in (1, 2):
        save(run, sizes, steps)
    with open(os.path.join(run, TRACKER), "w") as f:
        f.write("1")
    dist.barrier()
    got = cairn.megatron.finish(run)
    with open(os.path.join(run, TRACKER)) as f:
        return [] if (got, f.read()) == (1, "1") else [f"finish returned {got}"]


def other_versions():
    """A release that was not tested is refused."""
    version = cairn.megatron._core.__version__
    cairn.megatron._core.__version__ = "0.99.1"
    try:
        importlib.reload(cairn.megatron)
    except cairn.OptionsError as e:
        return [] if "0.19" in str(e) and "0.99.1" in str(e) else [str(e)]
    finally:
        cairn.megatron._core.__version__ = version
    return ["no error"]


def killed(run, ranks, how="kill", ended=-signal.SIGKILL, **more):
    """Has ranks save, which are killed, or end as they should."""
    store = os.path.abspath(f"{run}-{how}.store")
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            try:
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
                save(run, how=how, **more)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    found = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return [] if set(found) == {ended} else [f"the ranks ended with {found}"]


def load(run, sizes, steps=2, more=2, other_ranks=False):
    """Loads the newest checkpoint into a job with other states, takes more steps, and compares its states with those of
    a job that was not interrupted. Returns the problems of all ranks.
    """
    job.start(**sizes)
    want = job.live(*begun(sizes, steps=steps + more))
    chunks, optimizer = begun(sizes, "other", steps)
    if dist.get_rank() == 0:
        cairn.megatron.finish(run)
    dist.barrier()
    with open(os.path.join(run, TRACKER)) as f:
        folder = os.path.join(run, f"iter_{int(f.read()):07}")
    common = dist_checkpointing.load_common_state_dict(folder)
    metadata = dist_checkpointing.load_content_metadata(folder)
    state = state_of(chunks, optimizer, metadata, True, None)
    if other_ranks:
        del state["rng_state"]  # as Megatron-LM does
    got = dist_checkpointing.load(state, folder, cairn.megatron.LoadStrategy(),
                                  strict="assume_ok_unexpected" if other_ranks else "raise_all")
    job.give(chunks, optimizer, got)
    job.train_on(chunks, optimizer, steps, steps + more)
    found = job.compared(want, job.live(chunks, optimizer))[:5]
    if not other_ranks and got["rng_state"][0]["of"] != dist.get_rank():
        found.append("a rank has the random state of another")
    if common["iteration"] != steps or common["args"].rate != 0.1 or got["checkpoint_version"] != 3.0:
        found.append(f"the common state is {common}")
    return found
