"""Trainings with Accelerate that save through cairn.accelerate."""

import glob
import os
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


def named(folder, ranks=1, kind="plain"):
    """Trains with automatic_checkpoint_naming, and returns the problems."""
    project, wrong = folder + "/project", []

    def found():
        return sorted(os.path.basename(path) for path in glob.glob(project + "/checkpoints/*"))

    try:
        Job(ranks, kind, project=project).accelerator.load_state()
        wrong.append("a checkpoint was found before the first save")
    except cairn.NotFoundError:
        reset()
    stock = Job(ranks, kind, stock=True, project=project)
    stock.train(end=3)
    stock.accelerator.save_state()
    reset()

    job = Job(ranks, kind, project=project, limit=2)
    try:
        job.accelerator.save_state()
        wrong.append("a save has replaced a checkpoint of Accelerate itself")
    except cairn.ExistsError:
        pass
    job.accelerator.load_state()  # of Accelerate itself
    if job.accelerator.save_iteration != 1 or job.seen.losses != [0, 1, 2]:
        wrong.append(f"after a load of Accelerate's: {job.accelerator.save_iteration}, {job.seen.losses}")
    handles = []
    for end in (6, 9):
        job.train(end - 3, end)
        handles.append(job.accelerator.save_state())
    if [os.path.basename(h.path) for h in handles] != ["checkpoint_1", "checkpoint_2"]:
        wrong.append(f"the paths are {handles}")
    job.accelerator._settle(last=True)
    if found() != ["checkpoint_1", "checkpoint_2"]:
        wrong.append(f"total_limit=2 left {found()}")
    if job.accelerator.is_main_process:
        os.makedirs(project + "/checkpoints/checkpoint_3/part")  # such as a save that was killed
    reset()

    job = Job(ranks, kind, project=project, limit=1)
    job.accelerator.load_state()
    if job.accelerator.save_iteration != 3 or job.seen.losses != list(range(9)):
        wrong.append(f"after a load of cairn's: {job.accelerator.save_iteration}, {job.seen.losses}")
    job.accelerator.save_state()
    job.accelerator.load_state(project + "/checkpoints/checkpoint_3")
    job.accelerator.save_state()
    job.accelerator._settle(last=True)
    if found() != ["checkpoint_4"]:
        wrong.append(f"total_limit=1 left {found()}")
    if (step := cairn.latest(project + "/checkpoints")) is None or not step.endswith("checkpoint_4"):
        wrong.append(f"the newest one is {step}")
    reset()
    return wrong


def reset():
    """Lets the next Accelerator of this process have other options."""
    cairn.torch.close()
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.GradientState._reset_state()


def stateful(folder, ranks=1):
    """A data loader with a state goes on itself. Returns the problems."""
    options = {"ranks": ranks, "kind": "ddp" if ranks > 1 else "plain", "stateful": True, "dropout": 0}
    want = undisturbed(**options)
    reset()
    losses = saved(folder, 7, **options)
    reset()
    losses |= resumed(folder, 7, **options)
    return [f"step {step}: {losses.get(step)}, not {want[step]}" for step in want if losses.get(step) != want[step]]


def several(folder):
    """Two models with an optimizer each, a gradient scaler, and a model without one. Returns the problems."""
    def make():
        accelerator = cairn.accelerate.Accelerator(cpu=True)
        models = [torch.nn.Linear(2, n) for n in (2, 3, 4)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models[:2]]
        accelerator.scaler = torch.amp.GradScaler("cpu")
        return accelerator, accelerator.prepare(*models, *optimizers)

    accelerator, (*models, first, second) = make()
    for model, optimizer in zip(models, (first, second)):
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
    accelerator.scaler.update(new_scale=128.0)
    accelerator.save_state(folder + "/a")
    again, (*loaded, third, fourth) = make()
    again.scaler.scale(torch.ones(1))
    again.load_state(folder + "/a", map_location="cpu")
    wrong = [f"{b}, not {a}" for m, n in zip(models, loaded) for a, b in zip(m.parameters(), n.parameters())
             if not torch.equal(a, b)]
    for a, b in ((first, third), (second, fourth)):
        want, got = a.state_dict()["state"], b.state_dict()["state"]
        wrong += [f"{got}, not {want}" for i in want
                  if not torch.equal(want[i]["momentum_buffer"], got[i]["momentum_buffer"])]
    if again.scaler.get_scale() != 128.0:
        wrong.append(f"the scale is {again.scaler.get_scale()}")
    again.end_training()
    accelerator.end_training()
    return wrong


