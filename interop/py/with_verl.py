"""Trainings with verl's checkpoint manager for FSDP, and with cairn.verl in its place.

verl is unchanged: its manager, its handler for SFT, its entry points. Its trainer for PPO needs Ray and GPUs, so a loop
here saves and loads in the same order.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types
import unittest.mock

import tomllib

import verl_stand_ins  # noqa: F401 -- verl imports packages that are not here

# isort: split
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from verl.trainer.config import CheckpointConfig
from verl.utils.checkpoint.checkpoint_handler import CheckpointHandler
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

import cairn
import cairn.torch
import cairn.verl

MANAGERS = {"verl": FSDPCheckpointManager, "cairn": cairn.verl.FSDPCheckpointManager}
CONTENTS = ("model", "optimizer", "extra")


def build(fsdp=2, dropout=0.2, wrap=lambda model: model):
    """Returns a model, its optimizer and its scheduler."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, attention_dropout=dropout, architectures=["LlamaForCausalLM"])
    model = wrap(LlamaForCausalLM(config))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    if fsdp == 2:
        for layer in [m for m in model.modules() if isinstance(m, LlamaDecoderLayer)]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = FullyShardedDataParallel(model, device_mesh=mesh, device_id=torch.device("cpu"),
                                         auto_wrap_policy=ModuleWrapPolicy({LlamaDecoderLayer}),
                                         use_orig_params=fsdp == "1 with original parameters")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(dist.get_rank())
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def step(model, optimizer, scheduler, number):
    """Trains for a step, whose data does not depend on the number of ranks. Returns the loss of all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows = torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(number))
    rows = rows[rank * 4 // ranks:(rank + 1) * 4 // ranks]
    loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    mean = loss.detach() / ranks
    dist.all_reduce(mean)
    return mean.item()


def train(folder, manager="cairn", end=9, saves=(), kill=None, later=False, load="auto", keep=None, **more):
    """Trains, and returns the losses by step. It goes on with the checkpoint that verl finds.

    With later, saves are asynchronous. In the save of the step kill all ranks are killed, before the trainer has saved
    the state of the data.
    """
    root = os.path.abspath(folder)
    job = build(**more)
    checkpoints = MANAGERS[manager](*job, None, CheckpointConfig(async_save=later))
    found, first, losses = find_latest_ckpt_path(root), 0, {}
    if load and found:
        first = int(found.rpartition("_")[2])
        checkpoints.load_checkpoint(f"{found}/actor", del_local_after_load=True)
    for number in range(first, end):
        losses[number] = step(*job, number)
        if number + 1 in saves:
            at = f"{root}/global_step_{number + 1}"
            checkpoints.save_checkpoint(f"{at}/actor", None, number + 1, keep)
            if kill == number + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            trainer_saves(at, later)
            trainer = types.SimpleNamespace(total_training_steps=end)
            cairn.verl.CheckpointCallback().on_save(trainer, number + 1, at, later)
    cairn.torch.close()
    return losses


def trainer_saves(at, later=False):
    """Does what the trainer for PPO does when the managers have saved."""
    if dist.get_rank() == 0:
        os.makedirs(at, exist_ok=True)
        torch.save({"position": 7}, f"{at}/data.pt")
        if not later:
            root, _, number = at.rpartition("/global_step_")
            with open(f"{root}/latest_checkpointed_iteration.txt", "w") as f:
                f.write(number)
    dist.barrier()


def latest(folder):
    """Returns the step that verl would go on with, or None."""
    found = find_latest_ckpt_path(os.path.abspath(folder))
    return None if found is None else int(found.rpartition("_")[2])


def tracked(folder):
    """Returns problems of asynchronous saves of an actor and a critic: the step is noted when both are complete."""
    wrong, root = [], os.path.abspath(folder)

    def want(step, seconds, when):
        end = time.monotonic() + seconds
        while (got := latest(root)) != step and time.monotonic() < end:
            time.sleep(0.1)
        if got != step:
            wrong.append(f"{when}: latest_checkpointed_iteration.txt has {got}, not {step}")
        dist.barrier()

    def stays(step, when):
        time.sleep(2)
        want(step, 0, when)

    jobs = {part: build() for part in ("actor", "critic")}
    managers = {part: MANAGERS["cairn"](*job, None, CheckpointConfig(async_save=True)) for part, job in jobs.items()}
    last = None
    for number in (1, 2):
        at = f"{root}/global_step_{number}"
        managers["actor"].save_checkpoint(f"{at}/actor", None, number, 1)
        stays(last, f"step {number} of the actor")
        managers["critic"].save_checkpoint(f"{at}/critic", None, number, 1)
        stays(last, f"step {number} of the critic")
        trainer_saves(at, later=True)
        want(last := number, 30, f"step {number} of the trainer")
    # a step that is saved again has an older file of the trainer
    managers["actor"].save_checkpoint(f"{root}/global_step_1/actor", None, 1, 1)
    stays(2, "step 1 once more")
    cairn.torch.close()
    left = [f"{at}/{part}" for at in ("global_step_1", "global_step_2") for part in jobs
            if os.path.exists(f"{root}/{at}/{part}/cairn.json")]
    if left != ["global_step_1/actor", "global_step_1/critic", "global_step_2/actor", "global_step_2/critic"]:
        wrong.append(f"max_ckpt_to_keep=1 left {left}")
    return wrong


def last(folder):
    """Returns problems of the callback of the trainer, which returns when verl would go on with the last step."""
    wrong, root = [], os.path.abspath(folder)
    job, trainer = build(), types.SimpleNamespace(total_training_steps=2)
    checkpoints = MANAGERS["cairn"](*job, None, CheckpointConfig(async_save=True))
    callback = cairn.verl.CheckpointCallback()
    for number in (1, 2):
        at = f"{root}/global_step_{number}"
        checkpoints.save_checkpoint(f"{at}/actor", None, number)
        trainer_saves(at, later=True)
        callback.on_save(trainer=trainer, global_step=number, checkpoint_dir=at, async_save=True)
    if latest(root) != 2:
        wrong.append(f"latest_checkpointed_iteration.txt has {latest(root)} after the last step")
    with unittest.mock.patch.object(cairn.verl, "_PATIENCE", 1):
        got = error_of(lambda: callback.on_save(trainer, 3, f"{root}/global_step_3", async_save=True))
    if not all(e.startswith("IncompleteError: ") for e in got):
        wrong.append(f"a last step that is not saved: {got}")
    cairn.torch.close()
    return wrong


def sft(folder):
    """Returns problems of verl's handler for SFT, which notes the step as soon as a save returns."""
    wrong, root = [], os.path.abspath(folder)

    def handler(job):
        engine = types.SimpleNamespace(is_mp_src_rank_with_outputs=lambda: True, get_data_parallel_rank=dist.get_rank)
        manager = MANAGERS["cairn"](*job, None, CheckpointConfig(async_save=True))
        engine.save_checkpoint, engine.load_checkpoint = manager.save_checkpoint, manager.load_checkpoint
        data = types.SimpleNamespace(state_dict=lambda: {"position": 7}, load_state_dict=lambda state: None)
        return CheckpointHandler(engine, data, default_local_dir=root, max_ckpt_to_keep=2)

    job = build()
    os.makedirs(root, exist_ok=True)
    checkpoints = handler(job)
    for number in range(4):
        step(*job, number)
        checkpoints.save_checkpoint(number + 1)
        with cairn.open(f"{root}/global_step_{number + 1}") as c:
            if "random.ranks" not in c:
                wrong.append(f"step {number + 1} has the names {list(c)}")
    want = step(*job, 4)
    job = build()
    checkpoints = handler(job)
    first = checkpoints.load_checkpoint()
    got = step(*job, first)
    if (first, got) != (4, want):
        wrong.append(f"step {first} has the loss {got}, not {want}")
    cairn.torch.close()
    left = sorted(name for name in os.listdir(root) if name.startswith("global_step"))
    return wrong + ([f"max_ckpt_to_keep=2 left {left}"] if left != ["global_step_3", "global_step_4"] else [])


