"""Trains the speech model on sentences that espeak-ng says while it trains.

    python speech_train.py --out /tmp/akunu-speech --seconds 600

Worker processes make recordings, which are kept in a pool on the GPU, and lay out windows of them at random. The learning
rate follows the time that is used, so that training can be stopped by the clock: `--seconds` is the time of this run,
which goes from `--begin` to `--end` of the whole schedule. `--state` keeps weights and optimizer between runs; the weights
alone are written to `--out` every minute, in half precision.
"""

import argparse
import math
import mmap
import multiprocessing
import os
import queue
import random
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from speech_data import (END, FIRST_TIME, IGNORED, NO_TIMESTAMPS, START, TRANSCRIBE, Layout, Planner, Reader, Recording, collate,
                         make_tokenizer, suppressed, write_vocabulary)
from speech_espeak import RATE
from speech_model import FrontEnd, Learner, answer, write_model
from speech_score import errors, spread, words


def on_device(batch: dict[str, np.ndarray], device: str) -> dict[str, torch.Tensor]:
    parts = {name: torch.from_numpy(values) for name, values in batch.items()}
    if device == "cuda":
        parts = {name: part.pin_memory() for name, part in parts.items()}
    moved = {name: part.to(device, non_blocking=True) for name, part in parts.items()}
    return moved | {name: moved[name].long() for name in ("inputs", "targets")}


class Shelf:
    """A worker's part of the samples, in memory that it shares with the main process."""

    def __init__(self, capacity: int):
        self.samples = np.frombuffer(mmap.mmap(-1, capacity * 2), dtype=np.int16)
        self.marks = np.frombuffer(mmap.mmap(-1, 16), dtype=np.int64)  # samples that are written, and on the device


def work(number: int, seed: str, vocabulary: str, shelf: Shelf, size: int, looks: int, scrambled: float, found,
         looked_at) -> None:
    """Makes recordings until the shelf is full, and batches whenever one is wanted. The first worker begins with windows of
    held-out voices and sentences."""
    os.nice(5)
    torch.set_num_threads(1)
    reader, rng = Reader(Tokenizer.from_str(vocabulary), scrambled), random.Random(f"{seed}/{number}")
    planner, base = Planner(rng), number * len(shelf.samples)
    full = False

    def make(rng: random.Random, holdout: bool) -> Recording | None:
        recording = reader.recording(rng, holdout)
        at = int(shelf.marks[0])
        if recording is None or at + sum(sentence.length for sentence in recording.sentences) > len(shelf.samples):
            return None
        for sentence in recording.sentences:
            shelf.samples[at:at + sentence.length] = sentence.samples
            sentence.offset, sentence.samples = base + at, None
            at += sentence.length
        shelf.marks[0] = at
        return recording

    if number == 0:
        fixed, kept = random.Random("look"), []
        while len(kept) < 24:
            kept += [recording for recording in [make(fixed, True)] if recording]
        looked_at.put(look_layouts(kept, looks, fixed))
    recordings: list[tuple[int, Recording]] = []
    usable: list[Recording] = []
    batch = None
    while True:
        while recordings and recordings[0][0] <= shelf.marks[1]:
            usable.append(recordings.pop(0)[1])
        if batch is None and len(usable) >= 12:
            layouts = []
            while len(layouts) < size:
                layouts += [layout for layout in [planner.window(usable, rng.choice(usable))] if layout]
            batch = collate(layouts)
        if batch:
            try:
                found.put(batch, block=bool(full))
                batch = None
                continue
            except queue.Full:
                pass
        if full:
            time.sleep(0.01)
            continue
        recording = make(rng, False)
        full = len(shelf.samples) - shelf.marks[0] < 120 * RATE
        if recording:
            recordings.append((int(shelf.marks[0]), recording))


def look_layouts(recordings: list[Recording], count: int, rng: random.Random) -> list[Layout]:
    """Transcription with timestamps, without prompts."""
    planner, layouts = Planner(rng), []
    while len(layouts) < count:
        layout = planner.window(recordings, rng.choice(recordings))
        plain = layout and layout.segments and layout.inputs[0] == START and layout.inputs[2] == TRANSCRIBE
        if plain and layout.inputs[3] != NO_TIMESTAMPS and layout.targets[2] != IGNORED:
            layouts.append(layout)
    return layouts


