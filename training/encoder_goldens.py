"""Golden hidden states, embeddings and scores in float64, from Hugging Face transformers.

    python encoder_goldens.py ../testdata/encoders [NAME]

A row of `ENCODERS` is a folder in the form of published ones: `config.json`, names of
tensors, modules of sentence-transformers. `oracle` is the class of transformers that
computes the goldens.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import float64
import goldens
from family_goldens import Tensors, published, renamed, without
from goldens import DTYPES, VOCAB, digits, size

LENGTHS = [5, 17, 23]
Files = dict[str, object]  # by path
NO, YES = 5, 9  # the reranker's tokens


@dataclass
class Encoder:
    config: dict
    oracle: str
    pooling: str = ""
    twin: dict = field(default_factory=dict)  # fields of the class, if the file has other names
    store: Callable[[Tensors, dict], Tensors] = lambda stored, config: stored
    files: Files = field(default_factory=dict)
    dense: tuple[int, ...] = ()  # widths of the Dense modules after pooling
    ends: tuple[int, int] = (1, 2)  # the first and the last token of a text
    lengths: list[int] = field(default_factory=lambda: LENGTHS)


# ---- published names ----


def bert_positions(stored: Tensors, config: dict) -> Tensors:
    """Files from before 2023 contain the positions 0, 1, 2, …"""
    return {**stored, "embeddings.position_ids": torch.arange(config["max_position_embeddings"])[None]}


def bert_with_heads(stored: Tensors, config: dict) -> Tensors:
    """As `bert-base-uncased`: prefix `bert.`, old names of norms, and heads of the training tasks."""
    like, width = stored["pooler.dense.weight"], config["hidden_size"]
    heads = {"cls.predictions.bias": like.new_zeros(VOCAB), "cls.predictions.transform.dense.weight": like.clone(),
             "cls.predictions.transform.dense.bias": like.new_zeros(width),
             "cls.predictions.transform.LayerNorm.weight": like.new_ones(width),
             "cls.predictions.transform.LayerNorm.bias": like.new_zeros(width),
             "cls.seq_relationship.weight": like.new_zeros(2, width), "cls.seq_relationship.bias": like.new_zeros(2)}
    together = {**{f"bert.{name}": values for name, values in stored.items()}, **heads}
    return renamed(together, {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"})


def roberta_with_head(stored: Tensors, config: dict) -> Tensors:
    like, width = stored["pooler.dense.weight"], config["hidden_size"]
    stored = {f"roberta.{name}": values for name, values in stored.items() if not name.startswith("pooler")}
    return {**stored, "lm_head.bias": like.new_zeros(VOCAB), "lm_head.dense.weight": like.clone(),
            "lm_head.dense.bias": like.new_zeros(width), "lm_head.layer_norm.weight": like.new_ones(width),
            "lm_head.layer_norm.bias": like.new_zeros(width)}


def nomic(stored: Tensors, config: dict) -> Tensors:
    out = {}
    for name, values in stored.items():
        if "q_proj" in name:
            parts = [stored[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("self_attn.q_proj", "attn.Wqkv")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            out[name] = values
    return renamed(out, {
        "layers.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj",
        "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2"})


# ---- the modules of sentence-transformers ----


def transformer_modules(width: int, pooling: str, dense: tuple[int, ...] = (), normalize: bool = True) -> Files:
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [(f"{i + 2}_Dense", "Dense") for i in range(len(dense))]
    kinds += [(f"{len(kinds)}_Normalize", "Normalize")] if normalize else []
    names = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens",
             "weightedmean": "weightedmean_tokens", "last": "lasttoken"}
    modes = {f"pooling_mode_{name}": mode == pooling for mode, name in names.items()}
    return {"modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                             for i, (path, kind) in enumerate(kinds)],
            "1_Pooling/config.json": {"word_embedding_dimension": width, **modes, "include_prompt": True},
            "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False}}


def newer_modules(width: int, pooling: str) -> Files:
    """As written by sentence-transformers 6: other class names, and one field for the mode."""
    files = transformer_modules(width, pooling)
    kinds = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling",
             "base.modules.normalize.Normalize"]
    modules = [{**old, "type": f"sentence_transformers.{kind}"} for old, kind in zip(files["modules.json"], kinds)]
    mode = {"embedding_dimension": width, "pooling_mode": pooling, "include_prompt": True}
    return {**files, "modules.json": modules, "1_Pooling/config.json": mode}


def prompts(**texts: str) -> Files:
    return {"config_sentence_transformers.json": {
        "model_type": "SentenceTransformer", "__version__": {"sentence_transformers": "5.1.0"}, "prompts": texts,
        "default_prompt_name": None, "similarity_fn_name": "cosine"}}


# ---- configs ----


def bert(kind: str, architecture: str, dtype: str, hidden: int, layers: int, heads: int, ffn: int, **fields) -> dict:
    return {"architectures": [architecture], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": ffn,
            "layer_norm_eps": 1e-12, "max_position_embeddings": 48, "model_type": kind, "num_attention_heads": heads,
            "num_hidden_layers": layers, "pad_token_id": 0, "torch_dtype": dtype, "vocab_size": VOCAB, **fields}


def roberta(kind: str, architecture: str, dtype: str, *sizes: int, **fields) -> dict:
    return bert(kind, architecture, dtype, *sizes, **{
        "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5, "pad_token_id": 1, "type_vocab_size": 1,
        "position_embedding_type": "absolute", "use_cache": True, "max_position_embeddings": 34, **fields})


def modernbert(architecture: str, dtype: str, hidden: int, layers: int, heads: int, ffn: int, **fields) -> dict:
    return {"architectures": [architecture], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
            "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
            "classifier_pooling": "mean", "cls_token_id": 1, "decoder_bias": True, "embedding_dropout": 0.0,
            "eos_token_id": 2, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
            "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": hidden,
            "initializer_range": 0.02, "intermediate_size": ffn,
            "layer_norm_eps": 1e-5, "local_attention": 8, "local_rope_theta": 10000.0, "max_position_embeddings": 256,
            "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-5,
            "num_attention_heads": heads, "num_hidden_layers": layers, "pad_token_id": 0,
            "position_embedding_type": "absolute", "sep_token_id": 2, "torch_dtype": dtype, "vocab_size": VOCAB,
            **fields}


NOMIC = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "auto_map": {"AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
                 "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
    "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
    "n_embd": 64, "n_head": 4, "n_inner": 72, "n_layer": 2, "n_positions": 8192, "pad_vocab_size_multiple": 64,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "torch_dtype": "bfloat16", "type_vocab_size": 2, "use_cache": True,
    "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": VOCAB}
NOMIC_TWIN = {"model_type": "nomic_bert", "torch_dtype": "bfloat16", "vocab_size": VOCAB, "hidden_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72, "hidden_act": "silu",
              "max_position_embeddings": 8192, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
              "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
EMBEDDING_GEMMA = {
    "_sliding_window_pattern": 3, "architectures": ["Gemma3TextModel"], "attention_bias": False,
    "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32", "eos_token_id": 1,
    "final_logit_softcapping": None, "head_dim": 24, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 40, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 256, "model_type": "gemma3_text", "num_attention_heads": 2, "num_hidden_layers": 3,
    "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 8,
    "use_bidirectional_attention": True, "use_cache": True, "vocab_size": VOCAB}
QWEN3 = published(
    "qwen3", "Qwen3ForCausalLM", "bfloat16", **size(48, 2, 4, 2, 32, 56), attention_bias=False, attention_dropout=0.0,
    hidden_act="silu", max_window_layers=2, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000,
    sliding_window=None, tie_word_embeddings=True, use_sliding_window=False)
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}

ENCODERS = {
    "bert-mean": Encoder(
        bert("bert", "BertModel", "float32", 48, 2, 4, 72, gradient_checkpointing=False, type_vocab_size=2,
             use_cache=True, position_embedding_type="absolute"),
        "BertModel", "mean", store=bert_positions, files=transformer_modules(48, "mean")),
    "bert-cls": Encoder(
        bert("bert", "BertForMaskedLM", "float16", 64, 2, 4, 88, type_vocab_size=2),
        "BertModel", "cls", store=bert_with_heads, files=transformer_modules(64, "cls")),
    "bert-cross-encoder": Encoder(
        bert("bert", "BertForSequenceClassification", "bfloat16", 64, 2, 4, 88, type_vocab_size=2, **ONE_LABEL,
             sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0"}),
        "BertForSequenceClassification"),
    "roberta-mean": Encoder(
        roberta("roberta", "RobertaForMaskedLM", "float16", 64, 2, 4, 88),
        "RobertaModel", "mean", store=roberta_with_head, files=newer_modules(64, "mean"), ends=(0, 2)),
    "xlm-roberta-cls": Encoder(
        roberta("xlm-roberta", "XLMRobertaModel", "bfloat16", 64, 2, 4, 88, output_past=True),
        "XLMRobertaModel", "cls", store=bert_positions, files=transformer_modules(64, "cls"), ends=(0, 2)),
    "xlm-roberta-reranker": Encoder(
        roberta("xlm-roberta", "XLMRobertaForSequenceClassification", "float16", 64, 2, 4, 88, classifier_dropout=None,
                output_past=True, **ONE_LABEL),
        "XLMRobertaForSequenceClassification", ends=(0, 2)),
    "mpnet-mean": Encoder(
        bert("mpnet", "MPNetForMaskedLM", "bfloat16", 64, 2, 4, 88, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5,
             max_position_embeddings=50, pad_token_id=1, relative_attention_num_buckets=32),
        "MPNetModel", "mean", store=bert_positions, files=transformer_modules(64, "mean"), ends=(0, 2),
        lengths=[5, 17, 40]),
    "nomic-bert-mean": Encoder(
        NOMIC, "NomicBertModel", "mean", twin=NOMIC_TWIN, store=nomic, files={
            **transformer_modules(64, "mean", normalize=False),
            **prompts(search_query="search_query: ", search_document="search_document: ")}),
    "modernbert-cls": Encoder(
        modernbert("ModernBertModel", "bfloat16", 48, 4, 3, 40), "ModernBertModel", "cls",
        files=transformer_modules(48, "cls", normalize=False)),
    "modernbert-reranker": Encoder(
        modernbert("ModernBertForSequenceClassification", "float16", 48, 4, 3, 40, **ONE_LABEL),
        "ModernBertForSequenceClassification"),
    "embedding-gemma": Encoder(
        EMBEDDING_GEMMA, "Gemma3TextModel", "mean",
        twin={**without(EMBEDDING_GEMMA, "dtype"), "torch_dtype": "float32"}, dense=(96, 32), ends=(2, 1), files={
            **transformer_modules(32, "mean", (96, 32)),
            **prompts(query="task: search result | query: ", document="title: none | text: ")}),
    "qwen3-embedding": Encoder(
        QWEN3, "Qwen3Model", "last", files={
            **transformer_modules(48, "last"),
            **prompts(query="Instruct: Given a web search query, retrieve relevant passages that answer the query\n"
                            "Query:", document="")}),
    "qwen3-reranker": Encoder(QWEN3, "Qwen3ForCausalLM"),
    "qwen3-classifier": Encoder(
        {**QWEN3, "architectures": ["Qwen3ForSequenceClassification"], "pad_token_id": 0, **ONE_LABEL},
        "Qwen3ForSequenceClassification"),
}


# ---- goldens ----


def texts_of(encoder: Encoder, seed: int) -> list[dict]:
    """Random tokens between the first and the last one; for a reranker the second half is segment 1."""
    random = torch.Generator().manual_seed(seed)
    texts = []
    for length in encoder.lengths:
        inside = torch.randint(3, VOCAB, (length - 2,), generator=random).tolist()
        text = {"ids": [encoder.ends[0], *inside, encoder.ends[1]]}
        if encoder.config.get("type_vocab_size", 1) > 1:
            second = 0 if encoder.pooling else length // 2
            text["segments"] = [0] * (length - second) + [1] * second
        texts.append(text)
    return texts


def pool(states: torch.Tensor, mode: str) -> torch.Tensor:
    return {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[mode]


def dense_weights(encoder: Encoder, width: int, seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed + 1)
    weights = []
    for out in encoder.dense:
        noise = torch.randn(out, width, generator=random) * 1.4 / math.sqrt(width)
        weights.append(noise.to(DTYPES[encoder.config.get("torch_dtype", "float32")]))
        width = out
    return weights


@torch.no_grad()
def golden(made: torch.nn.Module, encoder: Encoder, dense: list[torch.Tensor], seed: int) -> dict:
    base = getattr(made, made.base_model_prefix, made)
    out = {"made_by": f"training/encoder_goldens.py, transformers {transformers.__version__}, float64",
           "texts": texts_of(encoder, seed), "states": []}
    for text in out["texts"]:
        inputs = {"input_ids": torch.tensor([text["ids"]])}
        if "segments" in text:
            inputs["token_type_ids"] = torch.tensor([text["segments"]])
        with float64.Only64():
            states = base(**inputs).last_hidden_state[0]
            out["states"].append(digits(states))
            if encoder.pooling:
                pooled = pool(states, encoder.pooling)
                for weight in dense:
                    pooled = weight.double() @ pooled
                out.setdefault("pooled", []).append(digits(pooled))
            elif encoder.oracle.endswith("ForCausalLM"):
                logits = made(**inputs, use_cache=False).logits[0, -1, [NO, YES]]
                out.update(no=NO, yes=YES)
                out.setdefault("logits", []).append(digits(logits))
                out.setdefault("scores", []).append(float(digits(logits.softmax(0))[1]))
            else:
                out.setdefault("scores", []).extend(digits(made(**inputs).logits[0]))
    print(f"  states: std {states.std():.3f}, scores {out.get('scores')}")
    return out


def make(name: str, encoder: Encoder, seed: int, out: Path) -> None:
    twin = {**(encoder.twin or encoder.config), "architectures": [encoder.oracle]}
    made = goldens.build(twin)
    print(name)
    stored = encoder.store(goldens.randomize(made, twin, seed), encoder.config)
    dense = dense_weights(encoder, encoder.config.get("hidden_size", 0), seed)
    folder = out / name
    for path, value in {"config.json": encoder.config, **encoder.files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(value, indent=2) + "\n")
    save_file({key: values.contiguous() for key, values in stored.items()}, str(folder / "model.safetensors"),
              metadata={"format": "pt"})
    for i, weight in enumerate(dense):
        part = folder / f"{i + 2}_Dense"
        part.mkdir(exist_ok=True)
        save_file({"linear.weight": weight}, str(part / "model.safetensors"))
        (part / "config.json").write_text(json.dumps(
            {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False,
             "activation_function": "torch.nn.modules.linear.Identity"}, indent=2) + "\n")
    goldens.write_json(folder / "golden.json", golden(made, encoder, dense, seed))


if __name__ == "__main__":
    goldens.command(__doc__, ENCODERS, 200, make)
