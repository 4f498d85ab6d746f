"""Failures around cairn.torch: ranks and savers that die, Ctrl-C, workers, process groups, sizes."""

import contextlib
import datetime
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import cairn
import cairn.torch
import cairn.torch._staging
import cairn.torch._whole
import digest
import sharding
import states
from drop_in import Broken, blank, closed

LIMIT = 60  # seconds that anything here may wait
PATIENCE = 8  # the timeout of process groups with dying ranks


def sharded_state():
    """Makes a state that has the same content on any number of ranks, cut in every way."""
    n = dist.get_world_size()
    line = init_device_mesh("cpu", (n,), mesh_dim_names=("all",))
    grid = init_device_mesh("cpu", (2, n // 2) if n % 2 == 0 else (1, n), mesh_dim_names=("dp", "tp"))

    def cut(name, shape, mesh, *placements, dtype="float32"):
        return sharding.cut(states.tensor(name, shape, dtype), mesh, placements)

    return {
        "rows": cut("rows", (8, 6), line, Shard(0)),
        "uneven_rows": cut("uneven_rows", (11, 5), line, Shard(0), dtype="bfloat16"),
        "too_few_rows": cut("too_few_rows", (2, 4), line, Shard(0)),
        "uneven_columns": cut("uneven_columns", (3, 7, 2), line, Shard(1), dtype="int64"),
        "replicated": cut("replicated", (5, 3), line, Replicate()),
        "boxes": cut("boxes", (9, 10), grid, Shard(0), Shard(1)),
        "dp_only": cut("dp_only", (6, 7), grid, Shard(0), Replicate()),
        "tp_only": cut("tp_only", (7, 6), grid, Replicate(), Shard(1), dtype="float16"),
        "twice": cut("twice", (13, 2), grid, Shard(0), Shard(0)),
        "large": cut("large", (512, 300), line, Shard(0)),
        "plain": states.tensor("plain", (4, 4)),
        "scalar": states.tensor("scalar", ()),
        "step": 12,
        "nested": {"list": [cut("in_list", (5, 2), line, Shard(0)), "text"]},
    }


@contextlib.contextmanager
def group(folder):
    """A process group of one rank, for cases without one."""
    if dist.is_initialized():
        yield
        return
    os.makedirs(folder, exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(folder)}/.group-{os.getpid()}", rank=0,
                            world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@closed
def save(path):
    with group(path + "-group"):
        state = sharded_state()
        cairn.torch.save(state, path, step=3)
        return digest.of_state(state)


@closed
def load(paths):
    """Loads checkpoints of several numbers of ranks, one after the other."""
    with group(paths[0] + "-group"):
        out = {}
        for path in paths:
            state = blank(sharded_state())
            cairn.torch.load(state, path)
            out[os.path.basename(path)] = digest.of_state(state)
        return out


@closed
def all_of(path):
    """Loads a checkpoint of any format by cairn.torch.load."""
    with cairn.open(path) as c:
        state = dict.fromkeys(c)
        shapes = c.shapes()
        for n in list(state):
            if "dtype" in c.entry(n):
                if not isinstance(getattr(torch, c.entry(n)["dtype"], None), torch.dtype):
                    del state[n]  # this PyTorch does not have the dtype
                    continue
                state[n] = torch.zeros(shapes[n], dtype=getattr(torch, c.entry(n)["dtype"]))
    cairn.torch.load(state, path, allow_pickle=True)
    return digest.of_items(state)


@closed
def too_large(path):
    """Saves tensors that are not contiguous and larger than the shared memory."""
    os.environ["CAIRN_ARENA_BYTES"] = str(16 << 20)
    base = states.tensor("base", (2500, 2499))
    state = {"turned": base.t(), "part": base[1:], "wide": states.tensor("wide", (3, 1 << 21), "int16").t()}
    for name, t in state.items():
        assert name == "part" or not t.is_contiguous()
    cairn.torch.save(state, path)
    got = {"turned": torch.zeros(2500, 2499).t(), "part": torch.zeros(2499, 2499),
           "wide": torch.zeros(1 << 21, 3, dtype=torch.int16)}
    cairn.torch.load(got, path)
    return digest.differences(state, got)


@closed
def late_fetch(path):
    """The saver asks for parts of tensors that are staged, and changed by the caller, before the answer."""
    state = {"whole": torch.zeros(1 << 20, dtype=torch.uint8), "turned": torch.zeros(1000, 700, dtype=torch.int16).t()}
    cairn.torch.save(state, path)
    job = cairn.torch._job.job()
    job.saver.process.send_signal(signal.SIGSTOP)  # so that it releases no memory
    try:
        state["whole"].fill_(7)
        state["turned"][3, 5] = 9
        handle = cairn.torch.async_save(state, path)
        for t in state.values():
            t.zero_()
        send, said, got = job.saver.send, [], []
        job.saver.send = lambda kind, *_, **body: said.append((kind, body))  # it has not asked for this
        for item, offset in ((0, 5), (1, 2 * (3 * 1000 + 5))):
            handle._stage("fetch", {"fetch": 1, "item": item, "offset": offset, "length": 2, "at": job.arena.window})
            got.append(bytes(job.arena.view[job.arena.window:job.arena.window + 2]))
        job.saver.send = send
    finally:
        job.saver.process.send_signal(signal.SIGCONT)
    handle.result(LIMIT)
    found = [] if said == [("fetched", {"fetch": 1})] * 2 else [f"the answers were {said}"]
    return found + ([] if got == [b"\x07\x07", b"\x09\x00"] else [f"fetched {got}"])


@closed
def overtaken(path):
    """The state of a save is copied aside after the state of a later save, which has most of the memory."""
    cairn.torch.save({"x": torch.zeros(1)}, path)
    size = cairn.torch._job.job().arena.window * 11 // 20
    run, later = cairn.torch._staging.Staging.run, threading.Event()
    order = []

    def delayed(self):
        order.append(self)
        if len(order) == 1:
            later.wait(3)
        run(self)
        later.set()

    cairn.torch._staging.Staging.run = delayed
    try:
        handles = [cairn.torch.async_save({"x": torch.full((size,), n, dtype=torch.uint8)}, f"{path}-{n}",
                                          overlap=True) for n in (1, 2)]
    finally:
        cairn.torch._staging.Staging.run = run
    found = []
    for n, handle in enumerate(handles, 1):
        handle.result(LIMIT)
        with cairn.open(f"{path}-{n}", framework="torch") as c:
            if not bool((c["x"].torch() == n).all()):
                found.append(f"save {n} has other bytes")
    return found


@closed
def fails_early(path):
    """The memory of a save that fails while its state is copied aside is free after that, and not before."""
    state = {"x": states.tensor("x", (1000, 100))}
    cairn.torch.save(state, path)
    job = cairn.torch._job.job()
    arena, saver = job.arena, job.saver
    copy_units = cairn.torch._staging.copy_units
    begun = threading.Event()
    handles, free, found = [], [], []

    def late(*args):
        begun.wait(LIMIT)
        saver.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(cairn.ExistsError):
            handles[0].result(LIMIT)
        free.append(arena.largest())
        copy_units(*args)

    saver.process.send_signal(signal.SIGSTOP)  # so that the copy begins before it answers
    cairn.torch._staging.copy_units = late
    try:
        handles.append(cairn.torch.async_save(state, path, overwrite=False, overlap=True))
        begun.set()
        raises(found, "staged.result", cairn.ExistsError, lambda: handles[0].staged.result(LIMIT))
    finally:
        cairn.torch._staging.copy_units = copy_units
        saver.process.send_signal(signal.SIGCONT)
    free.append(arena.largest())
    if len(free) != 2 or free[0] > arena.window - 400_000 or free[1] != arena.window:
        found.append(f"free were {free} of {arena.window}")
    return found


@closed
def fails_late(path):
    """Ctrl-C when a part of a state is copied aside: the saver has its memory until it answers, and the next save has
    other memory."""
    state = {"x": states.tensor("x", (1000, 100))}
    cairn.torch.save(state, path)
    job = cairn.torch._job.job()
    saver, copy = job.saver, cairn.torch._staging.Staging.copy

    def interrupt(self, pending):
        copy(self, pending)
        raise KeyboardInterrupt

    saver.process.send_signal(signal.SIGSTOP)  # so that it answers late
    try:
        found = []
        cairn.torch._staging.Staging.copy = interrupt
        try:
            raises(found, "the first save", KeyboardInterrupt, lambda: cairn.torch.async_save(state, f"{path}-1"))
        finally:
            cairn.torch._staging.Staging.copy = copy
        handle = cairn.torch.async_save(state, f"{path}-2")
    finally:
        saver.process.send_signal(signal.SIGCONT)
    handle.result(LIMIT)
    if job.saver is not saver or not saver.alive():
        found.append("the saver process has ended")
    if job.arena.largest() != job.arena.window:
        found.append(f"{job.arena.largest()} of {job.arena.window} bytes are free")
    return found + [f"{path}-1 is there"] * os.path.exists(f"{path}-1/cairn.json")


ENDS = """
import sys, torch, cairn.torch
state = {str(n): torch.full((1 << 20,), float(n)) for n in range(20)}
cairn.torch.async_save(state, sys.argv[1], overlap=bool(sys.argv[2]))
sys.exit(3)
"""


@closed
def ends(path, rounds):
    """A save is completed although the interpreter ends at once, and before all is copied aside."""
    found = []
    os.makedirs(path)
    for n in range(rounds):
        place = f"{path}/step-{n}"
        done = subprocess.run([sys.executable, "-c", ENDS, place, "overlap" * (n % 2)], timeout=LIMIT,
                              stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        if (done.returncode, done.stderr) != (3, ""):
            found.append(f"{place}: ended with {done.returncode}: {done.stderr}")
        try:
            if (latest := cairn.latest(path, wait=True, timeout=LIMIT)) != os.path.abspath(place):
                found.append(f"{place} is not there; the latest is {latest}")
                continue
            with cairn.open(place, framework="torch") as c:
                if any(not bool((c[str(n)].torch() == n).all()) for n in range(20)):
                    found.append(f"{place} has other bytes")
        except cairn.CairnError as e:
            found.append(f"{place}: {e!r}")
    return found


# Process groups.


def refused(found, what, word, call):
    """Notes a call that does not raise an error with a word in it."""
    try:
        call()
        found.append(f"rank {dist.get_rank()}: {what}: no error")
    except BaseException as e:
        # PyTorch 2.6 cannot pass errors on with Python 3.13, and says so instead.
        if word not in str(e) and "cannot pickle code objects" not in str(e):
            found.append(f"rank {dist.get_rank()}: {what}: {e!r}")


def of_all(found):
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, found)
    return sum(said, [])


@closed
def subgroups(path):
    """Some of the ranks cannot save together; one alone can, and all of them after that. Some can load."""
    found = []
    rank = dist.get_rank()
    pair, single = dist.new_group([0, 1]), dist.new_group([0])
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {"process_group": single}
    state = {"x": states.tensor("x", (3, 4)), "step": 7}
    if rank < 2:
        refused(found, "a group of 2", "2 of the 3 ranks",
                lambda: dcp.save(dict(state), storage_writer=cairn.torch.Writer(path), process_group=pair))
    if "use_collectives" in inspect.signature(dcp.save).parameters:
        refused(found, "use_collectives=False", "use_collectives=False",
                lambda: dcp.save(dict(state), storage_writer=cairn.torch.Writer(path), use_collectives=False))
    if os.path.exists(path):
        found.append("something was saved")
    # A rank alone, twice, while the others are idle.
    if rank == 0:
        for _ in range(2):
            dcp.save(dict(state, rank=rank), storage_writer=cairn.torch.Writer(path + "-alone"), **alone)
        got = {"x": torch.zeros(3, 4), "step": None, "rank": None}
        dcp.load(got, storage_reader=cairn.torch.Reader(path + "-alone"), **alone)
        found += digest.differences(dict(state, rank=0), got)
        with cairn.open(path + "-alone") as c:
            if c.world_size != 1:
                found.append(f"alone: {c.world_size} ranks")
        refused(found, "an object alone", "cannot be pickled",
                lambda: dcp.save({"o": Broken()}, storage_writer=cairn.torch.Writer(path + "-alone"), **alone))
    dist.barrier()
    dcp.save(dict(state), storage_writer=cairn.torch.Writer(path), process_group=dist.new_group())
    if rank < 2:
        got = {"x": torch.zeros(3, 4), "step": None}
        dcp.load(got, storage_reader=cairn.torch.Reader(path), process_group=pair)
        found += digest.differences(state, got)
    return of_all(found)


# Errors.


@closed
def mismatches(path):
    """An error of one rank has the same class on all, and harms neither the checkpoint nor the next call."""
    found = []
    last = dist.get_rank() == dist.get_world_size() - 1
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def state():
        return {"x": sharding.cut(states.tensor("x", (9, 4)), mesh, (Shard(0),)), "y": states.tensor("y", (3,)), "n": 1}

    def fails(what, kind, word, call):
        try:
            call()
            found.append(f"rank {dist.get_rank()}: {what}: no error")
        except kind as e:
            if word not in str(e):
                found.append(f"rank {dist.get_rank()}: {what}: {e!r}")
        except BaseException as e:
            found.append(f"rank {dist.get_rank()}: {what}: {e!r}; want {kind.__name__}")

    cairn.torch.save(state(), path)
    bad = cairn.StateError
    fails("save: another shape", bad, "y",
          lambda: cairn.torch.save({**state(), "y": torch.zeros(4 if last else 3)}, path))
    fails("save: another dtype", bad, "y",
          lambda: cairn.torch.save({**state(), "y": torch.zeros(3, dtype=torch.int8 if last else torch.int16)}, path))
    fails("save: no shard", bad, "x",
          lambda: cairn.torch.save({k: v for k, v in state().items() if not last or k != "x"}, path))
    fails("save: a key", bad, "2.5", lambda: cairn.torch.save({**state(), **({2.5: 1} if last else {})}, path))
    fails("save: another value", bad, "n", lambda: cairn.torch.save({**state(), "n": int(last)}, path))
    twice = sharding.cut(states.tensor("x", (9, 4)), init_device_mesh("cpu", (1, 2)), (Shard(0), Shard(0)))
    if hasattr(twice._spec, "shard_order"):
        (entry,) = twice._spec.shard_order
        twice._spec.shard_order = (entry._replace(mesh_dims=entry.mesh_dims[::-1]),)
        fails("save: another order of the mesh", bad, "redistribute", lambda: cairn.torch.save({"x": twice}, path))
    fails("save: exists", cairn.ExistsError, "", lambda: cairn.torch.save(state(), path, overwrite=False))
    fails("save: a format", cairn.OptionsError, "", lambda: cairn.torch.save(state(), path, format="nothing"))
    fails("save: an address", cairn.OptionsError, "gopher://", lambda: cairn.torch.save(state(), "gopher://bucket/x"))
    fails("save: an object", bad, "cannot be pickled",
          lambda: cairn.torch.save({**state(), **({"o": Broken()} if last else {})}, path))
    fails("load: another shape", cairn.MismatchError, "y",
          lambda: cairn.torch.load({"y": torch.zeros(4 if last else 3)}, path))
    fails("load: a missing name", cairn.MissingError, "z",
          lambda: cairn.torch.load({"z" if last else "y": torch.zeros(3)}, path))
    fails("load: a missing value", cairn.MissingError, "z",
          lambda: cairn.torch.load({"z" if last else "n": None}, path))
    fails("load: nothing there", cairn.NotFoundError, "",
          lambda: cairn.torch.load({"y": torch.zeros(3)}, path + "-nothing" if last else path))
    got = blank(state())
    cairn.torch.load(got, path)
    if digest.of_state(got) != digest.of_state(state()):
        found.append("the checkpoint has changed")
    cairn.torch.save(got, path)
    replaced = cairn.torch._load._Load.run

    def first(*args):
        out = replaced(*args)
        dist.barrier()
        return out

    def then(*args):
        dist.barrier()
        cairn.torch._whole.async_save_whole({"y": states.tensor("y", (3,))}, path, None, alone=True).result(LIMIT)
        return replaced(*args)

    cairn.torch._load._Load.run = then if last else first
    try:
        fails("load: a replaced checkpoint", cairn.ChangedError, "replaced",
              lambda: cairn.torch.load({"y": torch.zeros(3)}, path))
    finally:
        cairn.torch._load._Load.run = replaced
    cairn.torch.load({"y": torch.zeros(3)}, path)
    return of_all(found)


class Wrapper(torch.Tensor):
    """A tensor that is made of another one, as in libraries for quantization."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        return NotImplemented


@closed
def unequal(path):
    """Tensors of one name with different contents are refused, unless they may differ; one rank can save and load
    alone."""
    rank, found = dist.get_rank(), []
    own = torch.full((2000,), float(rank))
    refused(found, "a tensor", '"rng": disagree', lambda: cairn.torch.save({"rng": own, "w": torch.ones(3)}, path))
    large = torch.zeros(3 << 20)
    large[-1] = rank
    refused(found, "a large tensor", '"large": disagree', lambda: cairn.torch.save({"large": large}, path))
    refused(found, "folders", "the same calls", lambda: cairn.torch.save({"w": torch.ones(3)}, f"{path}-{rank}"))
    refused(found, "steps", "the same calls", lambda: cairn.torch.save({"w": torch.ones(3)}, path, step=rank))
    refused(found, "a save and none", "the same calls",
            lambda: cairn.torch.save({"w": torch.ones(3)}, path) if rank else cairn.torch.prepare({"w": torch.ones(3)}))
    if os.path.exists(f"{path}-0"):
        found.append("a refused save wrote something")
    norm = torch.nn.BatchNorm1d(4)
    norm.running_mean.fill_(rank + 1)
    cairn.torch.save({"net": norm, f"rng.{rank}": own}, path)
    got = torch.nn.BatchNorm1d(4)
    cairn.torch.load({"net": got}, path)
    if got.running_mean.unique().tolist() != [1.0]:
        found.append(f"the buffer of rank 0 is {got.running_mean}")
    cairn.torch.save({"rng": own}, path, may_differ=True)
    cairn.torch.load({"rng": own}, path)
    if own.unique().tolist() != [0.0]:
        found.append(f"the tensor of rank 0 is {own[:3]}")
    if rank == 1:
        cairn.torch.save({"mine": torch.full((3,), 7.0), "n": 1}, path + "-alone", alone=True)
        mine = {"mine": torch.zeros(3), "n": 0}
        cairn.torch.load(mine, path + "-alone", alone=True)
        if mine["mine"].tolist() != [7.0] * 3 or mine["n"] != 1:
            found.append(f"alone: {mine}")
    return of_all(found)


@closed
def waits(path):
    """A rank that waits for another in a call says for whom."""
    rank, found = dist.get_rank(), []
    job = cairn.torch._job
    job._SAY_AFTER, job._WARN_AFTER = 0.5, 0.5
    if rank == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cairn.torch.save({"x": torch.ones(3)}, path)
        texts = [str(w.message) for w in caught]
        if not any("rank 1 has not made" in text for text in texts):
            found.append(f"the warnings are {texts}")
    else:
        time.sleep(5)
        cairn.torch.save({"x": torch.ones(3)}, path)
    return of_all(found)


def freed():
    t = torch.ones(1000)
    t.untyped_storage().resize_(0)
    return t


@closed
def odd(path):
    """States and options that cannot be saved or loaded have plain errors, and the next save works."""
    found = []
    x, bad = torch.ones(3), cairn.StateError
    cairn.torch.save({"x": x, "n": 1}, path)
    locked = types.MappingProxyType
    for what, kind, word, call in [
        ("a sparse tensor", bad, "'x' is a sparse", lambda: cairn.torch.save({"x": torch.eye(3).to_sparse()}, path)),
        ("a nested tensor", bad, "or nested",
         lambda: cairn.torch.save({"x": torch.nested.nested_tensor([x, x[1:]])}, path)),
        ("a tensor without memory", bad, "to_empty",
         lambda: cairn.torch.save({"x": torch.empty(3, device="meta")}, path)),
        ("a tensor that wraps another", bad, "'x' is a Wrapper without",
         lambda: cairn.torch.save({"x": Wrapper(x), "y": x}, path)),
        ("a load into a wrapper", bad, "without memory", lambda: cairn.torch.load({"x": Wrapper(x)}, path)),
        ("a freed tensor", bad, "without memory", lambda: cairn.torch.save({"x": freed()}, path)),
        ("a lazy parameter", bad, "no shape yet", lambda: cairn.torch.save({"m": torch.nn.LazyLinear(3)}, path)),
        ("a path", cairn.OptionsError, "not UTF-8", lambda: cairn.torch.save({"x": x}, path.encode() + b"\xff")),
        ("a large step", cairn.OptionsError, "64 bits", lambda: cairn.torch.save({"x": x}, path, step=1 << 63)),
        ("files", TypeError, "float", lambda: cairn.torch.save({"x": x}, path, files_per_rank=1.5)),
        ("an option", ValueError, "JSON", lambda: cairn.torch.save({"x": x}, path, format_options={"x": float("nan")})),
        ("a load without memory", bad, "to_empty",
         lambda: cairn.torch.load({"x": torch.empty(3, device="meta")}, path)),
        ("a load into what cannot change", bad, "mappingproxy", lambda: cairn.torch.load(locked({"n": 0}), path)),
        ("a list", bad, "a dict", lambda: cairn.torch.save([x], path)),
        ("a load into a number", bad, "a dict", lambda: cairn.torch.load(3, path)),
        ("a file", cairn.OptionsError, "is a file", lambda: cairn.torch.save({"x": x}, __file__)),
        ("one file without a name", cairn.OptionsError, '"file"',
         lambda: cairn.torch.save({"x": x}, path + "-file", format="torch")),
        ("no name", bad, "1 to 4096 bytes", lambda: cairn.torch.save({"": x}, path)),
        ("a long name", bad, "1 to 4096 bytes", lambda: cairn.torch.save({"x" * 5000: x}, path)),
        ("half a character", bad, "1 to 4096 bytes", lambda: cairn.torch.save({"x\ud800": x}, path)),
        ("two of one name", bad, "'a.b'", lambda: cairn.torch.save({"a.b": x, "a": {"b": x}}, path)),
        ("tags", cairn.OptionsError, "strings", lambda: cairn.torch.save({"x": x}, path, tags={"run": 1})),
        ("a step", TypeError, "float", lambda: cairn.torch.save({"x": x}, path, step=1.5)),
        ("a value for a tensor", cairn.MismatchError, "the state a tensor", lambda: cairn.torch.load({"n": x}, path)),
        ("a tensor for a value", cairn.MismatchError, "the state a value", lambda: cairn.torch.load({"x": 3}, path)),
    ]:
        try:
            call()
            found.append(f"{what}: no error")
        except kind as e:
            if word not in str(e):
                found.append(f"{what}: {e!r}")
        except Exception as e:
            found.append(f"{what}: {e!r}; want {kind.__name__}")
    cairn.torch.load(locked({"x": torch.zeros(3)}), path)  # tensors are filled in place
    cairn.torch.save({"x": x}, path.encode(), step=torch.tensor(7))
    with cairn.open(path) as c:
        if c.step != 7:
            found.append(f"step {c.step}; want 7")
    handle = cairn.torch.async_save({"x": x}, path)
    cairn.torch.close()
    handle.result(0)  # close has waited for it
    return found


# Processes that die. The ranks are processes of their own, which their parent watches.


def ranks_of(target, path, ranks=2, **more):
    """Runs ranks of a job until all have ended; returns the answer of each, and None for a killed rank."""
    fork = multiprocessing.get_context("fork")
    # as under torchrun, no rank owns it
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
    running = []
    for rank in range(ranks):
        receive, send = fork.Pipe(duplex=False)
        p = fork.Process(target=rank_main, args=(target, path, rank, ranks, store.port, send, more))
        p.start()
        send.close()
        running.append((p, receive))
    end = time.monotonic() + LIMIT
    said = []
    for rank, (p, receive) in enumerate(running):
        p.join(max(0, end - time.monotonic()))
        if p.exitcode is None:
            p.kill()
            p.join()
            said.append([f"rank {rank} has not ended after {LIMIT} seconds"])
        else:
            try:
                said.append(receive.recv())
            except EOFError:
                said.append(None)
        receive.close()
    return said


def rank_main(target, path, rank, ranks, port, send, more):
    patience = datetime.timedelta(seconds=PATIENCE)
    first = None
    if more.pop("first_has_store", False):  # as without torchrun
        outer = dist.TCPStore("127.0.0.1", port, None, False, patience, wait_for_workers=False, use_libuv=False)
        if rank == 0:
            first = dist.TCPStore("127.0.0.1", 0, None, True, patience, wait_for_workers=False, use_libuv=False)
            outer.set("port", str(first.port))
        port = int(outer.get("port"))
    store = first or dist.TCPStore("127.0.0.1", port, None, False, patience, wait_for_workers=False, use_libuv=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)
    try:
        said = globals()[target](path, **more)
    except BaseException as e:
        said = [f"rank {rank}: {e!r}"]
    send.send(said)
    send.close()
    cairn.torch.close()
    os._exit(0)  # gloo misses the rank that has died


def state_of(step):
    """The state of a step: different rows on each rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"x": sharding.cut(torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024) + step, mesh, (Shard(0),)),
            "step": step}


