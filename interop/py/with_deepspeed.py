"""DeepSpeed on a CPU, with gloo and optimizers of torch. Its C++ extensions are not built.

Each function of a case has processes of its own for the ranks, so that they can be killed and that their number may
change. A step has the same samples for any number of ranks.
"""

import contextlib
import glob
import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
import types
import zipfile

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import zero_to_fp32

import cairn
import cairn.deepspeed
import cairn.torch


def all_gather(output_tensor, input_tensor, *arguments, own=dist.all_gather_into_tensor, **more):
    """Gathers bytes: gloo does not have 16-bit numbers."""
    return own(output_tensor.view(torch.uint8), input_tensor.contiguous().view(torch.uint8), *arguments, **more)


def all_reduce(tensor, *arguments, own=dist.all_reduce, **more):
    if tensor.dtype != torch.bfloat16:
        return own(tensor, *arguments, **more)
    wide = tensor.float()
    own(wide, *arguments, **{**more, "async_op": False})
    tensor.copy_(wide)
    return types.SimpleNamespace(wait=lambda: None)


def reduce_scatter(output, tensor, *arguments, own=dist.reduce_scatter_tensor, **more):
    if tensor.dtype != torch.bfloat16:
        return own(output, tensor, *arguments, **more)
    wide = output.float()
    own(wide, tensor.float(), *arguments, **{**more, "async_op": False})
    output.copy_(wide)
    return types.SimpleNamespace(wait=lambda: None)


def empty(*shape, own=torch.empty, **more):
    """Returns zeros: DeepSpeed saves padding that it does not initialise, and files are compared."""
    return own(*shape, **more).zero_()


torch.empty = empty
dist.all_gather_into_tensor, dist.all_reduce, dist.reduce_scatter_tensor = all_gather, all_reduce, reduce_scatter
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
SAMPLES = 12  # of a step


class Net(torch.nn.Module):
    """A model with a tied weight, a frozen one, one with an odd number of elements, and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(5, 13)
        self.second = torch.nn.Linear(13, 13, bias=False)
        self.again = torch.nn.Linear(13, 13, bias=False)
        self.again.weight = self.second.weight
        self.fixed = torch.nn.Linear(13, 13).requires_grad_(False)
        self.last = torch.nn.Linear(13, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        x = self.second(torch.tanh(self.first(x)))
        return self.last(self.fixed(torch.tanh(self.again(x))))


def engine_of(stage, bf16=False, attach=True, universal=False, simple=False):
    net = Net()
    matrices, vectors = ([p for p in net.parameters() if p.requires_grad and p.dim() == n] for n in (2, 1))
    groups = [[*matrices, *vectors]] if simple else [matrices, vectors]
    rates = [1e-2, 3e-2][:len(groups)]
    optimizer = torch.optim.AdamW([{"params": ps, "lr": rate} for ps, rate in zip(groups, rates, strict=True)])
    config = {
        "train_micro_batch_size_per_gpu": SAMPLES // dist.get_world_size(),
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20,
                              "sub_group_size": 10**9 if simple else 100},
        "bf16": {"enabled": bf16},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": rates,
                                                     "warmup_min_lr": [0] * len(rates)}},
        "checkpoint": {"load_universal": universal},
    }
    engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    if attach:
        cairn.deepspeed.attach(engine)
    return engine


def train(engine, steps):
    """Trains, and returns the mean loss of each step."""
    losses, rank, ranks = [], dist.get_rank(), dist.get_world_size()
    for _ in range(steps):
        torch.manual_seed(engine.global_steps)
        x, y = torch.randn(SAMPLES, 5), torch.randn(SAMPLES, 3)
        own = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
        dtype = next(engine.module.parameters()).dtype
        loss = (engine(x[own].to(dtype)).float() - y[own]).square().mean()
        engine.backward(loss)
        engine.step()
        loss = loss.detach() / ranks
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses


def jobs(ranks, call, **more):
    """Has processes call a function as the ranks of a job, and returns their results: None of one that was killed."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(".deepspeed-group")
    pids, out = [], []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            said = None
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                              MASTER_ADDR="127.0.0.1", MASTER_PORT="29999")
            try:
                dist.init_process_group("gloo", init_method="file://" + os.path.abspath(".deepspeed-group"), rank=rank,
                                        world_size=ranks)
                deepspeed.init_distributed("gloo")
                said = call(**more)
                dist.barrier()
                cairn.torch.close()
            except BaseException:
                said = RuntimeError(traceback.format_exc())
            with open(f".deepspeed-said-{rank}", "wb") as f:
                pickle.dump(said, f)
            os._exit(0)
        pids.append(pid)
    for rank, pid in enumerate(pids):
        _, status = os.waitpid(pid, 0)
        said = None
        if not os.WIFSIGNALED(status):
            with open(f".deepspeed-said-{rank}", "rb") as f:
                said = pickle.load(f)
        out.append(said)
    for said in out:
        if isinstance(said, RuntimeError):
            raise said
    return out


