"""Trainings with Lightning that save through cairn.lightning."""

import contextlib
import os
import signal
import unittest.mock
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import cairn
import cairn.lightning
import cairn.torch
import cairn.torch._removal
import interrupt

BATCHES = 4  # of an epoch


class Interrupted(Exception):
    pass


class Module(LightningModule):
    """Stops before a step, and notes the losses of all others."""

    def __init__(self, stop, how):
        super().__init__()
        self.save_hyperparameters({"width": 8, "names": ["a", "b"], "nothing": {}})
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(),
                                       torch.nn.Linear(8, 1))
        self.stop, self.how, self.losses, self.found = stop, how, {}, None

    def training_step(self, batch, index):
        step = self.trainer.current_epoch * BATCHES + index
        if step == self.stop:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Interrupted
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.losses[step] = loss.item()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)}

    def on_save_checkpoint(self, checkpoint):
        checkpoint["extra"] = extra()

    def on_load_checkpoint(self, checkpoint):
        self.found = plain(checkpoint["extra"])


def extra():
    """Values of a state beside tensors in dicts."""
    return {"empty": {}, "list": [], "pair": (torch.arange(3), "x"),
            "by": {1: "one", (2, 3): "two", None: torch.ones(1)}, "set": {1, 2},
            "deep": [{"t": torch.zeros(2, dtype=torch.bfloat16), "n": None}, [torch.tensor(5)]],
            "size": torch.Size([1, 2])}


def plain(v):
    """Returns a text of a value. The order of dicts does not count."""
    if isinstance(v, dict):
        return str(sorted((repr(k), plain(x)) for k, x in v.items()))
    return f"{type(v).__name__}{[plain(x) for x in v]}" if isinstance(v, (list, tuple)) else repr(v)


