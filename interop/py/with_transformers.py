"""Trainings with the Trainer of Hugging Face that save through cairn.transformers."""

import concurrent.futures
import contextlib
import os
import signal
import time
import unittest.mock
import warnings

import accelerate
import torch
import transformers.trainer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import cairn
import cairn.torch
import cairn.torch._removal
import cairn.transformers
import interrupt

STEPS, PER_EPOCH, SAVE = 15, 6, 4


def _fsdp_on_cpus():
    """Makes accelerate use FSDP on CPUs too, where it would use DDP."""
    make = accelerate.state.AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        make(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = accelerate.DistributedType.FSDP, fsdp_plugin

    accelerate.state.AcceleratorState.__init__ = init


_fsdp_on_cpus()


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


def train(folder, stop=None, how=None, resume=False, ranks=1, to=None, stock=False, own=False, trainers=None,
          callbacks=(), evaluates=False, **more):
    """Returns the losses that the Trainer has logged, by step. With stock, it saves itself; with own, it is the
    Trainer of cairn. trainers receives it."""
    if ranks > 1:  # as torchrun does
        rank = str(torch.distributed.get_rank())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, attention_dropout=0.2, tie_word_embeddings=True)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (PER_EPOCH * 4, 12))]
    args = TrainingArguments(**{
        "output_dir": folder, "max_steps": STEPS, "per_device_train_batch_size": 4 // ranks, "learning_rate": 1e-2,
        "logging_steps": 1, "save_steps": SAVE, "save_total_limit": 2, "warmup_steps": 3, "use_cpu": True,
        "report_to": [], "disable_tqdm": True, **more})
    checkpoints = cairn.transformers.CheckpointCallback(to)
    callbacks = [*([] if stock else [checkpoints]), Stop(stop, how), *callbacks]
    make = cairn.transformers.Trainer if own else Trainer
    trainer = make(model=LlamaForCausalLM(config), args=args, train_dataset=data, callbacks=callbacks,
                   eval_dataset=data[:8] if evaluates else None)
    if trainers is not None:
        trainers.append(trainer)
    with contextlib.suppress(Interrupted):
        if callable(resume):
            resume = resume()
        trainer.train(resume_from_checkpoint=checkpoints.resume(trainer) if resume == "call" else resume)
    cairn.torch.close()
    if more.get("fsdp") and not any(hasattr(p, "device_mesh") for p in trainer.model.parameters()):
        raise AssertionError("the model is not sharded")
    # the next training may shard in another way
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    for name in [name for name in os.environ if name.startswith(("FSDP_", "ACCELERATE_USE_FSDP"))]:
        del os.environ[name]
    return {e["step"]: (e["loss"], e["grad_norm"], e["learning_rate"]) for e in trainer.state.log_history
            if "loss" in e}


def resumed(folder, how=None, stop=10, ranks=1, resume="call", first=None, near=0.0, **more):
    """Trains undisturbed, and again with an interruption. Returns the differences.

    resume is the argument of the Trainer for the checkpoint to resume from: "call" is the result of the callback.
    first has other options until the interruption.
    """
    if how == "kill":  # first, because autograd does not survive a fork
        interrupt.killed(lambda: train(folder + "/run", stop=stop, how=how, **more))
    else:
        train(folder + "/run", stop=stop, ranks=ranks, **{**more, **(first or {})})
    want = train(folder + "/undisturbed", ranks=ranks, **more)
    if resume == "path":
        resume = folder + "/run/checkpoint-8"
    got = train(folder + "/run", resume=resume, ranks=ranks, **more)
    wrong = [] if list(got) == list(range(1, STEPS + 1)) else [f"the steps {list(got)}"]
    wrong += [f"step {step}: {got[step]}, not {want[step]}" for step in got
              if any(abs(a - b) > near * abs(b) for a, b in zip(got[step], want[step]))]
    left = sorted(os.listdir(folder + "/run"))
    if left != ["checkpoint-12", "checkpoint-15"]:
        wrong.append(f"save_total_limit=2 left {left}")
    return wrong


def damaged(folder):
    """Returns the error of a load of a checkpoint with a byte that has changed."""
    train(folder)
    interrupt.damage(cairn.latest(folder))
    try:
        train(folder, resume="call")
    except cairn.CairnError as e:
        return type(e).__name__
    return "nothing"


