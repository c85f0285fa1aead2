"""Held-out perplexity and sample stories, from the weights as the GGUF holds them.

    python evaluate.py /tmp/akunu-tales /tmp/tales/holdout.txt

The model runs in Hugging Face transformers in float64, on the weights as they
come back from Q8_0. A story's tokens are predicted after <|endoftext|>, and
its own <|endoftext|> counts as predicted, too.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from export import dequantized

PROMPTS = ["Once upon a time", "The little fox", "Mia found a", "It was raining and", "One day, a boy named Tom",
           "Sam and Lily went to the beach", "Grandma gave Ben a cookie", "There was a dragon who", "The old clock was broken",
           "A puppy named Max", "In the forest, a small bird", "The children", "Zorbo wanted to learn how to"]


def load(folder: Path, dtype=torch.float64) -> LlamaForCausalLM:
    config = LlamaConfig(**json.loads((folder / "config.json").read_text()), attn_implementation="eager")
    model = LlamaForCausalLM(config).to(dtype).eval()
    weights = {name: torch.from_numpy(w).to(dtype) for name, w in dequantized(folder).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


@torch.no_grad()
def perplexity(model, tokenizer: Tokenizer, stories: list[str], device: str) -> None:
    total, tokens, data = 0.0, 0, 0
    for first in range(0, len(stories), 32):
        rows = [[0, *e.ids, 0] for e in tokenizer.encode_batch(stories[first:first + 32])]
        width = max(map(len, rows))
        ids = torch.tensor([row + [-100] * (width - len(row)) for row in rows], device=device)
        logits = model(ids.clamp(min=0)[:, :-1]).logits
        total += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-100, reduction="sum").item()
        tokens += sum(len(row) - 1 for row in rows)
        data += sum(len(story.encode()) for story in stories[first:first + 32])
    print(f"{len(stories)} held-out stories, {tokens} tokens, {data} bytes: perplexity {math.exp(total / tokens):.4f} a token, "
          f"{total / math.log(2) / data:.4f} bits a byte")


@torch.no_grad()
def sample(model, tokenizer: Tokenizer, prompt: str, temperature: float, generator: torch.Generator, limit: int = 300) -> str:
    ids = [0, *tokenizer.encode(prompt).ids]
    while len(ids) < limit:
        logits = model(torch.tensor([ids], device=model.device)).logits[0, -1]
        if temperature == 0:
            best = int(logits.argmax())
        else:
            best = int(torch.multinomial(torch.softmax(logits / temperature, -1).cpu(), 1, generator=generator))
        if best == 0:
            break
        ids.append(best)
    return tokenizer.decode(ids[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("holdout", type=Path)
    parser.add_argument("--stories", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    model = load(args.folder).to(args.device)
    perplexity(model, tokenizer, args.holdout.read_text().splitlines()[:args.stories], args.device)
    generator = torch.Generator().manual_seed(1)
    model = model.float()
    for prompt in PROMPTS:
        print(f"\n[{prompt}] greedy\n{sample(model, tokenizer, prompt, 0, generator)}")
        print(f"[{prompt}] temperature 0.8\n{sample(model, tokenizer, prompt, 0.8, generator)}", flush=True)


if __name__ == "__main__":
    main()