def holds(path, step):
    """Checks that a checkpoint has the state of a step."""
    with cairn.open(path, framework="torch") as c:
        want = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024) + step
        same = c["step"] == step and torch.equal(c["x"].torch(), want)
        return [] if same else [f"{path} does not have the state of step {step}"]


def raises(found, what, kinds, call):
    """Notes a call that does not raise one of some errors of cairn in time."""
    begin = time.monotonic()
    try:
        call()
        found.append(f"{what}: no error")
    except kinds:
        pass
    except BaseException as e:
        found.append(f"{what}: {e!r}")
    if time.monotonic() - begin > LIMIT / 2:
        found.append(f"{what} took {time.monotonic() - begin:.0f} seconds")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def before_staging(path, what, victim=1):
    """Saves step 1. In the save of step 2 a rank or its saver dies before its state is staged."""
    found = []
    cairn.torch.save(state_of(1), f"{path}/step-1", step=1)
    run = cairn.torch._staging.Staging.run

    def killing(self):
        if what == "rank":
            die()
        self.saver.process.kill()
        self.saver.process.wait(LIMIT)
        run(self)

    if dist.get_rank() == victim:
        cairn.torch._staging.Staging.run = killing
    raises(found, f"rank {dist.get_rank()}: the save of step 2", (cairn.GoneError, cairn.SaverError),
           lambda: cairn.torch.async_save(state_of(2), f"{path}/step-2", step=2).result(LIMIT))
    cairn.torch._staging.Staging.run = run
    if what == "rank":
        raises(found, "the save of step 3", cairn.GoneError,
               lambda: cairn.torch.save({"x": torch.zeros(1)}, f"{path}/step-3"))
    else:
        cairn.torch.save(state_of(3), f"{path}/step-3", step=3)
    return found


