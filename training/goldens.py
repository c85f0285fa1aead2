"""Golden logits in float64, from Hugging Face transformers.

    python goldens.py models ../testdata/models        random models in kernel-shaped sizes
    python goldens.py gguf ../testdata/gguf            tiny GGUF files of mixed dtypes, and blocks of every dtype
    python goldens.py tales /tmp/akunu-tales ../testdata/tales/golden.json

`models` writes a Hugging Face folder for each row of `MODELS`: real head sizes
and GQA ratios, everything else small; random norms and biases; sequences longer
than any window. A row has the config in the form of published files. Weights are
rounded to the stored dtype first, so that the goldens match the file.
`gguf` takes PyPI's `gguf` as the oracle of block formats. More families: family_goldens.py and encoder_goldens.py.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import float64

VOCAB = 64
LENGTHS = [29, 24]
CORRECTION = "e_score_correction_bias"  # of the scores of experts, in float32 in published files
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def model(kind: str, dtype: str, **fields) -> dict:
    """A config with the fields that all rows share."""
    classes = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
               "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
               "phi3": "Phi3ForCausalLM"}
    gemma = kind.startswith("gemma")
    activation = {"hidden_activation" if gemma else "hidden_act": "gelu_pytorch_tanh" if gemma else "silu"}
    return {"architectures": [classes[kind]], "model_type": kind, "torch_dtype": dtype, "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **activation, **fields}


def size(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int) -> dict:
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "intermediate_size": ffn}


def wide(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int) -> dict:
    """Heads share the hidden size evenly."""
    return {k: v for k, v in size(hidden, layers, heads, kv_heads, 0, ffn).items() if k != "head_dim"}


PHI3_LONG = "phi3-hd64-longrope"
SHORT = [12, 16]  # within its original context
MODELS = {
    "llama-hd64-gqa2": model(
        "llama", "bfloat16", **size(64, 2, 4, 2, 64, 104), rope_theta=10000.0, tie_word_embeddings=False),
    "llama-hd128-gqa4-llama3": model(
        "llama", "float16", **size(48, 1, 4, 1, 128, 72), rope_theta=500000.0, tie_word_embeddings=True,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32}),
    "llama-hd80-mha-linear": model(
        "llama", "float32", **size(40, 1, 4, 4, 80, 56), rope_theta=10000.0, tie_word_embeddings=False,
        rope_scaling={"type": "linear", "factor": 4.0}),
    "llama-hd64-gqa8-yarn": model(
        "llama", "bfloat16", **size(48, 1, 8, 1, 64, 72), rope_theta=10000.0, tie_word_embeddings=True,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    "mistral-hd96-gqa2-window": model(
        "mistral", "bfloat16", **size(64, 2, 2, 1, 96, 104), rope_theta=10000.0, tie_word_embeddings=False, sliding_window=8),
    "qwen2-hd64-bias": model(
        "qwen2", "float16", **size(128, 2, 2, 1, 64, 72), rope_theta=1000000.0, tie_word_embeddings=True,
        use_sliding_window=False, sliding_window=16, max_window_layers=2),
    "qwen3-hd128-gqa2": model(  # RoPE in the form of transformers 5
        "qwen3", "bfloat16", **size(48, 2, 2, 1, 128, 104), tie_word_embeddings=False, attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "gemma-hd256": model(
        "gemma", "float16", **size(48, 1, 2, 1, 256, 88), rope_theta=10000.0, tie_word_embeddings=True),
    "gemma2-hd64-softcap": model(
        "gemma2", "bfloat16", **size(48, 3, 4, 2, 64, 80), rope_theta=10000.0, tie_word_embeddings=True, sliding_window=6,
        query_pre_attn_scalar=48, attn_logit_softcapping=5.0, final_logit_softcapping=4.0),
    "gemma3-hd128-pattern": model(
        "gemma3_text", "bfloat16", **size(32, 4, 2, 1, 128, 56), rope_theta=1000000.0, rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0}, tie_word_embeddings=True, sliding_window=6, sliding_window_pattern=3,
        query_pre_attn_scalar=128),
    "gemma3-hd256-layer-types": model(  # windows and RoPE in the form of transformers 5
        "gemma3_text", "bfloat16", **size(32, 2, 2, 2, 256, 48), tie_word_embeddings=True, sliding_window=5,
        layer_types=["full_attention", "sliding_attention"], query_pre_attn_scalar=256,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "phi3-hd96-window": model(  # fused QKV and gate·up; no head_dim, as in real files
        "phi3", "bfloat16", **wide(192, 1, 2, 1, 104), rope_theta=10000.0, tie_word_embeddings=False, sliding_window=8,
        original_max_position_embeddings=256),
    PHI3_LONG: model(
        "phi3", "bfloat16", **wide(128, 2, 2, 1, 72), rope_theta=10000.0, tie_word_embeddings=False, sliding_window=None,
        partial_rotary_factor=0.75, original_max_position_embeddings=16,
        rope_scaling={"type": "longrope", "short_factor": [1 + i / 16 for i in range(24)], "long_factor": [1.5 + i * i / 16 for i in range(24)]}),
}


# ---- random models ----


def build(config: dict) -> torch.nn.Module:
    """The model that transformers makes of a config, in float64."""
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    hf = transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(known)))
    hf._attn_implementation = "eager"
    hf._experts_implementation = "eager"
    with float64.Only64():
        made = getattr(transformers, config["architectures"][0])(hf).double().eval()
    float64.check(made)
    return made


def randomize(made: torch.nn.Module, config: dict, seed: int) -> dict[str, torch.Tensor]:
    """Fills the model with weights that make logits of order one; gives them in the stored dtype."""
    random = torch.Generator().manual_seed(seed)
    gemma = config["model_type"].startswith("gemma")
    stored = {}
    for name, parameter in made.named_parameters():
        noise = torch.randn(parameter.shape, generator=random)
        if name.endswith(CORRECTION):
            value = 0.3 * noise
        elif name.endswith("A_log"):
            value = noise - 1.5  # states that last for some tokens
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif parameter.dim() == 1 or "norm" in name:
            value = 0.3 * noise + (0.0 if gemma else 1.0)  # Gemma's norm weights are stored minus one
        elif "embed" in name or "lm_head" in name:
            value = noise * 2 / math.sqrt(parameter.shape[1])
        else:
            value = noise * 1.4 / math.sqrt(parameter.shape[-1])
        stored[name] = value.to(torch.float32 if name.endswith(CORRECTION) else DTYPES[config["torch_dtype"]])
        parameter.data.copy_(stored[name].double())
    for name, buffer in made.named_buffers():
        if name.endswith(CORRECTION):
            stored[name] = (0.3 * torch.randn(buffer.shape, generator=random)).to(torch.float32)
            buffer.copy_(stored[name].double())
    return stored


@torch.no_grad()
def logits_of(made: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with float64.Only64():
        return made(torch.tensor([ids]), use_cache=False).logits[0]


def digits(values: torch.Tensor) -> list:
    """12 digits: far below any tolerance, and half the size."""
    return [digits(v) for v in values] if values.dim() > 1 else [float(f"{v:.12g}") for v in values.tolist()]


def golden(made: torch.nn.Module, seed: int, lengths: list[int] = LENGTHS, by: str = "goldens.py") -> dict:
    random = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(3, VOCAB, (length,), generator=random).tolist() for length in lengths]
    logits = [logits_of(made, ids) for ids in sequences]
    print(f"  logits: std {torch.cat(logits).std():.3f}, largest {torch.cat(logits).abs().max():.3f}")
    return {"made_by": f"training/{by}, transformers {transformers.__version__}, float64",
            "sequences": sequences, "logits": [digits(rows) for rows in logits]}


def write_json(path: Path, value: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n")


def make_models(out: Path) -> None:
    for seed, (name, config) in enumerate(MODELS.items()):
        made = build(config)
        print(name, {k: v for k, v in made.config.to_dict().items() if "rope" in k or k in ("layer_types", "sliding_window")})
        stored = randomize(made, config, seed)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(stored, str(folder / "model.safetensors"), metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_json(folder / "golden.json", golden(made, seed))
        if name == PHI3_LONG:
            write_json(folder / "golden-short.json", golden(made, seed, SHORT))


# ---- GGUF files of mixed dtypes ----


def make_gguf(out: Path) -> None:
    import blocks  # needs PyPI's gguf

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "blocks.json", blocks.oracle())
    for seed, (name, dtypes) in enumerate(blocks.FILES.items()):
        weights = blocks.write_model(out / f"{name}.gguf", dtypes, seed)
        made = build(blocks.CONFIG)
        missing, unexpected = made.load_state_dict({k: torch.from_numpy(np.array(v)).double() for k, v in weights.items()}, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        made.tie_weights()
        print(name)
        write_json(out / f"{name}.golden.json", golden(made, seed))
    make_phi3_gguf(out)


def make_phi3_gguf(out: Path) -> None:
    """The model with LongRoPE under GGUF's names: matrices stay stacked, factors are tensors."""
    from gguf import GGMLQuantizationType as Type

    from export import ALIGNMENT, ARRAY, F32, I32, STRING, U32, write_gguf

    config = MODELS[PHI3_LONG]
    made = build(config)
    stored = randomize(made, config, list(MODELS).index(PHI3_LONG))
    parts = {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}

    def name_of(theirs: str) -> str:
        if theirs in outside:
            return outside[theirs]
        _, _, layer, part = theirs.removesuffix(".weight").split(".", 3)
        return f"blk.{layer}.{parts[part]}.weight"

    tensors = []
    for theirs, values in stored.items():
        raw = values.float().to(torch.float32) if values.dim() == 1 else values.view(torch.int16)
        kind = Type.F32 if values.dim() == 1 else Type.BF16
        tensors.append((name_of(theirs), tuple(values.shape), int(kind), raw.numpy().tobytes()))
    scaling = config["rope_scaling"]
    for which in ("short", "long"):
        factors = np.array(scaling[f"{which}_factor"], np.float32)
        tensors.append((f"rope_factors_{which}.weight", factors.shape, int(Type.F32), factors.tobytes()))
    context, original = config["max_position_embeddings"], config["original_max_position_embeddings"]
    heads, head_dim = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]
    tokens = ["<unk>", "<s>", "</s>"] + [chr(ord("!") + i) for i in range(VOCAB - 3)]
    metadata = [  # as written by llama.cpp's converter, without "longrope"
        ("general.architecture", STRING, "phi3"), ("general.name", STRING, PHI3_LONG), ("general.alignment", U32, ALIGNMENT),
        ("phi3.context_length", U32, context), ("phi3.rope.scaling.original_context_length", U32, original),
        ("phi3.embedding_length", U32, config["hidden_size"]), ("phi3.feed_forward_length", U32, config["intermediate_size"]),
        ("phi3.block_count", U32, config["num_hidden_layers"]), ("phi3.attention.head_count", U32, heads),
        ("phi3.attention.head_count_kv", U32, config["num_key_value_heads"]),
        ("phi3.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"]),
        ("phi3.rope.dimension_count", U32, int(config["partial_rotary_factor"] * head_dim)), ("phi3.rope.freq_base", F32, config["rope_theta"]),
        ("phi3.attention.sliding_window", U32, 0),
        ("phi3.rope.scaling.attn_factor", F32, math.sqrt(1 + math.log(context / original) / math.log(original))),
        ("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.scores", ARRAY, (F32, [float(-i) for i in range(VOCAB)])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [2, 3, 3] + [1] * (VOCAB - 3))),
        ("tokenizer.ggml.bos_token_id", U32, 1), ("tokenizer.ggml.eos_token_id", U32, 2),
    ]
    write_gguf(out / "phi3-longrope.gguf", metadata, tensors)
    write_json(out / "phi3-longrope.golden.json", golden(made, list(MODELS).index(PHI3_LONG)))


