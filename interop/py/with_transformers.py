"""Trainings with the Trainer of Hugging Face that save through cairn.transformers."""

import contextlib
import os
import signal

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import cairn
import cairn.torch
import cairn.transformers
import interrupt

STEPS, PER_EPOCH, SAVE = 15, 6, 4


class Interrupted(Exception):
    pass


class Stop(TrainerCallback):
    """Stops before a step."""

    def __init__(self, step, how):
        self.step, self.how = step, how

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Interrupted


def train(folder, stop=None, how=None, resume=False, ranks=1, to=None, **more):
    """Returns what the Trainer has logged, by step."""
    if ranks > 1:  # as torchrun does
        rank = str(torch.distributed.get_rank())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, attention_dropout=0.2, tie_word_embeddings=True)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (PER_EPOCH * 4, 12))]
    args = TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=4 // ranks, learning_rate=1e-2, logging_steps=1, save_steps=SAVE,
        save_total_limit=2, warmup_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, **more)
    checkpoints = cairn.transformers.CheckpointCallback(to)
    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=data, callbacks=[checkpoints, Stop(stop, how)])
    with contextlib.suppress(Interrupted):
        trainer.train(resume_from_checkpoint=checkpoints.resume(trainer) if resume else None)
    cairn.torch.close()
    return {e["step"]: (e["loss"], e["grad_norm"], e["learning_rate"]) for e in trainer.state.log_history if "loss" in e}


def resumed(folder, how=None, stop=10, ranks=1, **more):
    """Trains undisturbed, and again with an interruption. Returns what differs."""
    if how == "kill":  # first, because autograd does not survive a fork
        interrupt.killed(lambda: train(folder + "/run", stop=stop, how=how, **more))
    else:
        train(folder + "/run", stop=stop, ranks=ranks, **more)
    want = train(folder + "/undisturbed", ranks=ranks, **more)
    got = train(folder + "/run", resume=True, ranks=ranks, **more)
    wrong = [] if list(got) == list(range(1, STEPS + 1)) else [f"the steps {list(got)}"]
    wrong += [f"step {step}: {got[step]}, not {want[step]}" for step in got if got[step] != want[step]]
    left = sorted(os.listdir(folder + "/run"))
    if left != ["checkpoint-12", "checkpoint-15"]:
        wrong.append(f"save_total_limit=2 left {left}")
    return wrong


def damaged(folder):
    """Returns the error of a load of a checkpoint with a byte that has changed."""
    train(folder)
    interrupt.damage(cairn.latest(folder))
    try:
        train(folder, resume=True)
    except cairn.CairnError as e:
        return type(e).__name__
    return "nothing"


def refused(folder):
    """Returns the error of a Trainer that saves the best model itself, and of one that limits checkpoints in object storage."""
    for options in ({"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "no"}, {"to": "s3://bucket/run"}):
        try:
            train(folder, **options)
            return "nothing"
        except cairn.CairnError as e:
            if not isinstance(e, cairn.OptionsError):
                return type(e).__name__
    return "OptionsError"
