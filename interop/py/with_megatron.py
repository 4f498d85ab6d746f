"""Megatron-core with its distributed optimizer, on a CPU: it saves states, and loads them under other parallel sizes.

Megatron's code is unchanged, apart from calls that need a GPU, and collectives that gloo does not have for 16-bit
numbers. No forward pass runs: weights and gradients are numbers that depend on the name and the place of an element. So
a job with other parallel sizes has the same states after the same steps, and its states are what a load must give.
"""

import contextlib
import hashlib
import os
import types

import no_triton  # noqa: F401 -- before Megatron

# isort: split
import torch
import torch.distributed as dist


def on_cpu(make):
    """Has a function that makes tensors make them on the CPU."""

    def made(*args, **more):
        if str(more.get("device", "")).startswith("cuda"):
            more["device"] = "cpu"
        return make(*args, **more)

    return made


def type_of(tensor, *args, own=torch.Tensor.type, **more):
    found = own(tensor, *args, **more)
    return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found


def all_reduce(tensor, *args, own=dist.all_reduce, **more):
    if tensor.dtype not in (torch.bfloat16, torch.float16):
        return own(tensor, *args, **more)
    wide = tensor.float()
    own(wide, *args, **{**more, "async_op": False})
    tensor.copy_(wide)
    return None


def all_gather(out, part, group=None, async_op=False):
    part = part.clone().view(torch.uint8)
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group=group)
    out.view(torch.uint8).copy_(torch.cat(parts))


@contextlib.contextmanager
def together(*_, **__):
    yield types.SimpleNamespace(wait=lambda: None)


torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = lambda *_: None
torch.Tensor.cuda = lambda self, *_, **__: self
torch.Tensor.type = type_of
for maker in ("empty", "zeros", "ones", "tensor", "full", "arange", "empty_like", "zeros_like"):
    setattr(torch, maker, on_cpu(getattr(torch, maker)))
dist.all_reduce = all_reduce

import megatron.core.distributed.param_and_grad_buffer as buffers  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories  # noqa: E402
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper  # noqa: E402
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

buffers.dist_all_gather_func, buffers._coalescing_manager = all_gather, together
METADATA = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
DTYPE = torch.bfloat16


