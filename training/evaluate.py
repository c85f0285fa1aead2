"""Held-out perplexity, sample stories and conversations, with the weights in the GGUF file.

    python evaluate.py /tmp/akunu-tales /tmp/tales

The model runs in Hugging Face transformers in float64, with the weights
dequantised from Q8_0. The tokens of a story are predicted after <|endoftext|>,
including the <|endoftext|> at its end. In a conversation only the assistant's
tokens count.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from chatml import render
from export import dequantized
from train import answers

PROMPTS = ["Once upon a time", "The little fox", "Mia found a", "It was raining and", "One day, a boy named Tom",
           "Sam and Lily went to the beach", "Grandma gave Ben a cookie", "There was a dragon who", "The old clock was broken",
           "A puppy named Max", "In the forest, a small bird", "The children", "Zorbo wanted to learn how to"]
TALKS = [
    ["Hi!", "Tell me a story about a fox.", "What is the fox called?", "Who else is in the story?", "How does it end?", "Thank you!"],
    ["My name is Zorbo.", "tell me a story about me", "what is my name?", "another one, about a red kite", "what color was the kite?"],
    ["What is the capital of France?", "What can you do?", "Continue this story: Mia had a blue ball.", "Is there a bear in the story?"],
    ["I love owls.", "Yes, please!", "Where did the owl live?", "What happened first?", "Did you like it?", "Good night!"],
]


def load(folder: Path, dtype=torch.float64) -> LlamaForCausalLM:
    config = LlamaConfig(**json.loads((folder / "config.json").read_text()), attn_implementation="eager")
    model = LlamaForCausalLM(config).to(dtype).eval()
    weights = {name: torch.from_numpy(w).to(dtype) for name, w in dequantized(folder).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


@torch.no_grad()
def perplexity(model, kind: str, rows: list[list[int]], learned: list[list[bool]], data: int, device: str) -> None:
    """Of the ids that are marked as learned."""
    total, tokens = 0.0, sum(sum(marks[1:]) for marks in learned)
    for first in range(0, len(rows), 16):
        part = rows[first:first + 16]
        width = max(map(len, part))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in part], device=device)
        marks = torch.tensor([m + [False] * (width - len(m)) for m in learned[first:first + 16]], device=device)
        logits = model(ids[:, :-1]).logits
        targets = ids[:, 1:].masked_fill(~marks[:, 1:], -100)
        total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum").item()
    print(f"{len(rows)} held-out {kind}, {tokens} tokens, {data} bytes: perplexity {math.exp(total / tokens):.4f} a token, "
          f"{total / math.log(2) / data:.4f} bits a byte", flush=True)


def measure(model, tokenizer: Tokenizer, corpus: Path, count: int, device: str) -> None:
    stories = (corpus / "holdout.txt").read_text().splitlines()[:count]
    rows = [[0, *e.ids, 0] for e in tokenizer.encode_batch(stories)]
    perplexity(model, "stories", rows, [[True] * len(row) for row in rows], sum(len(s.encode()) for s in stories), device)
    chats = [json.loads(line) for line in (corpus / "holdout.jsonl").read_text().splitlines()[:count]]
    rows = [[0, *e.ids] for e in tokenizer.encode_batch([render(chat) for chat in chats])]
    learned = [answers(tokenizer, np.array(row)).tolist() for row in rows]
    data = sum(len(m["content"].encode()) for chat in chats for m in chat if m["role"] == "assistant")
    perplexity(model, "conversations", rows, learned, data, device)


@torch.no_grad()
def sample(model, tokenizer: Tokenizer, prompt: str, temperature: float, generator: torch.Generator, limit: int = 300) -> str:
    ids = [0, *tokenizer.encode(prompt).ids]
    begin, limit = len(ids), len(ids) + limit
    while len(ids) < limit:
        logits = model(torch.tensor([ids], device=model.device)).logits[0, -1]
        if temperature == 0:
            best = int(logits.argmax())
        else:
            best = int(torch.multinomial(torch.softmax(logits / temperature, -1).cpu(), 1, generator=generator))
        if best in (0, 2):
            break
        ids.append(best)
    return tokenizer.decode(ids[begin:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    model = load(args.folder).to(args.device)
    measure(model, tokenizer, args.corpus, args.count, args.device)
    generator = torch.Generator().manual_seed(1)
    model = model.float()
    for prompt in PROMPTS:
        print(f"\n[{prompt}] greedy\n{sample(model, tokenizer, prompt, 0, generator)}")
        print(f"[{prompt}] temperature 0.8\n{sample(model, tokenizer, prompt, 0.8, generator)}", flush=True)
    for talk in TALKS:
        messages = []
        print()
        for said in talk:
            messages.append({"role": "user", "content": said})
            answer = sample(model, tokenizer, render(messages) + "<|im_start|>assistant\n", 0, generator)
            messages.append({"role": "assistant", "content": answer})
            print(f"> {said}\n{answer}", flush=True)


if __name__ == "__main__":
    main()