def after_staging(path, all_ranks):
    """Saves step 1. When the save of step 2 is staged on all ranks, rank 1 dies, or both."""
    found = []
    cairn.torch.save(state_of(1), f"{path}/step-1", step=1)
    handle = cairn.torch.async_save(state_of(2), f"{path}/step-2", step=2)
    dist.barrier()
    if all_ranks or dist.get_rank() == 1:
        die()
    handle.result(LIMIT)
    raises(found, "the save of step 3", cairn.GoneError,
           lambda: cairn.torch.save({"x": torch.zeros(1)}, f"{path}/step-3"))
    return found


def dies(target, path, want, survivors, latest, **more):
    """Runs ranks of which some die, and returns the problems of the remaining ranks and files."""
    os.makedirs(path)
    said = ranks_of(target, path, **more)
    found = [f for s in said for f in s or []]
    if [s is not None for s in said] != survivors:
        found.append(f"the ranks have said {said}")
    # The savers may not have begun to write when their trainers are gone: then latest sees no save under way.
    end = time.monotonic() + LIMIT
    while True:
        newest = cairn.latest(path, wait=True, timeout=LIMIT)
        if newest is not None and os.path.basename(newest) == f"step-{latest}":
            break
        if time.monotonic() > end:
            found.append(f"latest is {newest}; want step {latest}")
            break
        time.sleep(0.1)
    for step in want:
        found += holds(f"{path}/step-{step}", step)
    return found


