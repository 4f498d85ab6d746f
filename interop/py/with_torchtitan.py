"""Trainings of torchtitan's Llama that save through cairn.torchtitan, or through torchtitan's own manager.

Model, parallelism, optimizers, schedulers, data loader, configurations and managers are torchtitan's. The loop is here,
in the order of torchtitan's Trainer, which needs a GPU.
"""

import dataclasses
import importlib
import json
import logging
import os
import signal
import sys

import no_triton  # noqa: F401 -- before torchtitan

# isort: split
import torch
import torch.distributed as dist
import torchtitan.distributed.fsdp
import torchtitan.distributed.parallel_dims
import torchtitan.distributed.utils
from torchtitan.components.checkpointer import CheckpointManager as Stock
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

import cairn
import cairn.torch
import cairn.torch._job
import cairn.torchtitan

torchtitan.distributed.parallel_dims.device_type = "cpu"  # it would be cuda
torchtitan.distributed.fsdp.disable_fsdp_gradient_division = lambda model: None  # gloo cannot: gradients are means here
BATCH, LENGTH, STEPS = 4, 16, 12
MANAGERS = {"cairn": cairn.torchtitan.CheckpointManager, "stock": Stock}


class Numbers(torch.utils.data.IterableDataset):
    """The numbers of the samples of a data parallel rank."""

    def __init__(self, rank, ranks):
        self.next, self.ranks = rank, ranks

    def __iter__(self):
        while True:
            self.next += self.ranks
            yield self.next - self.ranks

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Job:
    """A rank that trains; it is the state of the Trainer, too.

    The model has so many replicas of its shards, and is cut into so many parts by tensor parallelism.
    """

    def __init__(self, base, manager="cairn", replicas=1, tensor=1, seed=1, **config):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(seed)
        spec = model_registry("debugmodel")
        shape = dataclasses.replace(spec.model, layers=spec.model.layers[:2])
        for layer in shape.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        set_llama3_sharding_config(shape, enable_sp=False)
        self.model = shape.build()
        with torch.no_grad():
            self.model.init_weights(buffer_device=torch.device("cpu"))
        self.part, self.parts = 0, 1  # of each batch
        if not config.get("create_seed_checkpoint"):
            parallelism = ParallelismConfig(data_parallel_replicate_degree=replicas, tensor_parallel_degree=tensor,
                                            enable_sequence_parallel=False, spmd_backend="partial_dtensor")
            torchtitan.distributed.utils.set_spmd_backend(parallelism.spmd_backend)
            dims = ParallelDims.from_config(parallelism, self.ranks)
            self.model = spec.parallelize_fn(
                self.model, parallel_dims=dims, training=TrainingConfig(mixed_precision_param="float32"),
                parallelism=parallelism, compile_config=CompileConfig(), ac_config=None, dump_folder=base)
            if dims.dp_enabled:
                mesh = dims.get_mesh("batch")
                self.part, self.parts = mesh.get_local_rank(), mesh.size()
        adam = default_adamw(lr=1e-2)
        adam.implementation = "for-loop"
        self.optimizers = adam.build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=3).build(optimizers=self.optimizers,
                                                                             training_steps=STEPS)
        self.loader = ParallelAwareDataloader(Numbers(self.part, self.parts), self.part, self.parts,
                                              batch_size=BATCH // self.parts)
        self.step = self.ntokens_seen = 0
        config = {"enable": True, "interval": 4, "last_save_model_only": False, **config}
        self.checkpointer = MANAGERS[manager].Config(**config).build(
            dataloader=self.loader, model_parts=[self.model], optimizers=self.optimizers,
            lr_schedulers=self.schedulers, states={"train_state": self},
            sd_adapter=spec.state_dict_adapter(shape, None), base_folder=base)

    def state_dict(self):
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state):
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]

    def train(self, stop=STEPS, kill=None, load_step=-1):
        """Returns the loss, the rate and the samples of this rank of each step."""
        self.checkpointer.load(step=load_step)
        samples, out = iter(self.loader), {}
        while self.step < stop:
            self.step += 1
            numbers = next(samples).tolist()
            # The samples of the step, also if the state of the loader was not loaded.
            mine = range((self.step - 1) * BATCH + self.part, self.step * BATCH, self.parts)
            x, y = tokens(mine)
            self.ntokens_seen += y.numel()
            self.optimizers.zero_grad()
            loss = cross_entropy_loss(self.model(x), y) / y.numel()
            loss.backward()
            self.checkpointer.maybe_wait_for_staging()
            rate = self.schedulers.schedulers[0].get_last_lr()[0]
            self.optimizers.step()
            self.schedulers.step()
            mean = loss.detach() / self.ranks
            dist.all_reduce(mean)
            out[self.step] = [mean.item(), rate, numbers]
            self.checkpointer.save(self.step, last_step=self.step == STEPS)
            if self.step == kill:
                self.checkpointer.maybe_wait_for_staging()
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
        return out

    def close(self):
        self.checkpointer.close()
        cairn.torch.close()