def first(folder, stage, attach=True, saves=(2, 4), more=3, kill=False, **how):
    """Trains from the beginning, saves after some steps, and returns the losses of further steps."""
    engine = engine_of(stage, attach=attach, **how)
    done = 0
    for at in saves:
        train(engine, at - done)
        done = at
        engine.save_checkpoint(folder, client_state={"mine": {"at": at, "words": ["a", "b"]}})
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    losses = train(engine, more)
    engine.destroy()
    return losses


def again(folder, stage, program="cairn", more=3, **how):
    """Loads, and returns the losses of further steps."""
    engine = engine_of(stage, attach=program == "cairn", universal=program == "universal", **how)
    if program == "cairn":
        _, client = cairn.deepspeed.load(engine, folder)
    else:
        _, client = engine.load_checkpoint(folder)
    losses = train(engine, more)
    facts = [engine.global_steps, engine.global_samples, engine.skipped_steps, client["mine"], engine.get_lr()]
    if engine.module.seen != engine.global_steps and program != "universal":  # which leaves buffers as they are
        facts.append(f"the buffer has {engine.module.seen}")
    if program == "cairn":
        engine.save_checkpoint(f"{folder}-{dist.get_world_size()}")
    engine.destroy()
    return losses, facts


def same(folder, stage, bf16=False):
    """The files are those of DeepSpeed, and both programs continue from them."""
    wrong = []
    stock, ours = folder + "/stock", folder + "/ours"
    want = jobs(2, first, folder=stock, stage=stage, bf16=bf16, attach=False)
    got = jobs(2, first, folder=ours, stage=stage, bf16=bf16)
    if got != want:
        wrong.append(f"the losses while it saves are {got}, not {want}")
    names = [sorted(os.path.relpath(f, d) for f in glob.glob(f"{d}/*/*.pt")) for d in (stock, ours)]
    if names[0] != names[1] or not names[0]:
        wrong.append(f"the files are {names[1]}, not {names[0]}")
    wrong += [f"{name} differs" for name in names[0] if not alike(f"{stock}/{name}", f"{ours}/{name}")]
    for d in (stock, ours):
        with open(d + "/latest") as f:
            if (tag := f.read()) != "global_step4":
                wrong.append(f"latest of {d} has {tag!r}")
    weights = [zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(d) for d in (stock, ours)]
    wrong += [f"zero_to_fp32: {name} differs" for name in {*weights[0], *weights[1]}
              if not torch.equal(weights[0][name], weights[1][name])]

    results = {by: jobs(2, again, folder=ours, stage=stage, bf16=bf16, program=by) for by in ("stock", "cairn")}
    if [losses for losses, _ in results["stock"]] != want or results["cairn"] != results["stock"]:
        wrong.append(f"after a load: {results}, not {want}")
    return wrong


def alike(a, b):
    """Reports whether two files of torch.save have the same records, apart from the one that identifies a file."""
    found = []
    for path in (a, b):
        torch.load(path, weights_only=False)
        with zipfile.ZipFile(path) as z:
            found.append({i.filename: z.read(i) for i in z.infolist() if not i.filename.endswith("serialization_id")})
    return found[0] == found[1]


def resumed(folder, stage, ranks, bf16=False):
    """Is killed right after a save. Other numbers of ranks go on as from a universal checkpoint of DeepSpeed."""
    # DeepSpeed loads a universal checkpoint into ZeRO 3 with the options of the first group for all groups, and with
    # one step for all of them, which AdamW then counts up several times. So there is one group.
    how = {"folder": folder, "stage": stage, "bf16": bf16, "simple": stage == 3}
    jobs(2, first, kill=True, **how)
    got = {n: jobs(n, again, **how) for n in ranks}
    universal(folder, "global_step4")
    want = {n: jobs(n, again, program="universal", **how) for n in ranks}
    return [] if got == want else [f"{got}, and from the universal checkpoint {want}"]


def changed(folder, stage, into, ranks):
    """Another stage of ZeRO goes on with another number of ranks, as if nothing had happened."""
    want = jobs(2, first, folder=folder, stage=stage)[0]
    got = [losses for losses, _ in jobs(ranks, again, folder=folder, stage=into)]
    return [] if all(abs(a - b) < 1e-5 for losses in got for a, b in zip(losses, want, strict=True)) else [
        f"{got}, not {want}"]


