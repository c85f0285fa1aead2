"""Makes Hugging Face transformers compute in float64 throughout.

Its modelling code uses float32 explicitly in norms, softmax and RoPE, for any
dtype of the weights. Here these modules get a `torch` whose float32 is float64,
and `Tensor.float()` converts to double. So RoPE frequencies (including scaled
ones), angles, norms and softmax are all float64.
"""

import importlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DECODERS = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "smollm3", "olmo2", "granite",
            "stablelm", "starcoder2", "cohere", "cohere2", "gpt_neox", "phi", "falcon", "glm", "glm4", "ministral",
            "ministral3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "glm4_moe", "minimax_m2",
            "ernie4_5_moe", "hunyuan_v1_moe", "granitemoe", "granitemoeshared", "phimoe", "deepseek_v2",
            "deepseek_v3", "glm4_moe_lite", "llama4",
            "granitemoehybrid", "seed_oss", "dots1"]
ENCODERS = ["bert", "roberta", "xlm_roberta", "mpnet", "nomic_bert", "modernbert"]
MODULES = ["modeling_rope_utils"] + [f"models.{name}.modeling_{name}" for name in DECODERS + ENCODERS]


class Torch64:
    """`torch`, but float32 reads as float64."""

    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name: str):
        return getattr(torch, name)


def everywhere() -> None:
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    for name in MODULES:
        importlib.import_module(f"transformers.{name}").torch = Torch64()


def check(model) -> None:
    """Every parameter and floating buffer is float64, the rotary frequencies with them."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert tensor.dtype in (torch.float64, torch.int64, torch.bool), f"{name} is {tensor.dtype}"


class Only64(TorchDispatchMode):
    """No operation inside may give floats of another width."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert value.dtype == torch.float64, f"{op} gave {value.dtype}"
        return out