def start(tensor=1, pipeline=1, virtual=1, expert=1, **_):
    """Makes the groups of a job."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(tensor, pipeline, virtual if virtual > 1 else None,
                                             expert_model_parallel_size=expert)
    with contextlib.suppress(Exception):  # there is no GPU to seed
        model_parallel_cuda_manual_seed(1)


def build(tensor=1, pipeline=1, virtual=1, expert=1, experts=None, layers=2, tied=False, bucket=None):
    """Returns the chunks of a model and their optimizer."""
    config = TransformerConfig(
        num_layers=layers, hidden_size=64, num_attention_heads=2, ffn_hidden_size=64, gated_linear_unit=True,
        num_moe_experts=experts, moe_router_topk=2, moe_ffn_hidden_size=20 if experts else None,
        normalization="RMSNorm", persist_layer_norm=False, apply_rope_fusion=False, masked_softmax_fusion=False,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, use_cpu_initialization=True,
        perform_initialization=False, params_dtype=DTYPE, pipeline_dtype=DTYPE, bf16=True, bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, expert_model_parallel_size=expert,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None)
    grads = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True,
                                          overlap_grad_reduce=bucket is not None, bucket_size=bucket)
    chunks = []
    for stage in range(virtual):
        model = GPTModel(
            config, get_gpt_layer_local_spec(experts, normalization="RMSNorm"), 16, 8, position_embedding_type="rope",
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=True) and stage == 0,
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=True) and stage == virtual - 1,
            share_embeddings_and_output_weights=tied, vp_stage=stage if virtual > 1 else None)
        model = Float16Module(config, model.to(DTYPE))
        chunks.append(DistributedDataParallel(config, grads, model, disable_bucketing=stage > 0))
    adam = OptimizerConfig(optimizer="adam", lr=0.01, weight_decay=0.05, clip_grad=0.0, bf16=True, params_dtype=DTYPE,
                           use_distributed_optimizer=True)
    return chunks, get_megatron_optimizer(adam, chunks)


def base(model):
    while hasattr(model, "module"):
        model = model.module
    return model


def numbers(name, salt, begin, size, shape):
    """Returns numbers for a part of a tensor, by the name and the places of the elements."""
    places = torch.zeros(size, dtype=torch.int64)
    for axis, (first, n, whole) in enumerate(zip(begin, size, shape, strict=True)):
        along = torch.arange(first, first + n).view([-1 if axis == i else 1 for i in range(len(size))])
        places = places * whole + along
    seed = int.from_bytes(hashlib.sha256((salt + name).encode()).digest()[:6], "little")
    return (places * 2654435761 + seed) % 1000003 / 1000003 - 0.5


@torch.no_grad()
def fill(chunks, salt, put):
    """Calls put for each parameter, with numbers for its elements. Megatron says where they are in whole tensors."""
    for model in map(base, chunks):
        own = {p: p.data for p in model.parameters()}
        for p in own:
            p.data = torch.zeros_like(p.data, dtype=torch.float64)
        state = model.sharded_state_dict(metadata=METADATA)
        apply_factories(state)
        for part in nested_values(state):
            if isinstance(part, ShardedTensor) and part.data is not None and part.data.dtype == torch.float64:
                n = part.prepend_axis_num
                made = numbers(f"{part.key} {part.global_offset[:n]}", salt, part.global_offset[n:], part.local_shape,
                               part.global_shape[n:])
                part.data.copy_(made.view(part.data.shape))
        for p, data in own.items():
            made, p.data = p.data, data
            put(p, made)


def train(chunks, optimizer, salt="", steps=2):
    """Begins a training."""
    fill(chunks, salt + "weights", lambda p, made: p.data.copy_(made))
    optimizer.reload_model_params()
    train_on(chunks, optimizer, 0, steps, salt)


def train_on(chunks, optimizer, first, end, salt=""):
    """Takes some steps of a training."""
    for step in range(first, end):
        for model in chunks:
            model.zero_grad_buffer()
        fill(chunks, f"{salt}{step}", lambda p, made: p.main_grad.copy_(made))
        optimizer.step()


def inner(optimizer):
    return getattr(optimizer, "chained_optimizers", [optimizer])


def live(chunks, optimizer):
    """Returns the weights of this rank and its states, by name. Two places in a buffer never have the same name."""
    names = {p: f"{n} {name}" for n, model in enumerate(chunks) for name, p in base(model).named_parameters()}
    out = {name: p.detach().clone() for p, name in names.items()}
    for one in inner(optimizer):
        for p, (buffer, dtype, bucket) in one.model_param_gbuf_map.items():
            begin = one.gbuf_ranges[buffer][dtype][bucket]["param_map"][p]["param"].start
            for state, x in one._get_main_param_and_optimizer_states(p).items():
                out[f"{names[p]} from {begin}: {state}"] = torch.as_tensor(x).detach().clone()
    return out


def key(chunks, n):
    return "model" if len(chunks) == 1 else f"model{n}"


def data_parallel():
    return parallel_state.get_data_parallel_group(with_context_parallel=True)


def whole(chunks, optimizer, metadata, loading):
    metadata = {**metadata, "dp_cp_group": data_parallel()}
    state = {key(chunks, n): base(model).sharded_state_dict(metadata=metadata) for n, model in enumerate(chunks)}
    state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=loading, metadata=metadata)
    return {**state, "iteration": 2}


def saved(folder, form, job):
    """Saves a job after two steps."""
    start(**job)
    chunks, optimizer = build(**job)
    train(chunks, optimizer)
    metadata = {**METADATA, "distrib_optim_sharding_type": form}
    if dist.get_rank() == 0:
        os.makedirs(folder)
    dist.barrier()
    strategy = FullyParallelSaveStrategyWrapper(TorchDistSaveShardedStrategy(), data_parallel())
    dist_checkpointing.save(whole(chunks, optimizer, metadata, False), folder, strategy, content_metadata=metadata)


def loaded(folder, job):
    """Loads a checkpoint into a job that has other weights and states. Returns the problems of all ranks."""
    start(**job)
    chunks, optimizer = build(**job)
    train(chunks, optimizer)
    want = live(chunks, optimizer)

    chunks, optimizer = build(**job)
    train(chunks, optimizer, "other", 1)
    metadata = dist_checkpointing.load_content_metadata(folder)
    give(chunks, optimizer, dist_checkpointing.load(whole(chunks, optimizer, metadata, True), folder))
    return compared(want, live(chunks, optimizer))


def give(chunks, optimizer, got):
    """Gives a job the state that was loaded."""
    for n, model in enumerate(chunks):
        base(model).load_state_dict(got[key(chunks, n)])
    for one in inner(optimizer):  # torch's AdamW has the step among its states, FusedAdam has it in the groups
        def put(p, states, one=one, own=one._set_main_param_and_optimizer_states):
            own(p, {"step": one._get_main_param_and_optimizer_states(p)["step"], **states})

        one._set_main_param_and_optimizer_states = put
    optimizer.load_state_dict(got["optimizer"])
    for one in inner(optimizer):  # Megatron gives all parameters one tensor, to which AdamW adds for each of them
        for states in one.optimizer.state.values():
            states["step"] = states["step"].clone()


def compared(want, have):
    """Returns the problems of all ranks."""
    problems = [f"rank {dist.get_rank()}: {name}" for name in want.keys() | have.keys()
                if name not in want or name not in have or not torch.equal(want[name], have[name])]
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, problems if want else ["nothing was compared"])
    return sum(every, [])