def tokens(numbers):
    made = [torch.randint(0, 2048, (LENGTH + 1,), generator=torch.Generator().manual_seed(n)) for n in numbers]
    whole = torch.stack(made)
    return whole[:, :-1], whole[:, 1:]


def train(folder, name, stop=STEPS, kill=None, load_step=-1, like=None, first=1, near=0.0, **config):
    """Trains in folder/name. Returns the differences from the training like, whose steps begin with first.

    With near, losses may differ so much, and the samples of a rank are not compared.
    """
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("cairn").addHandler(handler)
    if path := config.get("initial_load_path"):
        config["initial_load_path"] = os.path.abspath(path)
    job = Job(folder, folder=name, **config)
    steps = job.train(stop, kill, load_step)
    job.close()
    every = [None] * job.ranks
    dist.all_gather_object(every, {str(step): row for step, row in steps.items()})
    if job.rank != 0:
        return []
    if like is None:
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as f:
            json.dump(every, f)
        return said
    with open(f"{folder}/{like}.json", encoding="utf-8") as f:
        expected = json.load(f)
    wrong = list(said)
    if list(steps) != list(range(first, stop + 1)):
        wrong.append(f"{name}: the steps {list(steps)}, not {first} to {stop}")
    for got, want in zip(every, expected if not near else expected[:1] * job.ranks):
        for step, row in got.items():
            equal = row == want[step] if not near else \
                row[1] == want[step][1] and abs(row[0] - want[step][0]) <= near * want[step][0]
            if not equal:
                wrong.append(f"{name}: step {step} is {row}, not {want[step]}")
    return wrong


def seed(folder, name):
    """Saves a seed checkpoint."""
    job = Job(folder, folder=name, create_seed_checkpoint=True, last_save_model_only=True)
    job.checkpointer.save(0, last_step=True)
    job.close()


def exported(folder):
    """Compares the models that both managers export at the end, and a conversion of a checkpoint, bit for bit."""
    import safetensors.torch

    found = {}
    for manager in MANAGERS:
        train(folder, manager, manager=manager, last_save_model_only=True, last_save_in_hf=True)
        at = f"{folder}/{manager}/step-{STEPS}"
        found[manager] = safetensors.torch.load_file(f"{at}/model-00001-of-00001.safetensors")
    train(folder, "whole")
    with cairn.open(f"{folder}/whole/step-{STEPS:09}", recipe="titan-to-hf/llama",
                    variables={"heads": 16, "kv_heads": 16}) as c:
        found["recipe"] = {name: torch.from_numpy(c[name][:]) for name in c}
    want = found.pop("stock")
    wrong = [] if len(want) == 21 else [f"torchtitan exports {len(want)} tensors"]
    for how, tensors in found.items():
        wrong += [f"{how}: {name}" for name in want.keys() | tensors.keys()
                  if name not in want or name not in tensors or not torch.equal(want[name], tensors[name])]

    job = Job(folder, folder="from-hf", seed=2, initial_load_in_hf=True,
              initial_load_path=os.path.abspath(f"{folder}/stock/step-{STEPS}"))
    job.checkpointer.load()
    whole = Job(folder, folder="whole", seed=3)
    whole.checkpointer.load()
    pairs = zip(job.model.state_dict().items(), whole.model.state_dict().items())
    wrong += [f"initial_load_in_hf: {name}" for (name, a), (_, b) in pairs
              if not torch.equal(a.to_local(), b.to_local())]
    cairn.torch.close()
    return wrong


