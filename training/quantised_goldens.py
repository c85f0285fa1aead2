"""Goldens of folders that other tools quantised: GPTQ, AWQ, FP8 and the integers of compressed-tensors.

    pip install torch transformers compressed-tensors gptqmodel datasets
    pip install --no-deps auto-gptq==0.7.1 && pip install --no-deps --no-build-isolation autoawq==0.2.9
    python quantised_goldens.py ../testdata/quantised

A folder is a small random model whose matrices a published library packed: GPTQ's first format by AutoGPTQ, its second
one by GPTQModel, AWQ by AutoAWQ, FP8 by compressed-tensors and by transformers. The same library unpacks them, in
float64 where it can. `golden.json` has the logits of transformers in float64 with these weights, and for each packed
matrix the hash of its weights as float32.
"""

import argparse
import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

import float64


def bare(*names: str) -> None:
    """Makes packages importable without what their own initialisation imports: CUDA kernels and old transformers."""
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
        sys.modules[name] = module


bare("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear", "awq", "awq.modules", "awq.modules.linear", "awq.utils")

from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear as AutoGptq  # noqa: E402
from awq.modules.linear.gemm import WQLinear_GEMM  # noqa: E402
from awq.utils.packing_utils import dequantize_gemm  # noqa: E402
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor  # noqa: E402
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme  # noqa: E402
from compressed_tensors.quantization.lifecycle.forward import dequantize  # noqa: E402
from compressed_tensors.quantization.utils import calculate_qparams  # noqa: E402
from gptqmodel.nn_modules.qlinear.torch import TorchLinear  # noqa: E402
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize  # noqa: E402

# A packed matrix: its tensors, named after the module, and its weights.
Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


# ---- integers in groups ----


def affine(weight: torch.Tensor, bits: int, group: int, symmetric: bool, g_idx: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points, [outputs][groups]. Every zero point but 0, which GPTQ's first format cannot store."""
    most = 2**bits - 1
    scales, zeros = [], []
    for index in range(int(g_idx.max()) + 1):
        part = weight[:, g_idx == index]
        low, high = part.amin(1), part.amax(1)
        if symmetric:
            scale = 2 * torch.maximum(-low, high) / most
            zero = torch.full_like(scale, (most + 1) / 2)
        else:
            scale = (high - low) / most
            zero = torch.round(-low / scale).clamp(1, most)
        scales.append(scale.half().float())
        zeros.append(zero)
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def linear(weight: torch.Tensor) -> torch.nn.Linear:
    """A layer whose weights are in the range of their codes, since the libraries do not clamp."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return layer


def clamped(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int, g_idx: torch.Tensor) -> torch.Tensor:
    scale, zero = scales[:, g_idx.long()], zeros[:, g_idx.long()]
    return (torch.round(weight / scale + zero).clamp(0, 2**bits - 1) - zero) * scale


def groups(inputs: int, group: int, order_of: str | None) -> torch.Tensor:
    """The group of each input: in order, or scattered. Q, K and V have one order, as they have with real models; the others their own."""
    size = inputs if group == -1 else group
    g_idx = torch.arange(inputs, dtype=torch.int32) // size
    if order_of is None:
        return g_idx
    shared = [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj"], ["up_proj"], ["down_proj"]]
    seed = next(index for index, names in enumerate(shared) if order_of.split(".")[-2] in names)
    return g_idx[torch.from_numpy(np.random.default_rng(seed).permutation(inputs))]


def gptq(weight: torch.Tensor, path: str, bits: int, group: int, sym: bool, desc_act: bool, v2: bool) -> Packed:
    outputs, inputs = weight.shape
    g_idx = groups(inputs, group, path if desc_act else None)
    scales, zeros = affine(weight, bits, group, sym, g_idx)
    layer = linear(clamped(weight, scales, zeros, bits, g_idx))
    if v2:
        packed = TorchLinear(bits=bits, group_size=group, sym=sym, desc_act=desc_act, in_features=inputs, out_features=outputs,
                             bias=False, pack_dtype=torch.int32)
        packed.pack_original(layer, scales, zeros, g_idx)
        packed._init_wf_unsqueeze_buffers()
        parts = {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
        packed.scales = packed.scales.double()
        return parts, packed.dequantize_weight().T
    packed = AutoGptq(bits, group, inputs, outputs, False, weight_dtype=torch.float32)
    packed.autogptq_cuda_available = False
    packed.pack(layer, scales, zeros.clone(), g_idx)
    parts = {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
    parts["scales"] = parts["scales"].half()
    packed.scales = packed.scales.double()
    # The product with the identity is the weights.
    return parts, packed(torch.eye(inputs, dtype=torch.float64)).T


def awq(weight: torch.Tensor, group: int) -> Packed:
    g_idx = groups(weight.shape[1], group, None)
    scales, zeros = affine(weight, 4, group, False, g_idx)
    layer = linear(clamped(weight, scales, zeros, 4, g_idx))
    packed = WQLinear_GEMM.from_linear(layer, 4, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    parts = {name: getattr(packed, name).clone().contiguous() for name in ("qweight", "qzeros", "scales")}
    return parts, dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].double(), 4, group).T


def integers(weight: torch.Tensor, scheme: QuantizationScheme, kind: torch.dtype) -> Packed:
    args = scheme.weights
    parts = weight.reshape(weight.shape[0], -1, args.group_size or weight.shape[1])
    scale, zero = calculate_qparams(parts.amin(2), parts.amax(2), args)
    scale = scale.to(kind)
    packed = PackedQuantizationCompressor.compress({"weight": weight, "weight_scale": scale.float(), "weight_zero_point": zero.to(torch.int8)},
                                                   scheme)
    packed["weight_scale"] = scale
    plain = PackedQuantizationCompressor.decompress({**packed, "weight_scale": scale.double()}, scheme)["weight"]
    return {name: value.contiguous() for name, value in packed.items()}, plain


# ---- FP8 ----


def compressed(weight: torch.Tensor, args: QuantizationArgs, static: bool, kind: torch.dtype) -> Packed:
    rows, cols = weight.shape
    if args.strategy == "tensor":
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    elif args.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        tall, wide = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -cols % wide, 0, -rows % tall))
        blocks = padded.reshape(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    scale, zero = calculate_qparams(low, high, args)
    scale = scale.to(kind)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    parts = FloatQuantizationCompressor.compress({"weight": weight, "weight_scale": scale.float(), "weight_zero_point": zero}, scheme)
    parts = {"weight": parts["weight"].contiguous(), "weight_scale": scale}
    if static:
        parts["input_scale"] = torch.tensor([0.03125], dtype=kind)
    quants, tall = parts["weight"].double(), scale.double()
    if args.strategy == "block":
        # The library pads, dequantises and cuts.
        tall_block, wide_block = args.block_structure
        quants = torch.nn.functional.pad(quants, (0, -cols % wide_block, 0, -rows % tall_block))
    values = dequantize(quants, tall, None, args, torch.float64)
    return parts, values[:rows, :cols]


class Quantiser:
    """What transformers' operations read."""

    class quantization_config:
        weight_block_size = (128, 128)
        scale_fmt = None


def finegrained(weight: torch.Tensor) -> Packed | None:
    parts = Fp8Quantize(Quantiser)._quantize_one("weight", weight)
    if len(parts) == 1:
        return None
    parts = {name.removeprefix("."): value for name, value in parts.items()}
    scale = next(value for name, value in parts.items() if "scale" in name)
    values = Fp8Dequantize(Quantiser)._dequantize_one(parts["weight"], scale, torch.float64)
    return {"weight": parts["weight"], "weight_scale_inv": scale}, values


# ---- models ----


def llama(hidden: int, inner: int, **more) -> dict:
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": hidden,
            "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": hidden // 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "bos_token_id": 1,
            "eos_token_id": 2, "rope_theta": 10000.0, "tie_word_embeddings": False, **more}


