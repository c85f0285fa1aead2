"""Word error rate and errors of sentence times of `akunu transcribe` on held-out voices and sentences.

    python speech_heard.py MODEL TOKENIZER.JSON [--akunu akunu] [--windows 30]

Makes the audio with espeak-ng (see speech_espeak.py), and runs the program on it, greedily and with 5 beams.
"""

import argparse
import json
import random
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from speech_data import Reader
from speech_espeak import HELD_OUT, RATE, TRAINED
from speech_evaluate import add_noise, passage
from speech_score import errors, words

# Name, language, voices, whether sentences are held out, decibels between speech and noise.
CONDITIONS = [
    ("English", "en", HELD_OUT, True, None),
    ("English, noise at 20 dB", "en", HELD_OUT, True, 20),
    ("English, sentences of training", "en", HELD_OUT, False, None),
    ("English, voices of training", "en", TRAINED, True, None),
    ("German", "de", HELD_OUT, True, None),
]


def write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def main(args: argparse.Namespace) -> None:
    reader = Reader(Tokenizer.from_file(str(args.tokenizer)))
    for name, language, voices, fresh, noise in CONDITIONS:
        with tempfile.TemporaryDirectory() as folder:
            truth = []
            for i in range(args.windows):
                rng = random.Random(f"{name}/{i}")
                _, samples, placed = passage(reader, rng, language, 29.5, voices, fresh)
                write(Path(folder, f"{i:03}.wav"), add_noise(samples, noise, rng))
                truth.append([(sentence.text, begin, begin + sentence.seconds) for begin, sentence in placed])
            files = sorted(str(path) for path in Path(folder).glob("*.wav"))
            for beams in ("1", "5"):
                command = [args.akunu, "transcribe", str(args.model), *files, "-l", language, "--beam", beams, "--json", "-o", folder]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                report(f"{name}, beams {beams}", Path(folder), truth)


def report(name: str, folder: Path, truth: list) -> None:
    wrong, total, off, complete = 0, 0, [], 0
    for i, sentences in enumerate(truth):
        heard = json.loads((folder / f"{i:03}.json").read_text())
        said = words(" ".join(text for text, _, _ in sentences))
        wrong, total = wrong + errors(said, words(heard["text"])), total + len(said)
        if len(heard["segments"]) == len(sentences):
            complete += 1
            for segment, (_, begin, end) in zip(heard["segments"], sentences):
                off += [abs(segment["start"] - begin), abs(segment["end"] - end)]
    off.sort()
    print(
        f"{name}: {wrong} of {total} words wrong, {wrong / total:.2%}; all sentences in {complete} of {len(truth)} windows, times "
        f"mean {sum(off) / len(off):.3f} s, 95% within {off[int(0.95 * len(off))]:.3f} s, largest {off[-1]:.3f} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--akunu", default="akunu")
    parser.add_argument("--windows", type=int, default=30)
    main(parser.parse_args())
