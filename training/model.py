"""A minimal LLaMA: the same arithmetic and tensor names as Hugging Face's `LlamaForCausalLM`."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Shape:
    vocab: int = 1536
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 512
    context: int = 2048
    rope_theta: float = 10_000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def hf_config(self) -> dict:
        """`config.json` as Hugging Face writes it."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": self.vocab,
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "intermediate_size": self.ffn,
            "max_position_embeddings": self.context, "rope_theta": self.rope_theta, "rms_norm_eps": self.eps,
            "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
            "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float32",
        }

    def asdict(self) -> dict:
        return asdict(self)


class Attention(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        split = lambda y: y.view(b, t, -1, self.s.head_dim).transpose(1, 2)  # (b, heads, t, head_dim)
        q, k, v = rotate(split(self.q_proj(x)), cos, sin), rotate(split(self.k_proj(x)), cos, sin), split(self.v_proj(x))
        group = self.s.heads // self.s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.down_proj = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden, eps=s.eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, eps=s.eps)
        self.mlp = Mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.model.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.model.norm = nn.RMSNorm(s.hidden, eps=s.eps)
        angles = torch.outer(torch.arange(s.context).float(), s.rope_theta ** -(torch.arange(0, s.head_dim, 2) / s.head_dim))
        angles = torch.cat([angles, angles], dim=-1)  # half-split form: (context, head_dim)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / (2 * s.layers) ** 0.5 if last else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[:t].to(x.dtype), self.sin[:t].to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)  # tied


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)