class Pool:
    """All samples on the device."""

    def __init__(self, device: str, shelves: list[Shelf]):
        self.device, self.shelves = device, shelves
        self.size = len(shelves[0].samples)
        self.samples = torch.zeros(self.size * len(shelves), dtype=torch.int16, device=device)

    def fetch(self) -> None:
        for number, shelf in enumerate(self.shelves):
            written, copied = (int(mark) for mark in shelf.marks)
            if written > copied:
                base = number * self.size
                self.samples[base + copied:base + written] = torch.from_numpy(shelf.samples[copied:written])
                shelf.marks[1] = written

    def seconds(self) -> float:
        return sum(int(shelf.marks[1]) for shelf in self.shelves) / RATE


def look(learner: Learner, front: FrontEnd, pool: Pool, layouts: list[Layout], tokenizer: Tokenizer) -> None:
    began = time.time()
    wrong, total, late, miscounted, shown = 0, 0, [], 0, []
    for begin in range(0, len(layouts), 64):
        part = layouts[begin:begin + 64]
        batch = on_device(collate(part), pool.device)
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


def following(found, pool: Pool) -> dict[str, np.ndarray]:
    for _ in range(120):
        try:
            return found.get(timeout=0.5)
        except queue.Empty:
            pool.fetch()
    raise SystemExit("the workers make no batches")


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
    parser.add_argument("--pool", type=float, default=12e9, help="samples")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--scrambled", type=float, default=0.2, help="part of the recordings with words in no order")
    parser.add_argument("--decoder", action="store_true", help="trains the decoder alone")
    parser.add_argument("--look", type=int, default=96)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    began = time.time()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.vocabulary)) if args.vocabulary else make_tokenizer()
    write_vocabulary(args.out, tokenizer)
    seed, fork = f"speech/{args.begin}", multiprocessing.get_context("fork")
    shelves = [Shelf(int(args.pool) // args.workers) for _ in range(args.workers)]
    found, looked_at = fork.Queue(2 * args.workers), fork.Queue()
    workers = [fork.Process(target=work, daemon=True,
                            args=(i, seed, tokenizer.to_str(), shelf, args.batch, args.look, args.scrambled, found, looked_at))
               for i, shelf in enumerate(shelves)]
    for worker in workers:
        worker.start()
    print(f"{len(workers)} workers after {time.time() - began:.1f} s", flush=True)

    torch.manual_seed(int(args.begin * 1000) + 1)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it prepares each new length for a tenth of a second
    pool = Pool(args.device, shelves)
    front, learner = FrontEnd(args.device), Learner().to(args.device)
    if args.decoder:
        learner.model.model.encoder.requires_grad_(False)
        learner.phonemes.requires_grad_(False)
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
    layouts = looked_at.get(timeout=120)
    pool.fetch()
    while pool.seconds() < args.workers * 600:
        time.sleep(0.2)
        pool.fetch()
    print(f"{pool.seconds():.0f} s of speech after {time.time() - began:.1f} s", flush=True)

    def save() -> None:
        save_file({name: values.detach().half().cpu().contiguous() for name, values in learner.state_dict().items()
                   if "proj_out" not in name and "encoder.embed_positions" not in name}, str(args.out / "learner.safetensors"))

    since, printed, saved, looked = time.time(), time.time(), time.time(), time.time()
    first, count = step, 0
    while (now := time.time()) - began < args.seconds:
        if count % 20 == 0:
            pool.fetch()
        fraction = args.begin + (args.end - args.begin) * (now - began) / args.seconds
        for group in optimizer.param_groups:
            group["lr"] = rate(fraction, step, args.lr)
        batch = on_device(following(found, pool), args.device)
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
                  f"windows/s, pool {pool.seconds():.0f} s, queue {found.qsize()}", flush=True)
            printed = time.time()
        if now - saved > 60:
            save()
            saved = time.time()
        if now - looked > 100:
            learner.eval()
            look(learner, front, pool, layouts[:args.batch], tokenizer)
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
