"""cairn as the storage of torch.distributed.checkpoint: cairn.torch.Writer and cairn.torch.Reader."""

import contextlib
import gc
import inspect
import os
import random
import socket
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import cairn
import cairn.torch
import digest
import fsdp
import loads
import saves
import sharding
import states

os.environ.setdefault("CAIRN_ARENA_BYTES", str(64 << 20))
warnings.simplefilter("ignore")


class Custom(dcp.DefaultSavePlanner):
    """A planner that changes objects on their way: the storage sees only its results."""

    def transform_object(self, write_item, object):
        return super().transform_object(write_item, "changed" if object == 12 else object)


def closed(function):
    """Ends the saver process of a rank when its function is over, so that none is left behind."""

    def run(**args):
        try:
            return function(**args)
        finally:
            cairn.torch.close()

    return run


@closed
def save(path, kind, dtypes):
    """Saves with Writer by one process."""
    state = states.make(kind, dtypes)
    dcp.save(state, storage_writer=cairn.torch.Writer(path))
    return digest.of_state(state)


@closed
def save_lazy_views(path):
    state = states.lazy_views()
    dcp.save(state, storage_writer=cairn.torch.Writer(path))
    return digest.of_state(state)


@closed
def differs(path, kind, dtypes):
    """Returns the differences between the state that Reader rebuilds and the state that was saved."""
    return digest.differences(loads.by_names(by_text(states.make(kind, dtypes))), loads.by_names(rebuilt(path)))


def by_text(v):
    """Returns a state as DCP rebuilds it: keys are strings, dicts of one kind, and without empty dicts."""
    if isinstance(v, dict):
        return {str(k): by_text(x) for k, x in v.items() if not (isinstance(x, dict) and not x)}
    if isinstance(v, list) and any(isinstance(x, (dict, torch.Tensor)) for x in v):
        return [by_text(x) for x in v]
    return v