def exported(folder, fsdp=2):
    """Returns differences of the folders for from_pretrained of verl and of cairn, also of a second save of a step."""
    wrong, root, weights = [], os.path.abspath(folder), {}
    for name, manager in MANAGERS.items():
        job = build(fsdp)
        checkpoints = manager(*job, None, CheckpointConfig(save_contents=[*CONTENTS, "hf_model"]))
        for number in range(2):
            step(*job, number)
            checkpoints.save_checkpoint(f"{root}/{name}/global_step_1/actor", None, 1)
        at = f"{root}/{name}/global_step_1/actor/huggingface"
        weights[name] = load_file(f"{at}/model.safetensors")
        LlamaForCausalLM.from_pretrained(at)
    cairn.torch.close()
    for name in weights["verl"].keys() | weights["cairn"].keys():
        a, b = weights["verl"].get(name), weights["cairn"].get(name)
        if a is None or b is None or not torch.equal(a, b):
            wrong.append(f"{name} differs")
    return wrong


def adapters(folder):
    """Returns problems of checkpoints that have only the adapters of a model, of verl and of cairn."""
    from peft import LoraConfig, get_peft_model

    wrong, root = [], os.path.abspath(folder)

    def peft(model):
        return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))

    for name, manager in MANAGERS.items():
        job = build(wrap=peft)
        step(*job, 0)
        at = f"{root}/{name}/global_step_1/actor"
        manager(*job, None, CheckpointConfig(save_lora_only=True)).save_checkpoint(at, None, 1)
        want = step(*job, 1)
        job = build(wrap=peft)
        MANAGERS["cairn"](*job, None, CheckpointConfig()).load_checkpoint(at)
        if (got := step(*job, 1)) != want:
            wrong.append(f"{name}: the loss {got}, not {want}")
        with cairn.open(at) as c:
            if more := [n for n in c if n.startswith("model.") and "lora_" not in n]:
                wrong.append(f"{name}: {more[0]} was saved")
    cairn.torch.close()
    return wrong