def refused(folder):
    """Returns the error of a Trainer that saves the best model itself, and of one with a limit beside the policy of its
    run."""
    for options in ({"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "no"},
                    {"to": cairn.Run(folder, keep="last 1")}):
        try:
            train(folder, **options)
            return "nothing"
        except cairn.CairnError as e:
            if not isinstance(e, cairn.OptionsError):
                return type(e).__name__
    return "OptionsError"


def in_a_run(folder, ranks=1):
    """Returns the problems of trainings in runs, with a policy and with save_total_limit."""
    wrong = []
    for name, limit, options, want in (
            ("policy", None, {"keep": "last 1, best 1 by highest epoch", "keep_remote": "last 3"},
             {8: "remote", 12: "both", 15: "both"}),
            ("limit", 2, {}, {12: "both", 15: "both"})):
        run = cairn.Run(f"{folder}/{name}", remote=f"{folder}/{name}-remote", **options)
        logged = train(f"{folder}/output", to=run, ranks=ranks, save_total_limit=limit)
        found = run.checkpoints()
        if (got := {c.step: c.copies for c in found}) != want:
            wrong.append(f"{name}: there are {got}")
        wrong += [f"step {c.step}: {c.metrics}, not {logged[c.step]}" for c in found
                  if (c.metrics["loss"], c.metrics["grad_norm"], c.metrics["learning_rate"]) != logged[c.step]]
        if ranks == 1 and list(train(f"{folder}/output", to=run, resume="call", save_total_limit=limit, max_steps=17)) \
                != list(range(1, 18)):
            wrong.append("the training did not go on")
    return wrong


def best(folder, ranks=1, **more):
    """Trains with save_strategy="best" and with "epoch". Returns the differences from the Trainer itself."""
    wrong = []
    for strategy in ("best", "epoch"):
        options = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True,
                   "save_strategy": strategy, "eval_strategy": "steps" if strategy == "best" else "epoch",
                   "eval_steps": 3, "save_total_limit": None, "evaluates": True, "ranks": ranks, **more}
        trainers = []
        for stock in (True, False):
            train(f"{folder}/{strategy}-{stock}", stock=stock, own=not stock, trainers=trainers, **options)
        want, got = (sorted(name for name in os.listdir(f"{folder}/{strategy}-{stock}") if "checkpoint" in name)
                     for stock in (True, False))
        if want != got or not got:
            wrong.append(f"{strategy}: the checkpoints are {got}, not {want}")
        theirs, ours = ({name: t.full_tensor() if hasattr(t, "full_tensor") else t
                         for name, t in trainer.model.state_dict().items()} for trainer in trainers)
        wrong += [f"{strategy}: {name}" for name in theirs if not torch.equal(theirs[name], ours[name])]
        if trainers[1].state.best_global_step in (None, trainers[1].state.global_step):
            wrong.append(f"{strategy}: the best step is {trainers[1].state.best_global_step}: the test shows nothing")
        for c in cairn.Run(f"{folder}/{strategy}-False").checkpoints():
            logged = {e["step"]: e["eval_loss"] for e in trainers[1].state.log_history if "eval_loss" in e}
            if c.metrics.get("eval_loss") != logged[c.step]:
                wrong.append(f"{strategy}: {c.name} has {c.metrics}, not {logged}")
    return wrong


def best_goes_on(folder, **more):
    """A training that is resumed keeps the best checkpoint of before, and loads it at the end. Returns the problems."""
    trainers = []
    options = {"trainers": trainers, "evaluates": True, "load_best_model_at_end": True, "eval_strategy": "steps",
               "eval_steps": 4, "metric_for_best_model": "eval_loss", "greater_is_better": True, "save_total_limit": 1,
               **more}
    train(folder + "/undisturbed", **options)
    train(folder + "/run", stop=10, **options)
    train(folder + "/run", resume="call", **options)
    want, got = trainers[0].model.state_dict(), trainers[2].model.state_dict()
    wrong = [name for name in want if not torch.equal(want[name], got[name])]
    left = sorted(name for name in os.listdir(folder + "/run") if "checkpoint" in name)
    if left != [os.path.basename(trainers[0].state.best_model_checkpoint)]:
        wrong.append(f"save_total_limit=1 left {left}")
    return wrong