def rebuilt(path):
    state = {}
    _load_state_dict(state, storage_reader=cairn.torch.Reader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


@closed
def all_of(path):
    return digest.of_state(rebuilt(path))


@closed
def save_sharded(path, dtypes, twice=False):
    """Saves with Writer by several ranks."""
    state = saves.sharded_state(dtypes)
    want = digest.of_state(state)
    for _ in range(2 if twice else 1):
        dcp.save(state, storage_writer=cairn.torch.Writer(path))
    return want


@closed
def save_sharded_ours(path, dtypes):
    """Saves with cairn.torch.save by several ranks."""
    state = saves.sharded_state(dtypes)
    cairn.torch.save(state, path)
    return digest.of_state(state)


@closed
def load_sharded(path, dtypes):
    """Loads with Reader into shards of as many ranks as there are now."""
    state = blank(saves.sharded_state(dtypes))
    dcp.load(state, storage_reader=cairn.torch.Reader(path))
    return digest.of_state(state)


@closed
def load_sharded_ours(path, dtypes):
    state = blank(saves.sharded_state(dtypes))
    cairn.torch.load(state, path)
    return digest.of_state(state)


def blank(v):
    """Returns a state of the same shape without its content."""
    if isinstance(v, dict):
        return {k: blank(x) for k, x in v.items()}
    if isinstance(v, list):
        return [blank(x) for x in v]
    if isinstance(v, torch.Tensor):
        local = v.to_local() if hasattr(v, "to_local") else v
        if local.numel():
            local.reshape(-1).view(torch.uint8).zero_()
        return v
    return None


@closed
def resharded(path):
    """Loads everything into DTensors of other shardings, by all ranks."""
    return loads.resharded(path, reader=cairn.torch.Reader(path))


@closed
def cast(path):
    """Loads tensors into another dtype."""
    state = {"x": torch.arange(12.0).reshape(3, 4)}
    dcp.save(state, storage_writer=cairn.torch.Writer(path))
    got = {"x": torch.zeros(3, 4, dtype=torch.float64).t().contiguous().t()}
    dcp.load(got, storage_reader=cairn.torch.Reader(path))
    return digest.differences(state["x"].double(), got["x"])


@closed
def planner(path):
    """A planner of the user's own changes objects."""
    dcp.save({"step": 12, "other": 7}, storage_writer=cairn.torch.Writer(path), planner=Custom())
    got = {"step": None, "other": None}
    dcp.load(got, storage_reader=cairn.torch.Reader(path))
    return digest.differences({"step": "changed", "other": 7}, got)


@closed
def training(path):
    """Saves a training by get_state_dict, resumes it, and says where it goes on otherwise."""
    real, real_opt = states.trained()
    weights, moments = get_state_dict(real, real_opt)
    dcp.save({"model": weights, "optim": moments}, storage_writer=cairn.torch.Writer(path, step=3))
    net = loads.blank_model()
    opt = states.optimizer(net)
    weights, moments = get_state_dict(net, opt)
    state = {"model": weights, "optim": moments}
    dcp.load(state, storage_reader=cairn.torch.Reader(path))
    set_state_dict(net, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
    found = digest.differences(real.state_dict(), net.state_dict(), "model")
    found += digest.differences(real_opt.state_dict(), opt.state_dict(), "optim")
    for seed in (11, 12):
        states.step(real, real_opt, seed)
        states.step(net, opt, seed)
    return found + digest.differences(real.state_dict(), net.state_dict(), "model after two steps")


@closed
def new_optimizer(path):
    """Saves a module and its optimizer, loads them into new ones, and says where the training goes on otherwise."""
    real, real_opt = states.trained()
    unused = torch.nn.Parameter(torch.ones(3))  # it has no gradient, so the optimizer keeps no state for it
    real_opt.add_param_group({"params": [unused]})
    cairn.torch.save({"model": real, "optim": real_opt}, path)
    net = loads.blank_model()
    opt = states.optimizer(net)
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    cairn.torch.load({"model": net, "optim": opt}, path)
    found = digest.differences(real_opt.state_dict(), opt.state_dict(), "optim")
    if any(p.grad is not None for p in net.parameters()):
        found.append("there are gradients after the load")
    for seed in (11, 12):
        states.step(real, real_opt, seed)
        states.step(net, opt, seed)
    return found + digest.differences(real.state_dict(), net.state_dict(), "model after two steps")


class Broken:
    """Cannot be pickled."""

    def __reduce__(self):
        raise TypeError("this cannot be pickled")


@closed
def fails(path):
    """A save that fails on one rank fails on all, and leaves the checkpoint that is there."""
    found = []
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"x": sharding.cut(states.tensor("x", (9, 4)), mesh, (Shard(0),)),
             "y": sharding.cut(states.tensor("y", (3,)), mesh, (Replicate(),))}
    want = digest.of_state(state)
    dcp.save(state, storage_writer=cairn.torch.Writer(path))
    # The last rank alone holds an object that it cannot save.
    broken = dict(state, last=Broken()) if dist.get_rank() == dist.get_world_size() - 1 else state
    for bad, options in ((broken, {}), (state, {"overwrite": False})):
        try:
            dcp.save(bad, storage_writer=cairn.torch.Writer(path, **options))
            found.append(f"rank {dist.get_rank()}: the save with {options} did not fail")
        except BaseException as e:
            # PyTorch 2.6 cannot pass errors on with Python 3.13, and says so instead.
            if not any(word in str(e) for word in ("cannot be pickled", "exists", "cannot pickle code objects")):
                found.append(f"rank {dist.get_rank()}: {e!r}")
    got = blank(dict(state.items()))
    dcp.load(got, storage_reader=cairn.torch.Reader(path))
    if digest.of_state(got) != want:
        found.append("the checkpoint has changed")
    dcp.save(got, storage_writer=cairn.torch.Writer(path))
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, found)
    return sum(said, [])