def options(folder):
    """Returns the problems of options of the configuration."""
    wrong = []

    def check(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got}, not {want}")

    def kept(name):
        if dist.get_rank() == 0 and name == "whole":
            cairn.Run(f"{folder}/whole").prune()  # the saver process may still be about to
        dist.barrier()
        return sorted(n.replace("step-000000", "") for n in os.listdir(f"{folder}/{name}") if n.startswith("step-"))

    train(folder, "whole", keep="last 1", remote=f"{folder}/remote", keep_remote="last 2")
    check("keep", kept("whole"), ["012"])
    check("keep_remote", kept("remote"), ["008", "012"])

    train(folder, "first", enable_first_step_checkpoint=True, keep_latest_k=0, stop=5)
    check("enable_first_step_checkpoint", kept("first"), ["001", "004"])
    wrong.extend(train(folder, "first", load_only=True, like="whole", first=5))
    check("load_only", kept("first"), ["001", "004"])

    # Back to step 4: the other line stays, and the training goes on with the newest checkpoint of the new line.
    train(folder, "back", keep_latest_k=0)
    wrong.extend(train(folder, "back", keep_latest_k=0, load_step=4, like="whole", first=5, stop=9))
    check("load_step", kept("back"), ["004", "008", "008~2", "012"])
    wrong.extend(train(folder, "back", keep_latest_k=0, like="whole", first=9))
    check("the line", cairn.Run(f"{folder}/back").latest(), os.path.abspath(f"{folder}/back/step-000000012~2"))

    wrong.extend(train(folder, "elsewhere", initial_load_path=f"{folder}/back/step-000000004",
                       initial_load_model_only=False, like="whole", first=5))

    job = Job(folder, folder="back", exclude_from_loading=["lr_scheduler", "dataloader"])
    job.checkpointer.load(4)
    check("exclude_from_loading", (job.step, job.schedulers.schedulers[0].last_epoch, job.loader.dataset.next),
          (4, 0, job.part))
    job.close()

    train(folder, "model", last_save_model_only=True, export_dtype="bfloat16")
    with cairn.open(f"{folder}/model/step-000000012") as c:
        check("last_save_model_only", sorted({str(t.dtype) for t in c.values()}), ["bfloat16"])
        check("the names", sorted(c), sorted(job.model.state_dict()))
    check("a load of it", raised(lambda: train(folder, "model")), ["MissingError", "load_step chooses an earlier one"])
    check("a step that is not there", raised(lambda: train(folder, "model", load_step=5)),
          ["NotFoundError", "no complete checkpoint of step 5"])
    check("two policies", raised(lambda: Job(folder, folder="x", keep="last 1", keep_latest_k=3)),
          ["ValueError", "set one of them"])
    check("a policy", raised(lambda: Job(folder, folder="x", keep="lst 1")), ["OptionsError", "lst 1"])
    cairn.torch.close()
    return wrong


def raised(call):
    """Returns the name of an error and, if it is there, a part of its text."""
    parts = ("load_step chooses an earlier one", "no complete checkpoint of step 5", "set one of them", "lst 1",
             "no state", "saver process")
    try:
        call()
    except Exception as e:
        return [type(e).__name__, *[p for p in parts if p in str(e)]]
    return []


def failures(folder):
    """Returns the problems after failures on rank 1, which are errors on all ranks."""
    def fail(*_):
        raise RuntimeError("no state")

    outcomes = {}
    job = Job(folder, folder="save")
    if job.rank == 1:
        job.loader.state_dict = fail
    outcomes["save"] = raised(job.train)
    job.close()

    job = Job(folder, folder="background")
    job.train(stop=4)
    job.checkpointer.maybe_wait_for_saving()
    job.step = 8
    saver = cairn.torch._job.job().saver.process.pid
    if job.rank == 1:
        os.kill(saver, signal.SIGSTOP)
    job.checkpointer.save(8)
    dist.barrier()
    if job.rank == 1:
        os.kill(saver, signal.SIGKILL)
    outcomes["close"] = raised(job.checkpointer.close)
    outcomes["close again"] = raised(job.checkpointer.close)
    job.close()

    job = Job(folder, folder="background")
    if job.rank == 1:
        job.schedulers.load_state_dict = fail
    outcomes["load"] = raised(job.checkpointer.load)
    job.close()
    job = Job(folder, folder="background", seed=2)  # the checkpoint before is good
    outcomes["load again"] = [job.checkpointer.load(), job.step]
    job.close()
    every = [None] * job.ranks
    dist.all_gather_object(every, outcomes)
    return every


def unknown():
    """Returns the errors for managers of other releases of torchtitan."""
    from torchtitan.components.checkpointer import base, dcp

    known, out = base.BaseCheckpointManager.__abstractmethods__, []
    base.BaseCheckpointManager.__abstractmethods__ = known | {"_load_checkpoint"}
    out.append(import_error())
    base.BaseCheckpointManager.__abstractmethods__ = known
    save = dcp.CheckpointManager.dcp_save
    dcp.CheckpointManager.dcp_save = lambda self, state_dict, path: None
    out.append(import_error())
    dcp.CheckpointManager.dcp_save = save
    sys.modules["torchtitan.components.checkpointer"] = None  # as before 0.3.0
    out.append(import_error())
    return out


def import_error():
    del sys.modules["cairn.torchtitan"]
    try:
        importlib.import_module("cairn.torchtitan")
    except Exception as e:
        sys.modules["cairn.torchtitan"] = cairn.torchtitan
        return f"{type(e).__name__}: {e}"
    return "no error"