def train(folder, epochs=5, stop=None, how=None, resume=False, background=True, ranks=1, keep=1, run=None):
    if ranks > 1:  # as torchrun does
        rank = str(torch.distributed.get_rank())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, GROUP_RANK="0", WORLD_SIZE=str(ranks),
                          LOCAL_WORLD_SIZE=str(ranks),
                          TORCHELASTIC_RUN_ID="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(BATCHES * 6, 4), torch.randn(BATCHES * 6, 1))
    module = Module(stop, how)
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, monitor="step", mode="max", save_top_k=keep, filename="{step}")],
        plugins=[cairn.lightning.CheckpointIO(background=background, run=run)],
    )
    with contextlib.suppress(Interrupted):
        trainer.fit(module, DataLoader(data, batch_size=6 // ranks),
                    ckpt_path=cairn.latest(folder, wait=True) if resume else None)
    if resume and module.found != plain(extra()):
        raise AssertionError(f"the state had {plain(extra())}; it has {module.found}")
    cairn.torch.close()
    return module.losses


def resumed(folder, how=None, background=True, ranks=1):
    """Trains undisturbed, and again with an interruption. Returns the differences."""
    stop = 3 * BATCHES + 1
    if how == "kill":  # first, because autograd does not survive a fork
        interrupt.killed(lambda: train(folder + "/run", stop=stop, how=how, background=background))
    else:
        train(folder + "/run", stop=stop, background=background, ranks=ranks)
    want = train(folder + "/undisturbed", background=background, ranks=ranks)
    got = train(folder + "/run", resume=True, background=background, ranks=ranks)
    # A process that is killed at once may take its last save with it.
    first = [3 * BATCHES, 2 * BATCHES] if how == "kill" else [3 * BATCHES]
    wrong = [] if min(got) in first and len(got) == 5 * BATCHES - min(got) else [f"the steps {sorted(got)} after the "
                                                                                 "interruption"]
    wrong += [f"step {step}: loss {loss}, not {want[step]}" for step, loss in got.items() if loss != want[step]]
    left = sorted(os.listdir(folder + "/run"))
    if how != "kill" and left != ["step=12.ckpt", "step=20.ckpt"]:  # Lightning keeps the one that it went on with
        wrong.append(f"save_top_k=1 left {left}")
    return wrong


def damaged(folder):
    """Returns the error of a load of a checkpoint with a byte that has changed."""
    train(folder, epochs=1)
    interrupt.damage(cairn.latest(folder))
    try:
        train(folder, resume=True)
    except cairn.CairnError as e:
        return type(e).__name__
    return "nothing"


class Point:
    """An object of a class that torch does not know."""

    def __init__(self, x):
        self.x = x


def objects(folder):
    """Returns the problems with pickled objects."""
    path = folder + "/x.ckpt"
    io = cairn.lightning.CheckpointIO()
    io.save_checkpoint({"point": Point(3), "global_step": 7}, path)
    wrong = []
    with contextlib.suppress(cairn.RepresentError):
        wrong.append(f"a pickle was loaded: {io.load_checkpoint(path)}")
    for got in (io.load_checkpoint(path, weights_only=False),
                cairn.lightning.CheckpointIO(allow_pickle=True).load_checkpoint(path)):
        if got["point"].x != 3 or got["global_step"] != 7:
            wrong.append(f"loaded {got}")
    with cairn.open(path) as c:
        if c.step != 7:
            wrong.append(f"step {c.step}")
    return wrong


def removed(folder):
    """Returns the problems with the removal of checkpoints that are URLs."""
    path = os.path.abspath(folder) + "/x.ckpt"
    wrong = []
    for pending in (False, True):
        io = cairn.lightning.CheckpointIO()
        io.save_checkpoint({"w": torch.ones(3)}, "file://" + path)
        if not pending:
            io.teardown()
            wrong += [] if os.path.isdir(path) else ["it was not saved"]
        io.remove_checkpoint("file://" + path)  # if its save is under way, when that is complete
        io.teardown()
        if os.path.lexists(path):
            wrong.append(f"a checkpoint is left, pending: {pending}")
    with unittest.mock.patch.object(cairn.torch._removal, "remove_one") as remove:
        io.remove_checkpoint("s3://bucket/x.ckpt")
        io.teardown()
    if remove.mock_calls != [unittest.mock.call("s3://bucket/x.ckpt", force=True)]:
        wrong.append(f"the calls were {remove.mock_calls}")
    return wrong


def in_a_run(folder):
    """Returns the problems of trainings in runs, with a policy and without."""
    wrong = []

    def check(name, want, **options):
        run = cairn.Run(f"{folder}/{name}", remote=f"{folder}/{name}-remote", **options)
        train(run.path, run=run)
        got = {c.step: c.copies for c in run.checkpoints()}
        if got != want:
            wrong.append(f"{name}: there are {got}")
        return run

    # The value that ModelCheckpoint monitors, here the step, is a metric.
    run = check("policy", {4: "local", 16: "both", 20: "both"}, keep="last 2, best 1 by step",
                keep_remote="best 2 by highest step")
    if metrics := [c.metrics for c in run.checkpoints() if c.metrics != {"step": c.step}]:
        wrong.append(f"metrics {metrics}")
    run = check("top", {20: "both"})  # save_top_k=1 removes both copies
    if (path := run.latest()) != os.path.join(run.path, "step=20.ckpt"):
        wrong.append(f"the newest is {path}")
    io = cairn.lightning.CheckpointIO(run=run)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name in ("a.ckpt", "b.ckpt"):
            io.save_checkpoint({"w": torch.ones(3)}, f"{folder}/elsewhere/{name}")
        io.teardown()
    texts = [str(w.message) for w in said]
    if [text.partition(" ")[0] for text in texts] != ["a.ckpt"] or not os.path.isdir(f"{folder}/elsewhere/b.ckpt"):
        wrong.append(f"checkpoints outside of the run: {texts}")
    return wrong


def goes_back(folder):
    """Returns the problems after a training that goes on from an older checkpoint of its run."""
    run, wrong = cairn.Run(folder), []

    def save(io, name, step):
        io.save_checkpoint({"global_step": step, "w": torch.full((3,), float(step))}, os.path.join(run.path, name))

    def check(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got}; want {want}")

    first = cairn.lightning.CheckpointIO(run=run)
    for step in 1, 2, 3:
        save(first, f"step={step}.ckpt", step)
        save(first, "last.ckpt", step)  # it is replaced
    first.teardown()
    check("the run", [c.name for c in run.checkpoints()], ["step=1.ckpt", "step=2.ckpt", "step=3.ckpt", "last.ckpt"])

    second, path = cairn.lightning.CheckpointIO(run=run), os.path.join(run.path, "step=3.ckpt")
    second.load_checkpoint(os.path.join(run.path, "step=2.ckpt"))
    save(second, "step=3.ckpt", 3)
    check("the new save of step 3", second.load_checkpoint(path)["global_step"], 3)
    check("it has a folder of its own", os.path.isdir(path + "~2"), True)
    save(second, "step=4.ckpt", 4)
    second.remove_checkpoint(path)
    second.teardown()
    check("the folder after the removal", os.path.exists(path + "~2"), False)
    check("the line that was left", [c.name for c in run.checkpoints() if c.left], ["step=3.ckpt", "last.ckpt"])
    return wrong


def failed(folder):
    """Returns the problems after a save in the background that fails."""
    io = cairn.lightning.CheckpointIO()
    good = folder + "/good.ckpt"
    io.save_checkpoint({"w": torch.ones(3)}, good)
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/file", "w"):
        pass
    wrong = ["the error of a save was not raised"]
    try:  # any of these may be the first to see it
        io.save_checkpoint({"w": torch.zeros(3)}, folder + "/file/bad.ckpt")
        io.remove_checkpoint(good)  # as save_top_k does
        io.teardown()
    except (cairn.CairnError, OSError):
        wrong.clear()
    io.teardown()
    if not torch.equal(io.load_checkpoint(good)["w"], torch.ones(3)):
        wrong.append("the checkpoint before it is lost")
    return wrong


def sharded(folder):
    """Returns the error of a save of a tensor of which this rank has a part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    t = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    try:
        cairn.lightning.CheckpointIO().save_checkpoint({"state_dict": {"w": t}}, folder + "/x.ckpt")
    except cairn.CairnError as e:
        return type(e).__name__
    return "nothing"
