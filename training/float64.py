"""Makes Hugging Face transformers compute in float64 throughout.

Its modelling code asks for float32 by name in norms, softmax and rotary
angles, whatever the weights' dtype. Here those modules see a `torch` whose
float32 *is* float64, and `Tensor.float()` widens to double. So RoPE's
frequencies (its scaled forms, too), angles, norms and softmax are all float64.
"""

import importlib

import torch

MODULES = ["modeling_rope_utils"] + [f"models.{name}.modeling_{name}" for name in
                                     ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3")]


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