def unsaved_best(folder):
    """The best model is one of a step without a save: the Trainer loads none. Returns the problems."""
    trainers = []
    train(folder, own=True, trainers=trainers, evaluates=True, load_best_model_at_end=True, save_steps=6, eval_steps=3,
          eval_strategy="steps", metric_for_best_model="eval_loss", greater_is_better=True)
    state = trainers[0].state
    return [] if state.best_global_step == 3 and state.best_model_checkpoint is None else [f"{state}"]


def callbacks_go_on(folder):
    """EarlyStoppingCallback goes on counting after an interruption. Returns the problems."""
    options = {"own": True, "evaluates": True, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2,
               "metric_for_best_model": "eval_loss", "greater_is_better": True, "load_best_model_at_end": True,
               "restore_callback_states_from_checkpoint": True, "save_total_limit": None}
    last = [max(train(f"{folder}/{name}", stop=stop, resume=resume,
                      callbacks=[EarlyStoppingCallback(early_stopping_patience=3)], **options))
            for name, stop, resume in (("undisturbed", None, False), ("run", 7, False), ("run", None, "call"))]
    return [] if last[0] == last[2] < STEPS else [f"the last steps are {last}"]


def pushed(folder, ranks=1, **more):
    """Trains with push_to_hub and a stand-in for the hub. Returns the problems."""
    pushes, wrong = [], []

    class Hub:
        def create_repo(self, name, **options):
            return unittest.mock.Mock(repo_id=f"someone/{name}")

        def upload_folder(self, folder_path, commit_message, ignore_patterns, **options):
            left = [name for name in os.listdir(folder_path) if not name.startswith("checkpoint-")]
            pushes.append((commit_message, sorted(left), {
                name: t.clone() for name, t in LlamaForCausalLM.from_pretrained(folder_path).state_dict().items()}))
            done = concurrent.futures.Future()
            done.set_result(None)
            return done

    with unittest.mock.patch.object(transformers.trainer, "hf_api", Hub):
        train(folder + "/run", own=True, ranks=ranks, push_to_hub=True, hub_always_push=True, save_total_limit=None,
              **more)
    if ranks > 1 and torch.distributed.get_rank():
        return [f"this rank has pushed {m}" for m, *_ in pushes]
    if [m for m, *_ in pushes] != [f"Training in progress, step {step}" for step in (4, 8, 12, 15)]:
        wrong.append(f"the pushes are {[m for m, *_ in pushes]}")
    for message, files, got in pushes:
        step = message.split()[-1]
        with cairn.open(f"{folder}/run/checkpoint-{step}", framework="torch") as c:
            want = c.load("model.", strip=True)
        wrong += [f"{message}: {name}" for name in want if not torch.equal(got[name], want[name])]
        if not {"config.json", "model.safetensors"} <= set(files):
            wrong.append(f"{message}: {files}")
    return wrong


def push_failed(folder):
    """A push whose model cannot be written is a warning. Returns the problems."""
    with unittest.mock.patch.object(transformers.trainer, "hf_api"), warnings.catch_warnings(record=True) as said, \
            unittest.mock.patch.object(cairn.transformers, "export", side_effect=OSError("no room")):
        warnings.simplefilter("always")
        logged = train(folder, own=True, push_to_hub=True, max_steps=5)
    said = [str(w.message) for w in said if "is not pushed: no room" in str(w.message)]
    return [] if said and max(logged) == 5 else [f"{logged}, {said}"]


def refused_trainers(folder):
    """Returns the errors of Trainers that ask for what cairn cannot do."""
    said = []
    for options in ({"push_to_hub": True, "hub_strategy": "checkpoint"}, {"save_strategy": "best", "own": False,
                    "metric_for_best_model": "loss", "eval_strategy": "no"}):
        try:
            with unittest.mock.patch.object(transformers.trainer, "hf_api"):
                train(folder, **{"own": True, **options})
            said.append("nothing")
        except cairn.CairnError as e:
            said.append(f"{type(e).__name__}: {e}")
    return said


