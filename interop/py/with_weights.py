"""A small model of Hugging Face, for serving engines, and comparisons of its parameters."""

import functools
import json
import os

import safetensors.torch
import torch
import torch.distributed as dist

import cairn.torch

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 2, 512, 8, 4, 1024, 640
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": LAYERS,
          "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": 64,
          "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1,
          "eos_token_id": 2, "rope_theta": 10000.0}


def weights(seed):
    """Returns the weights of a model of Hugging Face."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes |= {at + "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
                   at + "self_attn.k_proj.weight": (KV_HEADS * 64, HIDDEN),
                   at + "self_attn.v_proj.weight": (KV_HEADS * 64, HIDDEN),
                   at + "self_attn.o_proj.weight": (HIDDEN, HIDDEN), at + "mlp.gate_proj.weight": (FFN, HIDDEN),
                   at + "mlp.up_proj.weight": (FFN, HIDDEN), at + "mlp.down_proj.weight": (HIDDEN, FFN),
                   at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,)}
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g).to(torch.bfloat16) for name, shape in shapes.items()}


def model_folder(folder, seed):
    """Writes a folder of Hugging Face, with random weights."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    save_weights(folder, weights(seed))


def experts_folder(folder, seed):
    """Writes a folder of Hugging Face with a mixture of experts."""
    os.makedirs(folder, exist_ok=True)
    config = {**CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8,
              "num_experts_per_tok": 2, "moe_intermediate_size": 256, "decoder_sparse_step": 1, "mlp_only_layers": [],
              "norm_topk_prob": True, "attention_bias": False}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    state = {name: w for name, w in weights(seed).items() if ".mlp." not in name}
    g = torch.Generator().manual_seed(seed)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes = {at + "mlp.gate.weight": (8, HIDDEN), at + "self_attn.q_norm.weight": (64,),
                  at + "self_attn.k_norm.weight": (64,)}
        for e in range(8):
            shapes |= {f"{at}mlp.experts.{e}.gate_proj.weight": (256, HIDDEN),
                       f"{at}mlp.experts.{e}.up_proj.weight": (256, HIDDEN),
                       f"{at}mlp.experts.{e}.down_proj.weight": (HIDDEN, 256)}
        state |= {name: torch.randn(shape, generator=g).to(torch.bfloat16) for name, shape in shapes.items()}
    save_weights(folder, state)


def save_weights(folder, state):
    safetensors.torch.save_file(state, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def params(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def differences(want, got):
    """Returns the differences between parameters."""
    if sorted(want) != sorted(got):
        return [f"the names differ: {sorted(set(want) ^ set(got))}"]
    return [f"{n} differs: {want[n].dtype}{list(want[n].shape)}, {got[n].dtype}{list(got[n].shape)}" for n in want
            if want[n].shape != got[n].shape or not torch.equal(want[n].view(torch.uint8), got[n].view(torch.uint8))]


def first_makes(make):
    """Has rank 0 do something that the other ranks wait for."""
    if not dist.is_initialized():
        make()
        return
    if dist.get_rank() == 0:
        make()
    dist.barrier()


def published(run, last):
    """Publishes versions up to a number, as a trainer with as many ranks does."""
    for v in range(1, last + 1):
        cairn.torch.publish(weights(v), run, v).result()


def all_ranks(function):
    """Makes a function that returns problems return the problems of all ranks."""
    @functools.wraps(function)
    def everywhere(**arguments):
        found = function(**arguments)
        if not dist.is_initialized():
            return found
        each = [None] * dist.get_world_size()
        dist.all_gather_object(each, found)
        return [f"rank {rank}: {f}" for rank, some in enumerate(each) for f in some]

    return everywhere