# ---- the trained model ----

TALES = [
    "Once upon a time, there was a little girl named Mia who lived in a small village. One day,",
    "It was raining and Tom could not go outside to play. Then there was a knock at the door. It was",
    "The little fox found a shiny key in the forest. \"Whose is it?\" asked the fox. The owl",
    "One windy morning, Ben went to the park with a red kite. The wind blew it away, and soon it was high up in a tree. "
    "Ben jumped as high as he could, but he could not reach it.",
]

TEXTS = [
    "", " ", "  ", "\n", "\n\n", " \n \t x", "Once upon a time", " Once upon a time", "once upon a time,there was", "Hello, world!",
    "I'm sure it's what they'd've said; we'll see, you're right.", "IT'S", "Mia's kite isn't red.", "3.14159 and 1,000,000", "2026-11-21", "abc123def456",
    "a  b   c    d", "trailing spaces   ", "   leading spaces", "tab\tand\nnewline\r\nend", "naïve café, Zoë's crème brûlée", "Größe, straße, ÄÖÜ",
    "Привет, мир", "日本語のテキスト", "한국어 문장", "مرحبا بالعالم", "🦊🐻 and 👩‍👩‍👧 meet 🇫🇷", "e\u0301 versus é", "zero\u200bwidth\u00a0space",
    "!!!???...---", "(a) [b] {c} <d>", "\"Yes,\" said Mia, \"it is mine.\"", "under_score and-hyphen and/slash", "\x00\x7f control", "x² + y³ ≠ ½",
]