def gptq_config(bits: int, group: int, sym: bool, desc_act: bool, v2: bool) -> dict:
    return {"bits": bits, "group_size": group, "sym": sym, "desc_act": desc_act, "checkpoint_format": "gptq_v2" if v2 else "gptq",
            "quant_method": "gptq", "damp_percent": 0.01, "static_groups": False, "true_sequential": True, "is_marlin_format": False}


def gptq_model(hidden: int, inner: int, *settings) -> tuple:
    pack = lambda weight, path: gptq(weight, path, *settings)  # noqa: E731
    return llama(hidden, inner), torch.float16, gptq_config(*settings), pack, {}


def fp8_model(hidden: int, inner: int, strategy: str, static: bool, kind: torch.dtype) -> tuple:
    block = [128, 128] if strategy == "block" else None
    weights = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True, dynamic=False, block_structure=block)
    inputs = QuantizationArgs(num_bits=8, type="float", strategy="tensor" if static else "token", symmetric=True, dynamic=not static)
    cache = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False) if static else None
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    config = QuantizationConfig(config_groups={"group_0": scheme}, format="float-quantized", ignore=["lm_head", "re:.*o_proj$"],
                                quantization_status="compressed", kv_cache_scheme=cache)
    more = {}
    if static:
        more = {f"model.layers.0.self_attn.{name}": torch.tensor([0.05], dtype=kind) for name in ("k_scale", "v_scale")}
    pack = lambda weight, _: compressed(weight, weights, static, kind)  # noqa: E731
    return llama(hidden, inner), torch.bfloat16, json.loads(config.model_dump_json()), pack, more


def integer_model(bits: int, group: int | None, symmetric: bool, kind: torch.dtype) -> tuple:
    weights = QuantizationArgs(num_bits=bits, type="int", strategy="group" if group else "channel", group_size=group, symmetric=symmetric)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    config = QuantizationConfig(config_groups={"group_0": scheme}, format="pack-quantized", ignore=["lm_head"],
                                quantization_status="compressed")
    pack = lambda weight, _: integers(weight, scheme, kind)  # noqa: E731
    return llama(64, 128), kind, json.loads(config.model_dump_json()), pack, {}


