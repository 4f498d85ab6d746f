"""Trainings with TRL that save through cairn.transformers."""

import contextlib
import os
import secrets

import accelerate
import datasets
import peft
import tokenizers
import torch
import trl
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import cairn.torch
import cairn.transformers
import interrupt
from with_transformers import Interrupted, Stop

# Fingerprints of datasets are for its cache. dill 0.4 cannot pickle them with Python 3.14.
datasets.fingerprint.Hasher.hash = classmethod(lambda cls, value: secrets.token_hex(8))
WORDS = [f"w{i}" for i in range(60)]


class SFTTrainer(trl.SFTTrainer, cairn.transformers.Trainer):
    pass


def train(folder, stop=None, how=None, resume=False, ranks=1, stock=False, lora=False, **more):
    """Returns the losses by step, and the Trainer."""
    if ranks > 1:  # as torchrun does
        rank = str(torch.distributed.get_rank())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.manual_seed(1)
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), hidden_size=16, intermediate_size=32, pad_token_id=0,
                                         num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                                         attention_dropout=0.2, eos_token_id=1))
    rows = torch.randint(0, len(WORDS), (24, 12)).tolist()
    data = datasets.Dataset.from_dict({"text": [" ".join(WORDS[i] for i in row) for row in rows]})
    args = trl.SFTConfig(**{
        "output_dir": folder, "max_steps": 10, "per_device_train_batch_size": 4 // ranks, "learning_rate": 1e-2,
        "logging_steps": 1, "save_steps": 4, "use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True,
        "eval_strategy": "steps", "eval_steps": 2, "gradient_checkpointing": False, **more})
    trainer = (trl.SFTTrainer if stock else SFTTrainer)(
        model=model, args=args, train_dataset=data, eval_dataset=data.select(range(4)), processing_class=tokenizer,
        callbacks=[Stop(stop, how)], peft_config=peft.LoraConfig(r=2) if lora else None)
    with contextlib.suppress(Interrupted):
        trainer.train(resume_from_checkpoint=trainer.checkpoints.resume(trainer) if resume else None)
    cairn.torch.close()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return {e["step"]: e["loss"] for e in trainer.state.log_history if "loss" in e}, trainer


def resumed(folder, how=None, ranks=1, **more):
    """Trains with TRL alone, and again with cairn and an interruption. Returns the differences."""
    more = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True,
            "save_steps": 2, "ranks": ranks, **more}
    if how == "kill":  # first, because autograd does not survive a fork
        interrupt.killed(lambda: train(folder + "/run", stop=7, how=how, **more))
    else:
        train(folder + "/run", stop=7, **more)
    want, theirs = train(folder + "/stock", stock=True, **more)
    got, ours = train(folder + "/run", resume=True, **more)
    wrong = [] if list(got) == list(want) else [f"the steps {list(got)}"]
    wrong += [f"step {step}: {got[step]}, not {want[step]}" for step in got if got[step] != want[step]]
    if ours.state.best_global_step != theirs.state.best_global_step or ours.state.best_global_step == 10:
        wrong.append(f"the best steps are {ours.state.best_global_step}, {theirs.state.best_global_step}")
    a, b = theirs.model.state_dict(), ours.model.state_dict()
    wrong += [f"the best model has another {name}" for name in a if not torch.equal(a[name], b[name])]
    if ranks == 1 and not os.path.exists(folder + "/run/README.md"):
        wrong.append("TRL has written no model card")
    return wrong
