"""Trains the speech model on sentences that espeak-ng says while it trains.

    python speech_train.py --out /tmp/akunu-speech --seconds 600

Worker processes make recordings, which are kept in a pool on the GPU; windows are laid out from the pool at random. The
learning rate follows the time that is used, so that training can be stopped by the clock: `--seconds` is the time of this
run, which goes from `--begin` to `--end` of the whole schedule. `--state` keeps weights and optimizer between runs; the
weights alone are written to `--out` every minute, in half precision.
"""

import argparse
import math
import multiprocessing
import os
import queue
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from speech_data import (END, FIRST_TIME, NO_TIMESTAMPS, START, TRANSCRIBE, Layout, Planner, Reader, Recording, collate, make_tokenizer,
                         suppressed, write_vocabulary)
from speech_espeak import RATE
from speech_model import FrontEnd, Learner, answer, write_model
from speech_score import errors, spread, words


def work(number: int, seed: str, vocabulary: str, found) -> None:
    """Recordings without end; the first worker begins with some that are held out."""
    torch.set_num_threads(1)
    reader, rng = Reader(Tokenizer.from_str(vocabulary)), random.Random(f"{seed}/{number}")
    first = random.Random("look")
    held_out = 16 if number == 0 else 0
    while True:
        recording = reader.recording(first if held_out else rng, bool(held_out))
        if recording is None:
            continue
        samples = np.concatenate([sentence.samples for sentence in recording.sentences])
        for sentence in recording.sentences:
            sentence.samples = None
        found.put((bool(held_out), recording, samples))
        held_out = max(held_out - 1, 0)


class Pool:
    """Samples of recordings on the device, in the order of their arrival, until it is full."""

    def __init__(self, device: str, capacity: int):
        self.device = device
        self.samples = torch.zeros(capacity, dtype=torch.int16, device=device)
        self.used = 0
        self.recordings: list[Recording] = []
        self.held_out: list[Recording] = []

    def receive(self, found, full: threading.Event) -> None:
        stream = torch.cuda.Stream() if self.device == "cuda" else None
        while not full.is_set():
            held_out, recording, samples = found.get()
            if self.used + len(samples) > len(self.samples):
                full.set()
                break
            with torch.cuda.stream(stream):
                self.samples[self.used:self.used + len(samples)] = torch.from_numpy(samples)
            if stream:
                stream.synchronize()
            at = self.used
            for sentence in recording.sentences:
                sentence.offset = at
                at += sentence.length
            self.used = at
            (self.held_out if held_out else self.recordings).append(recording)


def lay_out(pool: Pool, seed: str, size: int, batches: queue.Queue) -> None:
    rng = random.Random(seed)
    planner = Planner(rng)
    while True:
        layouts = []
        while len(layouts) < size:
            layout = planner.window(pool.recordings, rng.choice(pool.recordings))
            if layout:
                layouts.append(layout)
        batches.put({name: torch.from_numpy(part) for name, part in collate(layouts).items()})


def look_layouts(pool: Pool, count: int) -> list[Layout]:
    """Windows of held-out voices and sentences: transcription with timestamps, without prompts."""
    rng = random.Random("look")
    planner, layouts = Planner(rng), []
    while len(layouts) < count:
        layout = planner.window(pool.held_out, rng.choice(pool.held_out))
        plain = layout and layout.segments and layout.inputs[0] == START and layout.inputs[2] == TRANSCRIBE
        if plain and layout.inputs[3] != NO_TIMESTAMPS and layout.targets[2] != -100:
            layouts.append(layout)
    return layouts


def look(learner: Learner, front: FrontEnd, pool: Pool, layouts: list[Layout], tokenizer: Tokenizer) -> None:
    began = time.time()
    wrong, total, late, miscounted, shown = 0, 0, [], 0, []
    for begin in range(0, len(layouts), 32):
        part = layouts[begin:begin + 32]
        batch = {name: torch.from_numpy(values).to(pool.device) for name, values in collate(part).items()}
        frames = front(pool.samples, batch["sounds"], batch["end"])
        with torch.autocast(pool.device, torch.bfloat16), torch.compiler.set_stance("force_eager"):
            answers = answer(learner.model, frames, batch["inputs"][:, :3])
        for layout, ids in zip(part, answers):
            expected = [token for token in layout.targets[2:] if token != END]
            truth, heard = (words(tokenizer.decode([t for t in row if t < END])) for row in (expected, ids))
            wrong += errors(truth, heard)
            total += len(truth)
            times, found = ([t for t in row if t >= FIRST_TIME] for row in (expected, ids))
            miscounted += len(times) != len(found)
            if len(times) == len(found):
                late += [abs(a - b) * 0.02 for a, b in zip(times, found)]
            if len(shown) < 2:
                shown.append(f"  {tokenizer.decode(expected, skip_special_tokens=False)}\n  {tokenizer.decode(ids, skip_special_tokens=False)}")
    print(f"held out: word errors {wrong / total:.4f} of {total}, timestamps {spread(late)}, {miscounted} of {len(layouts)} "
          f"windows with another number; {time.time() - began:.1f} s", flush=True)
    print("\n".join(shown), flush=True)