def qwen2() -> dict:
    return {**llama(128, 128), "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def qwen3() -> dict:
    return {**llama(128, 256), "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}


AWQ = {"bits": 4, "group_size": 64, "zero_point": True, "version": "gemm", "quant_method": "awq", "modules_to_not_convert": None}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

# (config, type of what is not packed, quantization_config, packing of a matrix, further tensors)
MODELS = {
    "gptq-asymmetric": gptq_model(128, 128, 4, 32, False, False, False),
    "gptq-ordered": gptq_model(128, 128, 4, 32, True, True, False),
    "gptq-v2": gptq_model(64, 96, 4, 32, False, False, True),
    "gptq-2-bits": gptq_model(64, 64, 2, 64, False, False, False),
    "gptq-3-bits": gptq_model(64, 128, 3, 64, True, False, True),
    "gptq-8-bits": gptq_model(64, 96, 8, -1, False, False, False),
    "awq": (qwen2(), torch.float16, AWQ, lambda weight, _: awq(weight, 64), {}),
    "fp8-tensor": fp8_model(64, 96, "tensor", True, torch.bfloat16),
    "fp8-channel": fp8_model(64, 96, "channel", False, torch.bfloat16),
    "fp8-block": fp8_model(128, 160, "block", False, torch.float32),
    "fp8-qwen3": (qwen3(), torch.bfloat16, FP8, lambda weight, _: finegrained(weight), {}),
    "integers-4-bits": integer_model(4, 64, True, torch.bfloat16),
    "integers-asymmetric": integer_model(4, 32, False, torch.float16),
    "integers-8-bits": integer_model(8, None, True, torch.bfloat16),
}


def fnv(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def ignored(name: str, settings: dict) -> bool:
    return "embed" in name or "lm_head" in name or "o_proj" in name and any("o_proj" in one for one in settings.get("ignore", []))


class Model:
    """A model's tensors as they are stored, and what they stand for. Packed before transformers is made to compute in float64."""

    # Of the texts.
    lengths = (13, 9)

    def __init__(self, name: str, seed: int):
        config, kind, settings, pack, stored = MODELS[name]
        self.name, self.config, self.settings = name, config, settings
        self.kind, self.pack = kind, lambda weight, path: None if ignored(path, settings) else pack(weight, path)
        self.fill(seed, dict(stored))

    def twin(self) -> dict:
        """The config of the model that transformers has for it."""
        return self.config

    def published(self, path: str) -> str:
        """The name of a tensor in the folder."""
        return path

    def fill(self, seed: int, stored: dict) -> None:
        self.stored, self.weights, self.hashes = stored, {}, {}
        self.random = np.random.default_rng(seed)
        shapes = {path: value.shape for path, value in AutoModelForCausalLM.from_config(AutoConfig.for_model(**self.twin())).state_dict().items()}
        for path, shape in sorted(shapes.items()):
            if not (self.config["tie_word_embeddings"] and path == "lm_head.weight"):
                self.add(path, tuple(shape))

    def add(self, path: str, shape: tuple) -> None:
        noise = torch.from_numpy(self.random.standard_normal(shape))
        noise = 1 + 0.3 * noise if "norm" in path else 0.3 * noise if len(shape) == 1 else noise * 1.4 / shape[1] ** 0.5
        packed = self.pack(noise.float(), path) if len(shape) == 2 else None
        name = self.published(path)
        if packed is None:
            # Biases for choosing experts are added in f32.
            self.stored[name] = noise.to(torch.float32 if "e_score_correction" in path else self.kind)
            self.weights[path] = self.stored[name].double()
            return
        parts, values = packed
        self.stored |= {f"{name.removesuffix('weight')}{part}": value.contiguous() for part, value in parts.items()}
        self.weights[path] = values.double()
        self.hashes[name] = fnv(values.float().contiguous().numpy().tobytes())

    def logits(self) -> tuple[list, list]:
        plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**self.twin()), experts_implementation="eager").double()
        if self.config["tie_word_embeddings"]:
            self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]
        plain.load_state_dict(self.weights)
        float64.check(plain)
        plain.eval()
        sequences = [self.random.integers(3, self.config["vocab_size"], n).tolist() for n in self.lengths]
        with torch.no_grad(), float64.Only64():
            return sequences, [plain(torch.tensor([ids])).logits[0].tolist() for ids in sequences]

    def write(self, folder: Path) -> None:
        sequences, logits = self.logits()
        place = folder / self.name
        place.mkdir(parents=True, exist_ok=True)
        save_file(self.stored, place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text(json.dumps({**self.config, "quantization_config": self.settings}, indent=1) + "\n")
        golden = {"sequences": sequences, "logits": [[[float(f"{v:.12g}") for v in row] for row in one] for one in logits],
                  "weights": self.hashes}
        (place / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    models = [Model(name, seed) for seed, name in enumerate(MODELS)]
    float64.everywhere()
    for model in models:
        model.write(arguments.folder)