def error_of(call):
    """Returns the class and the text of an error of all ranks, or problems."""
    said = "nothing"
    try:
        call()
    except Exception as e:
        said = f"{type(e).__name__}: {e}"
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, said)
    return every


def refused(folder):
    """Returns the errors of all ranks, in the order of the cases."""
    root, out = os.path.abspath(folder), []
    job = build()
    checkpoints = MANAGERS["cairn"](*job, None, CheckpointConfig(async_save=True))
    checkpoints.save_checkpoint(f"{root}/global_step_1/actor", None, 1, 1)
    trainer_saves(f"{root}/global_step_1", later=True)

    # one rank cannot collect its state
    rank = dist.get_rank()
    with unittest.mock.patch.object(job[2], "state_dict", side_effect=OSError("no state")) if rank == 1 \
            else contextlib.nullcontext():
        out.append(error_of(lambda: checkpoints.save_checkpoint(f"{root}/global_step_2/actor", None, 2, 1)))
    # the folder cannot be made: the error comes with the next save, and the old checkpoint stays
    if rank == 0:
        with open(f"{root}/global_step_3", "w"):
            pass
    dist.barrier()
    out.append(error_of(lambda: (checkpoints.save_checkpoint(f"{root}/global_step_3/actor", None, 3, 1),
                                 checkpoints.save_checkpoint(f"{root}/global_step_4/actor", None, 4, 1))))
    out.append([str(latest(root)), str(os.path.exists(f"{root}/global_step_1/actor/cairn.json"))])
    # nothing is there, or not the optimizer, or there is none
    out.append(error_of(lambda: checkpoints.load_checkpoint(f"{root}/global_step_9/actor")))
    model = MANAGERS["cairn"](*job, None, CheckpointConfig(save_contents=["model"]))
    model.save_checkpoint(f"{root}/global_step_5/actor", None, 5)
    out.append(error_of(lambda: checkpoints.load_checkpoint(f"{root}/global_step_5/actor")))
    weights = MANAGERS["cairn"](*job, None, CheckpointConfig(load_contents=["model", "extra"]))
    out.append(error_of(lambda: weights.load_checkpoint(f"{root}/global_step_5/actor")))
    alone = MANAGERS["cairn"](job[0], None, None, None, CheckpointConfig())
    out.append(error_of(lambda: alone.save_checkpoint(f"{root}/global_step_6/actor", None, 6)))
    # files that verl has saved stay
    MANAGERS["verl"](*job, None, CheckpointConfig()).save_checkpoint(f"{root}/global_step_7/actor", None, 7)
    out.append(error_of(lambda: model.save_checkpoint(f"{root}/global_step_7/actor", None, 7)))
    cairn.torch.close()
    return out


def plugged(folder):
    """Returns what verl's entry points do, with the metadata of the package, for values of CAIRN_VERL."""
    os.makedirs(f"{folder}/cairn_ckpt-1.dist-info")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pyproject.toml"), "rb") as f:
        points = tomllib.load(f)["project"]["entry-points"]["verl.plugins"]
    with open(f"{folder}/cairn_ckpt-1.dist-info/entry_points.txt", "w") as f:
        f.write("[verl.plugins]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    with open(f"{folder}/cairn_ckpt-1.dist-info/METADATA", "w") as f:
        f.write("Metadata-Version: 2.1\nName: cairn-ckpt\nVersion: 1\n")
    code = ("import sys, types, verl_stand_ins, verl, verl.workers.engine.fsdp.transformer_impl as engine; "
            "from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback as build; "
            "callback = build(types.SimpleNamespace(trainer={})); "
            "print(engine.FSDPCheckpointManager.__module__, type(callback).__module__, 'cairn.verl' in sys.modules)")
    out = []
    for value, version in ((None, None), ("0", None), ("1", None), ("1", "0.99.0")):
        env = {k: v for k, v in os.environ.items() if k != "CAIRN_VERL"} | ({"CAIRN_VERL": value} if value else {})
        env["PYTHONPATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.path.abspath(folder),
                                             env["PYTHONPATH"]])
        first = "" if version is None else ("import verl_stand_ins, importlib.metadata as m; real = m.entry_points; "
                                            "m.entry_points = lambda **k: (setattr(__import__('sys').modules['verl'], "
                                            f"'__version__', '{version}'), real(**k))[1]; ")
        done = subprocess.run([sys.executable, "-c", first + code], env=env, capture_output=True, text=True)
        out.append((done.stdout or done.stderr.splitlines()[-1] + "\n").strip().splitlines()[-1])
    return out