@closed
def other_format(path):
    """Writer and cairn.torch.save do not replace a checkpoint of another format."""
    found = []
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def state(seed):
        return {"x": sharding.cut(states.tensor(seed, (9, 4)), mesh, (Shard(0),))}

    for old in ("native", "torchdcp", "hyper", "hf"):
        place = f"{path}-{old}"
        cairn.torch.save(state("old"), place, format=old)
        dist.barrier()
        files = sorted(os.listdir(place))
        dist.barrier()
        for new in ("native", "torchdcp", "hyper", "hf"):
            if new == old:
                continue
            for overwrite in (False, True):
                for how, call in (
                    ("Writer", lambda: dcp.save(
                        state("new"), storage_writer=cairn.torch.Writer(place, format=new, overwrite=overwrite))),
                    ("save", lambda: cairn.torch.save(state("new"), place, format=new, overwrite=overwrite)),
                ):
                    what = f"rank {rank}: {how}: {new} over {old}, overwrite {overwrite}"
                    try:
                        call()
                        found.append(f"{what}: no error")
                    except BaseException as e:
                        # PyTorch 2.6 cannot pass errors on with Python 3.13, and says so instead.
                        if not any(word in str(e) for word in (f"the format {old}", "cannot pickle code objects")):
                            found.append(f"{what}: {e!r}")
                    dist.barrier()
                    if sorted(os.listdir(place)) != files:
                        found.append(f"{what}: the files have changed")
                    dist.barrier()  # a load has a lock in the folder
                    got = blank(state("old"))
                    dcp.load(got, storage_reader=cairn.torch.Reader(place))
                    if digest.of_state(got) != digest.of_state(state("old")):
                        found.append(f"{what}: the checkpoint has changed")
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, found)
    return sum(said, [])


@closed
def resumes(path):
    """Ranks that load first can save, and a saver that was killed has a successor."""
    found = []
    state = saves.sharded_state(["float32"])
    want = digest.of_state(state)
    cairn.torch.save(state, f"{path}-1")
    cairn.torch.close()
    for step in (2, 3):
        got = blank(saves.sharded_state(["float32"]))
        cairn.torch.load(got, f"{path}-{step - 1}")
        cairn.torch.save(got, f"{path}-{step}")
        if digest.of_state(got) != want:
            found.append(f"step {step} holds something else")
        if dist.get_rank() == 0:
            saver = cairn.torch._job.job().saver
            saver.process.kill()
            saver._reader.join(60)  # it has noticed
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, found)
    return sum(said, [])


@closed
def across_hosts(path):
    """Saves as ranks on several hosts do: rank 0 listens at the address of MASTER_ADDR, however that is written."""
    found = []
    for step, address in enumerate((socket.gethostname(), "127.0.0.1", "::1", "no-such-host.invalid")):
        os.environ.update(LOCAL_WORLD_SIZE="1", MASTER_ADDR=address)
        state = saves.sharded_state(["float32"])
        cairn.torch.save(state, f"{path}-{step}")
        cairn.torch.close()
        if dist.get_rank() == 0 and not os.path.exists(f"{path}-{step}/cairn.json"):
            found.append(f"MASTER_ADDR={address}: there is no checkpoint")
    return found


@closed
def save_async(path):
    """Saves with dcp.async_save twice. The state changes while each save is under way, and its bytes do not move
    again."""
    found = []
    stager = cairn.torch.Stager()
    more = {"async_stager": stager} if "async_stager" in inspect.signature(dcp.async_save).parameters else {}
    memory = cairn.torch._job.job().memory
    moved = []
    gather = memory.gather

    def counted(gathers, begun):
        moved.append(sum(to.numel() for to, _ in gathers))
        return gather(gathers, begun)

    memory.gather = counted
    for step in (1, 2, 3):
        state = saves.sharded_state(["float32", "bfloat16"])
        state["views"] = states.tensors(["int16"])
        state["views"].pop("parameter")
        want = digest.of_state(state)
        moved.clear()
        future = dcp.async_save(state, storage_writer=cairn.torch.Writer(f"{path}-{step}"), **more)
        blank(state)
        future.result(60)
        if sum(1 for n in moved if n) != 1:
            found.append(f"save {step} has copied {moved} bytes; want one copy")
        got = blank(saves.sharded_state(["float32", "bfloat16"]))
        got["views"] = blank({k: v for k, v in states.tensors(["int16"]).items() if k != "parameter"})
        got["views"]["view"] = {k: v.clone() for k, v in got["views"]["view"].items()}
        dcp.load(got, storage_reader=cairn.torch.Reader(f"{path}-{step}"))
        if digest.of_state(got) != want:
            found.append(f"save {step} holds something else")
        del future
    gc.collect()
    memory.reclaim()
    if memory.arena.largest() != memory.arena.window:
        found.append("shared memory is still in use")
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, found)
    return sum(said, [])


