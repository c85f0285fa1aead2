"""Trains the tokenizer and the model on a corpus of `corpus.py`.

    python train.py --corpus /tmp/tales --out /tmp/akunu-tales

writes a Hugging Face folder: config.json, model.safetensors, tokenizer.json.
Each story or conversation is preceded by <|endoftext|>, which therefore marks both
beginning and end; a training window starts at the beginning of a text and continues
into the next ones. Half of the windows start with a story, half with a
conversation, of which only the assistant's tokens contribute to the loss.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from chatml import END, START, STOP, render
from model import Llama, Shape

SPECIAL = [END, START, STOP]


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """Byte-level BPE with GPT-2's byte alphabet and pre-tokeniser."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == vocab and [tokenizer.token_to_id(t) for t in SPECIAL] == [0, 1, 2]
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """All texts as one row of ids, and where each begins (at its END token)."""
    encoded = [e.ids for part in range(0, len(texts), 50_000) for e in tokenizer.encode_batch_fast(texts[part:part + 50_000])]
    lengths = np.array([len(ids) + 1 for ids in encoded])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    row = np.zeros(starts[-1], dtype=np.int16)
    for start, ids in zip(starts, encoded):
        row[start + 1:start + 1 + len(ids)] = ids
    return row, starts[:-1]


def answers(tokenizer: Tokenizer, row: np.ndarray) -> np.ndarray:
    """Which of a row of conversations' ids are Akunu's: from after "assistant\\n" to <|im_end|>."""
    head = tokenizer.encode("assistant\n").ids
    starts, stops = np.flatnonzero(row == 1), np.flatnonzero(row == 2)
    assert len(starts) == len(stops) and (starts < stops).all()
    mine = np.ones(len(starts), dtype=bool)
    for i, token in enumerate(head):
        mine &= row[starts + 1 + i] == token
    edges = np.zeros(len(row) + 1, dtype=np.int8)
    edges[starts[mine] + 1 + len(head)] = 1
    edges[stops[mine] + 1] = -1
    return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)


def learning_rate(step: int, steps: int, peak: float) -> float:
    warmup = steps // 25
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def windows(row: torch.Tensor, learned: torch.Tensor, starts: torch.Tensor, count: int, window: torch.Tensor):
    """Ids from the beginning of as many texts, and which of them are learned."""
    at = starts[torch.randint(len(starts), (count,), device=row.device)][:, None] + window
    return row[at].long(), learned[at]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64, help="windows of 2,048 tokens a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    shape = Shape()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    began = time.time()
    stories = (args.corpus / "train.txt").read_text().splitlines()
    chats = [render(json.loads(line)) for line in (args.corpus / "train.jsonl").read_text().splitlines()]
    tokenizer = train_tokenizer(stories[:60_000] + chats[:20_000], shape.vocab)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    corpora = []
    for texts in (stories, chats):
        row, starts = encode(tokenizer, texts)
        learned = answers(tokenizer, row) if texts is chats else np.ones(len(row), dtype=bool)
        print(f"{len(row)} tokens, {len(row) / len(texts):.1f} a text, {learned.mean():.3f} of them learned, "
              f"after {time.time() - began:.0f} s", flush=True)
        starts = starts[starts + shape.context + 1 < len(row)]
        corpora.append([torch.from_numpy(a).to(args.device) for a in (row, learned, starts)])
    window = torch.arange(shape.context + 1, device=args.device)

    model = Llama(shape).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=args.device == "cuda")
    forward = torch.compile(model) if args.device == "cuda" else model
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        ids, wanted = zip(*(windows(*corpus, args.batch // 2, window) for corpus in corpora))
        ids, wanted = torch.cat(ids), torch.cat(wanted)
        targets = ids[:, 1:].masked_fill(~wanted[:, 1:], -100)
        with torch.autocast(args.device, torch.bfloat16):
            logits = forward(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, {time.time() - began:.0f} s", flush=True)

    save_file({name: p.detach().float().cpu().contiguous() for name, p in model.named_parameters()}, str(args.out / "model.safetensors"))
    (args.out / "config.json").write_text(json.dumps(shape.hf_config(), indent=2) + "\n")


if __name__ == "__main__":
    main()
