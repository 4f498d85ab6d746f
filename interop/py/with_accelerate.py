"""Trainings with Accelerate that save through cairn.accelerate, and the recipe of docs/frameworks.md."""

import glob
import os
import sys
import unittest.mock
import warnings

import accelerate
import torch
from accelerate.utils import DataLoaderConfiguration, FullyShardedDataParallelPlugin, ProjectConfiguration

import cairn
import cairn.accelerate
import cairn.torch
import interrupt
import with_transformers  # noqa: F401 -- makes accelerate use FSDP on CPUs too

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "examples"))

import recipes

STEPS, PER_EPOCH = 12, 3


class Seen:
    """An object of register_for_checkpointing. Its state has values and tensors, and differs from rank to rank."""

    def __init__(self):
        self.losses, self.mean, self.rank = [], {}, os.environ.get("RANK")

    def add(self, step, model):
        self.losses.append(step)
        self.mean = {(step, "weight"): torch.full((3,), float(step)), "of": {"w": torch.ones(2) * step}}

    def state_dict(self):
        return {"losses": self.losses, "mean": self.mean, "rank": self.rank}

    def load_state_dict(self, state):
        self.losses, self.mean = state["losses"], state["mean"]


class Job:
    """A training with Accelerate. kind is "plain", "ddp" or "fsdp"."""

    def __init__(self, ranks=1, kind="plain", stock=False, dropout=0.2, project=None, stateful=False, limit=None,
                 bare=False):
        if ranks > 1:  # as torchrun does
            rank = str(torch.distributed.get_rank())
            os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                              MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        options = {"cpu": True, "dataloader_config": DataLoaderConfiguration(
            split_batches=True, use_seedable_sampler=True, use_stateful_dataloader=stateful)}
        if kind == "fsdp":
            options["fsdp_plugin"] = FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Linear"],
                state_dict_type="SHARDED_STATE_DICT")
        if project:
            options["project_config"] = ProjectConfiguration(project, automatic_checkpoint_naming=True,
                                                             total_limit=limit)
        self.accelerator = (accelerate.Accelerator if stock else cairn.accelerate.Accelerator)(**options)
        if kind == "fsdp":
            accelerate.PartialState._shared_state["distributed_type"] = accelerate.DistributedType.FSDP
        accelerate.utils.set_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(dropout),
                                    # which sees the rows of one rank, as dropout does
                                    torch.nn.BatchNorm1d(8) if dropout else torch.nn.Identity(),
                                    torch.nn.Linear(8, 1))
        if kind == "fsdp":
            model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
        rows = torch.utils.data.TensorDataset(torch.randn(PER_EPOCH * 8, 4))
        loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
        self.model, self.optimizer, self.schedule, self.loader = self.accelerator.prepare(model, optimizer, schedule,
                                                                                          loader)
        self.seen = Seen()
        if not bare:
            self.accelerator.register_for_checkpointing(self.seen)
        if self.accelerator.num_processes > 1:  # a training of another number of ranks draws other numbers
            torch.manual_seed(torch.distributed.get_rank())
        if kind == "fsdp" and not any(hasattr(p, "device_mesh") for p in self.model.parameters()):
            raise AssertionError("the model is not sharded")

    def train(self, first=0, end=STEPS, stateful=False):
        """Trains, and returns the losses by step. With stateful, the data loader itself goes on."""
        losses, step = {}, first
        for epoch in range(first // PER_EPOCH, STEPS // PER_EPOCH):
            self.loader.set_epoch(epoch)
            loader = self.loader
            if skip := (0 if stateful else step % PER_EPOCH):
                loader = self.accelerator.skip_first_batches(self.loader, skip)
            for (rows,) in loader:
                loss = self.model(rows).square().mean()
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                self.accelerator.step += 1
                losses[step] = self.accelerator.reduce(loss.detach(), "mean").item()
                self.seen.add(step, self.model)
                step += 1
                if step == end and step % PER_EPOCH:
                    return losses
            if step == end:
                break
        return losses


def undisturbed(**options):
    """Returns the losses of a training that does not save."""
    return Job(**options).train()


def saved(folder, end, **options):
    """Trains to a step, and begins a save. The process is killed when this returns. Returns the losses."""
    job = Job(**options)
    losses = job.train(end=end, stateful=options.get("stateful", False))
    job.accelerator.save_state(None if options.get("project") else folder)
    return losses


def resumed(folder, first, ended=True, **options):
    """Loads a checkpoint, trains on, saves and ends. Returns the losses."""
    job = Job(**options)
    if (before := job.loader.iteration) != 0:
        raise AssertionError(f"the loader has {before} epochs")
    job.accelerator.load_state(None if options.get("project") else folder)
    if job.seen.losses != list(range(first)) or set(job.seen.mean) != {(first - 1, "weight"), "of"}:
        raise AssertionError(f"the registered object has {vars(job.seen)}")
    if job.accelerator.step != first or job.schedule.scheduler.last_epoch == 0:
        raise AssertionError(f"step {job.accelerator.step}, scheduler {job.schedule.state_dict()}")
    if not options.get("stock") and job.loader.iteration != first // PER_EPOCH:
        raise AssertionError(f"the loader has {job.loader.iteration} epochs")
    losses = job.train(first, stateful=options.get("stateful", False))
    if ended:
        job.accelerator.save_state(None if options.get("project") else folder + "-end")
        job.accelerator.end_training()
        cairn.torch.close()
    return losses