def rate(fraction: float, step: int, peak: float) -> float:
    decay = 1.0 if fraction < 0.35 else 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (fraction - 0.35) / 0.65))
    return peak * min(1.0, (step + 1) / 300) * decay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--begin", type=float, default=0.0)
    parser.add_argument("--end", type=float, default=1.0)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--weights", type=Path, help="learner.safetensors of an earlier run, where there is no state")
    parser.add_argument("--vocabulary", type=Path, help="tokenizer.json of an earlier run")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--pool", type=float, default=15e9, help="samples")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--look", type=int, default=96)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    began = time.time()
    sys.setswitchinterval(0.001)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.vocabulary)) if args.vocabulary else make_tokenizer()
    write_vocabulary(args.out, tokenizer)
    found = multiprocessing.get_context("fork").Queue(64)
    seed = f"speech/{args.begin}"
    workers = [multiprocessing.get_context("fork").Process(target=work, args=(i, seed, tokenizer.to_str(), found), daemon=True)
               for i in range(args.workers)]
    for worker in workers:
        worker.start()
    print(f"{len(workers)} workers after {time.time() - began:.1f} s", flush=True)

    torch.manual_seed(int(args.begin * 1000) + 1)
    torch.backends.cudnn.benchmark = True
    pool, full = Pool(args.device, int(args.pool)), threading.Event()
    threading.Thread(target=pool.receive, args=(found, full), daemon=True).start()
    front, learner = FrontEnd(args.device), Learner().to(args.device)
    decayed = [p for p in learner.parameters() if p.requires_grad and p.dim() >= 2]
    plain = [p for p in learner.parameters() if p.requires_grad and p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.98), fused=args.device == "cuda")
    step = 0
    if args.state and args.state.exists() and args.begin > 0:
        state = torch.load(args.state, map_location=args.device)
        learner.load_state_dict(state["learner"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"goes on after step {step}", flush=True)
    elif args.weights:
        learner.load_state_dict({name: values.float() for name, values in load_file(args.weights).items()}, strict=False)
        print("goes on with the weights alone", flush=True)
    if args.compile:
        for layer in learner.model.model.encoder.layers:
            layer.compile()
    while len(pool.held_out) < 16 or len(pool.recordings) < 20 * len(workers):
        time.sleep(0.1)
    layouts = look_layouts(pool, args.look)
    batches: queue.Queue = queue.Queue(6)
    threading.Thread(target=lay_out, args=(pool, seed, args.batch, batches), daemon=True).start()
    print(f"{len(pool.recordings)} recordings after {time.time() - began:.1f} s", flush=True)

    def save() -> None:
        save_file({name: values.detach().half().cpu().contiguous() for name, values in learner.state_dict().items()
                   if "proj_out" not in name and "encoder.embed_positions" not in name}, str(args.out / "learner.safetensors"))

    since, printed, saved, looked = time.time(), time.time(), time.time(), time.time()
    first, sums, count = step, 0.0, 0
    while (now := time.time()) - began < args.seconds:
        if full.is_set() and workers:
            for worker in workers:
                worker.terminate()
            workers = []
            print("the pool is full", flush=True)
        fraction = args.begin + (args.end - args.begin) * (now - began) / args.seconds
        for group in optimizer.param_groups:
            group["lr"] = rate(fraction, step, args.lr)
        batch = {name: part.to(args.device, non_blocking=True) for name, part in batches.get().items()}
        with torch.no_grad():
            frames = front(pool.samples, batch["sounds"], batch["end"])
        with torch.autocast(args.device, torch.bfloat16):
            losses = learner(frames, batch)
        loss = losses["answers"] + (0.3 if fraction < 0.5 else 0.1) * losses["phonemes"] + 0.1 * losses["alignment"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        count += 1
        if count == 1 or now - printed > 5:
            values = ", ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            print(f"step {step}, {now - began:.0f} s, {fraction:.3f}: {values}; {(step - first) * args.batch / (time.time() - since):.0f} "
                  f"windows/s, pool {pool.used / RATE:.0f} s, queue {batches.qsize()}", flush=True)
            printed = time.time()
        if now - saved > 60:
            save()
            saved = time.time()
        if now - looked > 60:
            learner.eval()
            look(learner, front, pool, layouts[:32], tokenizer)
            learner.train()
            looked = time.time()
    save()
    if args.state:
        torch.save({"learner": learner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.state)
    for worker in workers:
        worker.terminate()
    learner.eval()
    look(learner, front, pool, layouts, tokenizer)
    write_model(args.out, learner, suppressed(tokenizer), [tokenizer.encode(" ").ids[0], END])
    print(f"done after {time.time() - began:.1f} s; largest memory {torch.cuda.max_memory_allocated() / 1e9 if args.device == 'cuda' else 0:.1f} GB",
          flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