@torch.no_grad()
def make_tales(folder: Path, out: Path) -> None:
    from tokenizers import Tokenizer

    from evaluate import load

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = load(folder)
    float64.check(made)
    prompts = []
    for text in TALES:
        ids = [0, *tokenizer.encode(text).ids]
        logits = logits_of(made, ids)
        positions = [len(ids) // 3, len(ids) - 1]
        best, greedy, gaps = logits.max(-1), list(ids), []
        for _ in range(64):
            top = logits_of(made, greedy)[-1].topk(2)
            greedy.append(int(top.indices[0]))
            gaps.append(float(top.values[0] - top.values[1]))
        prompts.append({"text": text, "ids": ids, "argmax": best.indices.tolist(), "max": digits(best.values), "positions": positions,
                        "logits": digits(logits[positions]), "greedy": greedy[len(ids):], "greedy_gap": [float(f"{g:.6g}") for g in gaps],
                        "greedy_text": tokenizer.decode(greedy[len(ids):], skip_special_tokens=False)})
        print(len(ids), f"smallest gap {min(gaps):.4f}", tokenizer.decode(greedy))
    tokens = [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS]
    write_json(out, {"made_by": f"training/goldens.py, transformers {transformers.__version__}, float64, weights as Q8_0 holds them",
                     "prompts": prompts, "tokenizer": tokens})


def command(doc: str, rows: dict, first_seed: int, make: Callable) -> None:
    """The command line of a script that makes a folder of each of its rows. A row's seed is its place."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", nargs="*")
    args = parser.parse_args()
    float64.everywhere()
    for seed, (name, row) in enumerate(rows.items(), start=first_seed):
        if not args.name or name in args.name:
            make(name, row, seed, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("models", "gguf"):
        commands.add_parser(name).add_argument("out", type=Path)
    tales = commands.add_parser("tales")
    tales.add_argument("folder", type=Path)
    tales.add_argument("out", type=Path)
    args = parser.parse_args()
    float64.everywhere()
    match args.command:
        case "models":
            make_models(args.out)
        case "gguf":
            make_gguf(args.out)
        case "tales":
            make_tales(args.folder, args.out)


if __name__ == "__main__":
    main()
