#!/usr/bin/env python3
"""Speed of Akunu beside CTranslate2, which faster-whisper runs on: Whisper's shapes with random weights, in turn.

    pip install ctranslate2 numpy
    python benches/faster_whisper.py AKUNU [--threads 2] [--turns 3] [base small]

Prints the medians of each turn, for the encoder with one window of 30 s and for a token of the greedy decoder, and the
ratios of the medians of all turns: CTranslate2's time divided by Akunu's. CTranslate2 computes the keys and values of the
window with the decoder's first token, which is not measured; in Akunu's they are in the encoder's time.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import ctranslate2
import numpy as np
from ctranslate2.specs import whisper_spec

SHAPES = {"tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}
VOCABULARY, POSITIONS, CONTEXT, BANDS = 51865, 1500, 448, 80
TOKENS = 96
END, START = 50257, [50258, 50259, 50359, 50363]
MARKS = {END: "<|endoftext|>", 50258: "<|startoftranscript|>", 50259: "<|en|>", 50358: "<|translate|>",
         50359: "<|transcribe|>", 50360: "<|startoflm|>", 50361: "<|startofprev|>", 50362: "<|nospeech|>",
         50363: "<|notimestamps|>", 50364: "<|0.00|>"}
# Akunu's type of weights, and CTranslate2's type of computation.
TYPES = {"Q8_0": "int8", "F32": "float32"}
random = np.random.default_rng(1)


def numbers(*shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32) * np.float32(0.02)


def fill_linear(spec, outputs: int, inputs: int) -> None:
    spec.weight, spec.bias = numbers(outputs, inputs), numbers(outputs)


def fill_norm(spec, width: int) -> None:
    spec.gamma, spec.beta = np.ones(width, np.float32), numbers(width)


def fill_tower(tower, width: int, positions: int) -> None:
    tower.position_encodings.encodings = numbers(positions, width)
    fill_norm(tower.layer_norm, width)
    for layer in tower.layer:
        fill_linear(layer.self_attention.linear[0], 3 * width, width)
        fill_linear(layer.self_attention.linear[1], width, width)
        norms = [layer.self_attention.layer_norm, layer.ffn.layer_norm]
        if hasattr(layer, "attention"):
            for linear, outputs in zip(layer.attention.linear, (width, 2 * width, width)):
                fill_linear(linear, outputs, width)
            norms.append(layer.attention.layer_norm)
        for norm in norms:
            fill_norm(norm, width)
        fill_linear(layer.ffn.linear_0, 4 * width, width)
        fill_linear(layer.ffn.linear_1, width, 4 * width)


def write(folder: Path, shape: tuple[int, int, int], kind: str | None) -> None:
    width, heads, layers = shape
    spec = whisper_spec.WhisperSpec(layers, heads, layers, heads)
    for conv, inputs in ((spec.encoder.conv1, BANDS), (spec.encoder.conv2, width)):
        conv.weight, conv.bias = numbers(width, inputs, 3), numbers(width)
    fill_tower(spec.encoder, width, POSITIONS)
    fill_tower(spec.decoder, width, CONTEXT)
    spec.decoder.embeddings.weight = numbers(VOCABULARY, width)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.register_vocabulary([MARKS.get(i, f"t{i}") for i in range(VOCABULARY)])
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [END], [END]
    spec.config.lang_ids, spec.config.alignment_heads = [50259], [[layers - 1, 0]]
    spec.validate()
    spec.optimize(quantization=kind)
    folder.mkdir()
    spec.save(str(folder))


def of_peer(model: ctranslate2.models.Whisper) -> tuple[float, float]:
    frames = np.random.default_rng(2).standard_normal((1, BANDS, 3000), np.float32)
    window = ctranslate2.StorageView.from_array(frames)
    encoder, decoder = [], []
    for _ in range(4):
        start = time.perf_counter()
        states = model.encode(window)
        np.array(states).sum()
        encoder.append(time.perf_counter() - start)
    for _ in range(3):
        # The difference of two lengths: without the prompt and the keys of the window. CTranslate2 generates half of
        # the length that it is given.
        took = []
        for length in (2 * len(START) + 2, 2 * len(START) + 2 + 2 * TOKENS):
            start = time.perf_counter()
            found = model.generate(
                states, [START], beam_size=1, max_length=length, suppress_tokens=[END], suppress_blank=False
            )
            took.append((time.perf_counter() - start, len(found[0].sequences_ids[0])))
        (short, few), (long, many) = took
        decoder.append((long - short) / (many - few))
    return median(encoder[1:]) * 1e3, median(decoder) * 1e3


def of_ours(akunu: str, file: Path, threads: int) -> tuple[float, float]:
    command = [akunu, "bench", str(file), "-n", str(TOKENS), "-b", "1", "-r", "3", "-t", str(threads), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    of = {test["test"]: test["pass_ms"] for test in found}
    return of["encode"], of[f"tg{TOKENS}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("akunu")
    parser.add_argument("shapes", nargs="*", default=["base", "small"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    for name in asked.shapes:
        for ours, theirs in TYPES.items():
            with tempfile.TemporaryDirectory() as folder:
                file, peer = Path(folder) / "model.gguf", Path(folder) / "peer"
                synth = [asked.akunu, "synth", f"whisper-{name}", str(file), "-q", ours]
                subprocess.run(synth, check=True, capture_output=True)
                write(peer, SHAPES[name], "int8" if theirs == "int8" else None)
                turns = []
                for _ in range(asked.turns):
                    model = ctranslate2.models.Whisper(str(peer), compute_type=theirs, intra_threads=asked.threads)
                    turns.append((of_ours(asked.akunu, file, asked.threads), of_peer(model)))
                    del model
                for at, part in enumerate(("encoder", "decoder")):
                    times = [(mine[at], other[at]) for mine, other in turns]
                    listed = ", ".join(f"{mine:.2f} / {other:.2f}" for mine, other in times)
                    ratio = median(other for _, other in times) / median(mine for mine, _ in times)
                    print(f"{name} {ours} / {theirs}, {part}, ms: {listed}; ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