@closed
def rank_dies_before_staging(path):
    return dies("before_staging", path, [1], [True, False], 1, what="rank")


@closed
def first_dies_before_staging(path):
    return dies("before_staging", path, [1], [False, True], 1, what="rank", victim=0, first_has_store=True)


@closed
def saver_dies(path):
    return dies("before_staging", path, [1, 3], [True, True], 3, what="saver")


@closed
def rank_dies_after_staging(path):
    return dies("after_staging", path, [1, 2], [True, False], 2, all_ranks=False)


@closed
def all_die_after_staging(path):
    return dies("after_staging", path, [1, 2], [False, False], 2, all_ranks=True)


@closed
def uploads(path):
    """Ranks with disks of their own save there, and upload to one store."""
    found = []
    disk, there = f"{path}/disk-{dist.get_rank()}", f"{path}/there"
    for step in range(1, 5):
        handle = cairn.torch.async_save(state_of(step), f"{disk}/step-{step}", step=step, remote=f"{there}/step-{step}",
                                        local_bytes=7 << 20)
        saved = handle.result(LIMIT)
        report = handle.uploaded.result(LIMIT)
        if report.save_id != saved.save_id or not handle.uploaded.done() or report.direct:
            found.append(f"the upload of step {step}: {report}, after {saved}")
        if (used := sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(disk) for f in files)) > 7 << 20:
            found.append(f"{used} bytes on the disk of rank {dist.get_rank()}")
    cairn.torch.save(state_of(5), f"{disk}/step-5", step=5, remote=f"{there}/step-5")  # waits for the upload
    for step in range(1, 6):
        found += holds(f"{there}/step-{step}", step)
    # a disk has only a half of it
    if (newest := cairn.latest(disk, remote=there)) != os.path.abspath(f"{there}/step-5"):
        found.append(f"latest is {newest}")
    if os.path.exists(f"{disk}/step-1") or not os.path.exists(f"{disk}/step-4"):
        found.append(f"on the disk are {sorted(os.listdir(disk))}")
    raises(found, "local_bytes without remote", cairn.OptionsError,
           lambda: cairn.torch.save(state_of(6), f"{disk}/step-6", local_bytes=1))
    dist.barrier()
    if dist.get_rank() == 0:
        with open(f"{path}/file", "w") as f:
            f.write("in the way")
    dist.barrier()
    handle = cairn.torch.async_save(state_of(6), f"{disk}/step-6", step=6, remote=f"{path}/file/step-6")
    handle.result(LIMIT)
    raises(found, "an upload to where a file is", cairn.CairnError, lambda: handle.uploaded.result(LIMIT))
    return found