def best_at_end(folder, ranks=1, **more):
    """Trains with load_best_model_at_end, and returns the problems of the model."""
    wrong = []
    for unit, keep in (("steps", None), ("epoch", None), ("steps", "last 1, best 1 by highest eval_loss")):
        run, path = None, f"{folder}/{unit}-{keep is None}"
        if keep is not None:
            run = cairn.Run(path, keep=keep)
        trainers = []
        train(path, to=run, ranks=ranks, trainers=trainers, evaluates=True, load_best_model_at_end=True,
              metric_for_best_model="eval_loss",
              greater_is_better=True,  # the first checkpoint is the best, whatever the machine computes
              eval_strategy=unit, save_strategy=unit, eval_steps=SAVE, save_total_limit=None if keep else 1, **more)
        state = trainers[0].state
        with cairn.open(f"{path}/checkpoint-{state.best_global_step}", framework="torch") as c:
            want = c.load("model.", strip=True)
        got = trainers[0].model.state_dict()
        got = {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in got.items()}
        wrong += [f"{path}: {name}" for name in want if not torch.equal(got[name], want[name])]
        if unit == "steps" and state.best_global_step == state.global_step:
            wrong.append(f"{path}: the last model is the best one: the test shows nothing")
    return wrong


def in_object_storage(folder):
    """Returns the problems with the checkpoints that save_total_limit removes from object storage."""
    callback = cairn.transformers.CheckpointCallback("s3://bucket/run?region=x")
    names = ["best", "checkpoint-4", "checkpoint-8", "checkpoint-12", "checkpoint-16"]
    found = [cairn.RunCheckpoint(name) for name in names]
    saved = unittest.mock.Mock(path="s3://bucket/run/checkpoint-12?region=x")
    with unittest.mock.patch.object(cairn.Run, "checkpoints", lambda run: found), \
            unittest.mock.patch.object(cairn.torch._removal, "remove_one") as remove:
        callback._remover.begin(None, lambda: callback._old(saved, 1))
        callback._remover.settle(last=True)
    want = [f"s3://bucket/run/checkpoint-{step}?region=x" for step in (4, 8)]
    return [] if remove.mock_calls == [unittest.mock.call(path, force=True) for path in want] else \
        [f"the calls were {remove.mock_calls}"]


def nothing_yet(folder):
    """Returns the error of a Trainer that shall resume without a checkpoint."""
    try:
        train(folder, resume=True)
    except cairn.CairnError as e:
        return type(e).__name__
    return "nothing"


def exported(folder, ranks=1, **more):
    """Trains, writes the model of the last checkpoint for from_pretrained, and returns the differences."""
    train(folder + "/run", ranks=ranks, **more)
    if ranks > 1 and torch.distributed.get_rank():
        return []
    last = cairn.latest(folder + "/run")
    cairn.transformers.export(last, folder + "/model")
    model = LlamaForCausalLM.from_pretrained(folder + "/model")
    with cairn.open(last, framework="torch") as c:
        want = c.load("model.", strip=True)
    got = model.state_dict()
    wrong = [name for name in want if not torch.equal(got[name], want[name])]
    if set(want) != set(got) or model.config.num_hidden_layers != 2:
        wrong.append(f"{sorted(got)}, {model.config}")
    return wrong + explained(last)


def explained(path):
    """Calls from_pretrained with a checkpoint of the callback, removes the checkpoint, and returns the problems."""
    wrong = []
    config = os.path.join(path, "config.json")
    for _ in range(600):  # a thread of the callback writes it when the save is complete
        if os.path.exists(config):
            break
        time.sleep(0.1)
    try:
        LlamaForCausalLM.from_pretrained(path)
        wrong.append("from_pretrained has read a checkpoint of cairn")
    except ValueError as e:
        if "cairn.transformers.from_checkpoint" not in str(e):
            wrong.append(f"from_pretrained: {e}")
    for settings in (None, LlamaConfig.from_pretrained(path)):
        if cairn.transformers.from_checkpoint(path, config=settings).config.num_hidden_layers != 2:
            wrong.append("from_checkpoint has another configuration")
    cairn.runs.remove_one(path, force=True)
    if os.path.exists(path):
        wrong.append(f"the removal left {os.listdir(path)}")
    return wrong