def universal(folder, tag):
    said = subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                           f"{folder}/{tag}", "--output_folder", f"{folder}/{tag}_universal", "--num_extract_workers",
                           "1", "--num_merge_workers", "1", "--inject_missing_state"],
                          capture_output=True, text=True)
    if said.returncode:
        raise RuntimeError(said.stderr[-3000:])
    with open(f"{folder}/latest_universal", "w") as f:
        f.write(f"{tag}_universal")


def failing(folder):
    """A failure of rank 1 is an error on both ranks, and latest stays."""
    said = jobs(2, fails, folder=folder)
    want = [["StateError", "first", "KeyError", "first", "first", "CairnError", "second", "ExistsError", "second",
             "CairnError", "second"]] * 2
    return [] if said == want else [f"{said}, not {want}"]


def fails(folder):
    engine, said = engine_of(2), []

    def attempt(call, *arguments):
        try:
            call(*arguments)
        except Exception as e:
            said.append(type(e).__name__)
        dist.barrier()
        with open(folder + "/latest") as f:
            said.append(f.read())
        dist.barrier()

    train(engine, 1)
    engine.save_checkpoint(folder, "first")
    train(engine, 1)
    if dist.get_rank() == 1:
        engine.config["what"] = lambda: None  # which is not pickled
    attempt(engine.save_checkpoint, folder, "wrong")
    engine.config.pop("what", None)
    attempt(engine.save_checkpoint, folder, "reserved", {"checkpoint_parallel_dimensions": 1})  # refused by DeepSpeed
    train(engine, 1)  # does not save what was collected
    attempt(engine.checkpoint_engine.cleanup)

    def cannot_write(tag):
        os.makedirs(f"{folder}/{tag}/zero_pp_rank_1_mp_rank_00_optim_states.pt/in-the-way", exist_ok=True)
        dist.barrier()
        engine.save_checkpoint(folder, tag)

    engine.save_checkpoint(folder, "second")
    cannot_write("third")
    attempt(engine.save_checkpoint, folder, "fourth")
    engine.save_checkpoint(folder, "second")
    attempt(engine.checkpoint_engine.cleanup)
    cannot_write("fifth")
    attempt(engine.destroy)
    return said


def refused(folder):
    """Loads that do not fit are refused by name on all ranks, and leave the engine as it was."""
    jobs(2, first, folder=folder, stage=2)
    said = jobs(2, refuses, folder=folder)
    want = [[*["OptionsError"] * 2, "MissingError", *["MismatchError"] * 2, "CorruptError", None]] * 2
    return [] if said == want else [f"{said}, not {want}"]


def refuses(folder):
    said = []

    def attempt(call, *arguments):
        try:
            return call(*arguments)
        except Exception as e:
            said.append(type(e).__name__)

    engine = engine_of(2)
    known, deepspeed.__version__ = deepspeed.__version__, "9.1.0"
    attempt(importlib.reload, cairn.deepspeed)
    deepspeed.__version__ = known
    attempt(cairn.deepspeed.load, engine_of(0, attach=False), folder)
    train(engine, 3)
    net = engine.module
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.register_buffer("other", torch.zeros(1))
    attempt(cairn.deepspeed.load, engine, folder)
    del net.other, net.seen
    attempt(cairn.deepspeed.load, engine, folder)
    net.register_buffer("seen", torch.zeros(2))
    attempt(cairn.deepspeed.load, engine, folder)
    net.seen = before["seen"]
    if dist.get_rank() == 0:
        damage(glob.glob(folder + "/global_step4/*rank_1_*optim_states.pt")[0])
    dist.barrier()
    attempt(cairn.deepspeed.load, engine, folder)
    said.append(attempt(cairn.deepspeed.load, engine, folder + "-that-is-not-there")[0])
    if engine.global_steps != 3 or any(not torch.equal(v, before[k]) for k, v in net.state_dict().items()):
        said.append("a load that was refused has changed the engine")
    engine.destroy()
    return said


def damage(path):
    """Flips a bit in the largest tensor of a file."""
    with zipfile.ZipFile(path) as z:
        largest = max((i for i in z.infolist() if "/data/" in i.filename), key=lambda i: i.file_size)
    with open(path, "r+b") as f:
        f.seek(largest.header_offset + 26)
        at = largest.header_offset + 30 + sum(int.from_bytes(f.read(2), "little") for _ in "ne")  # the name, the extra
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