def quiet_port():
    """Returns a free port below those that the system assigns: the process that listens on it starts seconds later."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        first = int(f.read().split()[0])
    for port in random.sample(range(first // 2, first), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            return port
    raise OSError(f"100 ports below {first} are in use")


@closed
def save_by_process(path):
    """Saves with dcp.async_save by another process, twice. The state changes while each save is under way."""
    from torch.distributed.checkpoint import _async_process_executor
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    os.environ["MASTER_ADDR"] = "127.0.0.1"  # where the processes that save meet
    _async_process_executor.get_free_port = quiet_port
    found = []
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for step in (1, 2):
        # One storage for two DTensors, and a DTensor that is a view of a larger tensor.
        flat = states.tensor("flat", (64,))
        state = {"model": saves.sharded_state(["float32", "int64"]), "plain": states.tensor("plain", (7, 3)),
                 "step": step, "first": DTensor.from_local(flat[:24].view(6, 4), mesh, (Replicate(),)),
                 "second": DTensor.from_local(flat[40:].view(4, 6).t(), mesh, (Shard(0),))}
        want = digest.of_state(state)
        future = dcp.async_save(state, storage_writer=cairn.torch.Writer(f"{path}-{step}"),
                                async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        blank(state)
        state["step"] = step
        future.result(80)
        got = {"model": blank(saves.sharded_state(["float32", "int64"])), "plain": torch.zeros(7, 3), "step": 0,
               "first": DTensor.from_local(torch.zeros(6, 4), mesh, (Replicate(),)),
               "second": DTensor.from_local(torch.zeros(6, 4), mesh, (Shard(0),))}
        dcp.load(got, storage_reader=cairn.torch.Reader(f"{path}-{step}"))
        if (differ := digest.of_state(got)) != want:
            found.append(f"save {step} holds something else: {differ}; want {want}")
    gc.collect()
    if left := cairn.torch._job.job().memory.leased():
        found.append(f"{left} bytes of the shared memory are still in use")
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, found)
    return sum(said, [])


@closed
def save_fsdp(path):
    return fsdp.save(path, storage_writer=cairn.torch.Writer("elsewhere"))


@closed
def load_fsdp(path):
    return fsdp.load(path, storage_reader=cairn.torch.Reader("elsewhere"))


@closed
def save_sharded_tensor(path):
    """Saves a ShardedTensor in the background, and tensors that do not fit into the shared memory."""
    from torch.distributed._shard.sharded_tensor import Shard as Piece, init_from_local_shards

    rank, whole, large = dist.get_rank(), states.tensor("x", (6, 4)), states.tensor("large", (1 << 24,))
    piece = Piece.from_tensor_and_offsets(whole[3 * rank:3 * rank + 3].clone(), shard_offsets=[3 * rank, 0], rank=rank)
    state = {"x": init_from_local_shards([piece], 6, 4), "large": large.clone(), "half": large[:1 << 23].clone(),
             "pair": (1, torch.arange(3))}
    future = dcp.async_save(state, storage_writer=cairn.torch.Writer(path))
    piece.tensor.zero_()
    state["large"].zero_()
    future.result(60)
    if rank > 0:
        return []
    with cairn.open(path, framework="torch") as c:
        return digest.differences(whole, c["x"].torch()) + digest.differences(large, c["large"].torch())