def from_checkpoint(folder):
    """Builds models from checkpoints of several forms, and compares their results."""
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = torch.arange(12).reshape(1, -1)
    models = {
        "llama": LlamaForCausalLM(LlamaConfig(**small)),
        "tied": LlamaForCausalLM(LlamaConfig(**small, tie_word_embeddings=True)),
        "mixtral": MixtralForCausalLM(MixtralConfig(**small, num_local_experts=2)),  # the experts are merged
        "gpt2": GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=32,
                                           bos_token_id=0, eos_token_id=0)),
    }
    build = cairn.transformers.from_checkpoint
    for name, model in models.items():
        model.eval()
        want = model(tokens).logits
        path = os.path.join(folder, name)
        model.save_pretrained(path, max_shard_size="20KB")
        cairn.torch.save({"model": model, "step": 3}, path + "-cairn")
        wrapped = {f"module.{k}": v for k, v in model.state_dict().items()}
        cairn.torch.save({"model": wrapped, "optimizer": {"step": 1}}, path + "-dcp", format="torchdcp")
        for got in (build(path), build(path + "-cairn", config=model.config), build(path + "-cairn", type(model), path),
                    build(path + "-dcp", config=model.config.to_dict())):
            assert type(got) is type(model) and not got.training, type(got)
            assert torch.equal(got(tokens).logits, want), name
        if name == "tied":
            assert got.lm_head.weight is got.model.embed_tokens.weight
        assert build(path, dtype=torch.bfloat16).dtype == torch.bfloat16
    return _refused(folder, models["llama"], build)


def by_recipes(folder):
    """Converts models of this transformers to the other form and back, and returns the differences."""
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4, "pad_token_id": 0,
             "num_attention_heads": 4, "num_key_value_heads": 2}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 12, "num_heads": 2, "out_hidden_size": 32,
              "fullatt_block_indexes": [0], "patch_size": 2, "window_size": 8}
    families = {
        "phi3": {}, "glm": {"head_dim": 8, "attention_bias": True}, "mistral": {},
        "glm4_moe": {"head_dim": 8, "n_routed_experts": 3, "moe_intermediate_size": 10, "use_qk_norm": True},
        "llama4_text": {"head_dim": 8, "intermediate_size_mlp": 20, "num_local_experts": 3,
                        "interleave_moe_layer_step": 2},
        "qwen2_5_vl": {"vision_config": vision},
    }
    wrong = []
    for family, more in families.items():
        if "vision_config" in more:
            config = AutoConfig.for_model(family, text_config=small, **more)
            model = AutoModelForImageTextToText.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(small | more)))
        src, back = os.path.join(folder, family), os.path.join(folder, family + "-back")
        model.save_pretrained(src)
        for form in ("megatron", "titan") if family == "mistral" else ("megatron",):
            there = os.path.join(folder, f"{family}-{form}")
            cairn.convert(src, there, f"hf-to-{form}/{family}")
            cairn.convert(there, back, f"{form}-to-hf/{family}", config=src, overwrite=True)
            with cairn.open(src, framework="torch") as a, cairn.open(back, framework="torch") as b:
                want, got = a.load(), b.load()
            if set(want) != set(got):
                wrong.append(f"{family}, {form}: names {sorted(set(want) ^ set(got))}")
            wrong += [f"{family}, {form}: {n}" for n in want if n in got and not torch.equal(want[n], got[n])]
    return wrong


def _refused(folder, model, build):
    """Returns the errors of checkpoints that do not fit."""
    state, said = model.state_dict(), []
    other = {**state, "model.norm.weight": torch.ones(7)}
    less = {k: v for k, v in state.items() if "layers.1.mlp" not in k}
    for i, (made, options) in enumerate([
        (less, {}), ({**state, "model.extra": torch.ones(2)}, {}), (other, {}),
        ({"a": state, "b": state}, {}), (state, {"prefix": "nothing."}), (state, {"config": None}),
    ]):
        path = os.path.join(folder, f"refused-{i}")
        cairn.torch.save(made, path)
        try:
            build(path, **{"config": model.config, **options})
            said.append("")
        except cairn.CairnError as e:
            said.append(f"{type(e).__name__}: {str(e).replace(folder, '')}")
    assert build(os.path.join(folder, "refused-0"), config=model.config, strict=False) is not None
    got = build(os.path.join(folder, "refused-3"), config=model.config, prefix="b.")
    assert torch.equal(got.lm_head.weight, model.lm_head.weight)
    return said