def refused(folder):
    """Returns the errors of what is not supported, and of checkpoints that do not fit."""
    said, folder = [], os.path.abspath(folder)

    def wants(call):
        try:
            call()
            said.append("nothing")
        except cairn.CairnError as e:
            said.append(f"{type(e).__name__}: {str(e).replace(folder, '')}")

    job = Job()
    acc = job.accelerator
    acc.save_state(folder + "/a").result()
    wants(lambda: acc.save_state())
    wants(lambda: acc.load_state())
    wants(lambda: acc.load_state(folder + "/nothing"))
    wants(lambda: acc.save_state(folder + "/b", exclude_frozen_parameters=True))
    wants(lambda: acc.load_state(folder + "/a", {"mmap": True}, strict=False))
    hook = acc.register_save_state_pre_hook(lambda *_: None)
    wants(lambda: acc.save_state(folder + "/b"))
    hook.remove()
    acc.register_for_checkpointing(Seen())
    wants(lambda: acc.load_state(folder + "/a"))
    acc._custom_objects.clear()
    wants(lambda: acc.load_state(folder + "/a"))
    acc.register_for_checkpointing(job.seen)
    cairn.torch.save({"model": job.model}, folder + "/other")
    wants(lambda: acc.load_state(folder + "/other"))
    Job(stock=True).accelerator.save_state(folder + "/stock")
    wants(lambda: acc.save_state(folder + "/stock"))
    acc.save_state(folder + "/both").result()
    Job(stock=True).accelerator.save_state(folder + "/both")
    wants(lambda: acc.load_state(folder + "/both"))
    reset()
    job.seen.losses = [object.__new__(Seen)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        acc.save_state(folder + "/pickled").result()
        wants(lambda: acc.load_state(folder + "/pickled"))
    acc.load_state(folder + "/pickled", {"weights_only": False})
    if not isinstance(job.seen.losses[0], Seen):
        said.append(f"the registered object has {job.seen.losses}")
    interrupt.damage(folder + "/a")
    wants(lambda: acc.load_state(folder + "/a"))
    for kind in ("DEEPSPEED", "MEGATRON_LM", "FSDP", "XLA"):
        reset()
        with unittest.mock.patch.object(accelerate.Accelerator, "distributed_type", accelerate.DistributedType(kind)):
            wants(lambda: cairn.accelerate.Accelerator(cpu=True))
    for version in ("0.34.2", "2.0.0"):
        with unittest.mock.patch.object(accelerate, "__version__", version):
            wants(lambda: cairn.accelerate.Accelerator(cpu=True))
    return said


def failed(folder, ranks):
    """Saves fail on one rank, at the beginning and in the background. Returns the problems of this rank."""
    job = Job(ranks, "ddp")
    acc, wrong = job.accelerator, []

    class Broken(Seen):
        def state_dict(self):
            raise RuntimeError("broken")

    job.train(end=3)
    acc.save_state(folder + "/a")
    acc.register_for_checkpointing(Broken())  # of which rank 0 alone asks for the state
    try:
        acc.save_state(folder + "/b")
        wrong.append("a save has no error")
    except RuntimeError as e:
        wrong += [] if "broken" in str(e) else [f"the error is {e!r}"]
    except cairn.CairnError as e:
        wrong += [] if "broken" in str(e) else [f"the error is {e!r}"]
    acc._custom_objects.pop()
    if acc.is_main_process:
        job.accelerator.save_model(job.model, folder + "/other")  # which a save does not replace
    acc.wait_for_everyone()
    for last in (False, True):
        handle = acc.save_state(folder + "/other")
        try:
            if last:
                with unittest.mock.patch.object(accelerate.Accelerator, "end_training"):
                    acc.end_training()
            else:
                acc.save_state(folder + "/c")
            wrong.append(f"the error of {handle} was not raised")
        except (cairn.CairnError, OSError):
            pass
    acc.save_state(folder + "/c").result()
    acc.load_state(folder + "/a")
    if job.seen.losses != [0, 1, 2]:
        wrong.append(f"the registered object has {job.seen.losses}")
    cairn.torch.close()
    all_wrong = [None] * ranks
    torch.distributed.all_gather_object(all_wrong, wrong)
    return [f"rank {rank}: {text}" for rank, texts in enumerate(all_wrong) for text in texts]


def goes_back(folder):
    """Accelerate itself saves what was loaded from a checkpoint of cairn. Returns the problems."""
    saved(folder + "/a", 6)
    reset()
    want = resumed(folder + "/a", 6)
    reset()
    job = Job()
    job.accelerator.load_state(folder + "/a")
    accelerate.Accelerator.save_state(job.accelerator, folder + "/b")
    reset()
    got = resumed(folder + "/b", 6, stock=True)
    return [] if got == want else [f"the losses are {got}, not {want}"]