# Ctrl-C.


def interrupted(found, what, call):
    """Notes a call that Ctrl-C does not end soon."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background of a shell ignore it
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        call()
        found.append(f"{what}: not interrupted")
    except KeyboardInterrupt:
        pass
    if time.monotonic() - begin > PATIENCE / 2:
        found.append(f"{what}: interrupted after {time.monotonic() - begin:.0f} seconds")


@closed
def ctrl_c(path):
    """Ctrl-C ends the wait for a save, and the save goes on."""
    found = []
    go_on = threading.Event()
    run = cairn.torch._staging.Staging.run

    def slow(self):
        go_on.wait(LIMIT)
        run(self)

    cairn.torch._staging.Staging.run = slow
    x = torch.arange(9.0)
    handle = cairn.torch.async_save({"x": x}, path, overlap=True)
    interrupted(found, "result", handle.result)
    interrupted(found, "staged.result", handle.staged.result)
    if handle.staged.done() or handle.done():
        found.append("the save is over")
    go_on.set()
    handle.result(LIMIT)
    with cairn.open(path, framework="torch") as c:
        found += digest.differences(x, c["x"].torch())
    return found


def ctrl_c_alone(path):
    """Rank 0 waits for rank 1, which comes late; Ctrl-C ends its wait, and it can save again."""
    found = []
    cairn.torch.save(state_of(1), f"{path}/step-1")
    if dist.get_rank() == 0:
        interrupted(found, "a save that waits for the other rank",
                    lambda: cairn.torch.save(state_of(2), f"{path}/step-2"))
    dist.barrier()
    return found


@closed
def ctrl_c_of_ranks(path):
    os.makedirs(path)
    said = ranks_of("ctrl_c_alone", path)
    return [f for s in said for f in (s if s is not None else ["a rank has died"])] + holds(f"{path}/step-1", 1)


# Workers and other ways to start.


class Rows(torch.utils.data.Dataset):
    """Reads rows of a checkpoint in the worker that is asked for them."""

    def __init__(self, path):
        self.path, self.open = path, None

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if self.open is None or self.open[0] != os.getpid():
            self.open = os.getpid(), cairn.open(self.path, framework="torch")
        return self.open[1]["rows"][i]


@closed
def workers(path):
    """Workers of a DataLoader read a checkpoint while the trainer saves others."""
    found = []
    rows = torch.arange(24 * 100, dtype=torch.float32).reshape(24, 100)
    cairn.torch.save({"rows": rows}, f"{path}-data")
    for how in ("fork", "spawn"):
        handle = cairn.torch.async_save({"rows": rows * 2}, f"{path}-{how}-0")
        loader = torch.utils.data.DataLoader(Rows(f"{path}-data"), batch_size=4, num_workers=2,
                                             multiprocessing_context=how, timeout=LIMIT)
        got = []
        for n, batch in enumerate(loader, 1):
            handle.result(LIMIT)
            got.append(batch)
            handle = cairn.torch.async_save({"rows": rows * n}, f"{path}-{how}-{n}")
        handle.result(LIMIT)
        found += digest.differences(rows, torch.cat(got), how)
        with cairn.open(f"{path}-{how}-6", framework="torch") as c:
            found += digest.differences(rows * 6, c["rows"].torch(), how)
    return found


def spawned(rank, path, ranks):
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(path)}-meet", rank=rank, world_size=ranks)
    cairn.torch.save(state_of(5), path)
    got = blank(state_of(5))
    cairn.torch.load(got, path)
    assert torch.equal(got["x"].to_local(), state_of(5)["x"].to_local()) and got["step"] == 5
    cairn.torch.close()
    dist.barrier()
    dist.destroy_process_group()


@closed
def spawn(path):
    """Ranks that torch.multiprocessing.spawn has started."""
    torch.multiprocessing.spawn(spawned, (path, 2), nprocs=2)
    return holds(path, 5)


def complete_early(path):
    """Returns the problems if a save is over before the trainer has noted that its state is staged."""
    wrong = []
    cairn.torch.save({"x": torch.zeros(2)}, path)
    saver = cairn.torch._job.job().saver
    send = saver.send

    def slow(kind, *more, **body):
        send(kind, *more, **body)
        if kind == "staged" and body.get("all"):
            end = time.monotonic() + LIMIT
            while saver._waiting and time.monotonic() < end:
                time.sleep(0.01)
            if saver._waiting:
                wrong.append("the save did not end")
            time.sleep(0.1)  # for the steps after its end

    saver.send = slow
    handle = cairn.torch.async_save({"x": torch.ones(2)}, path)
    if not handle.staged.done() or not handle.result(LIMIT).save_id:
        wrong.append("the save has no outcome")
    cairn.torch.close()
    return wrong
