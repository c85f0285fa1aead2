"""Writes audio of held-out voices and sentences with its truth: text, and the times of sentences and words.

    python speech_samples.py /tmp/akunu-speech ../testdata/speech

ffmpeg encodes: long ones as MP3, which is small, short ones as FLAC.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from speech_data import Reader
from speech_espeak import RATE
from speech_evaluate import add_noise, lay, passage

# (name, variants of the voice, language, seconds, decibels to the noise)
SAMPLES = [
    ("story.mp3", ["f4"], "en", 66.0, None),
    ("pause.mp3", ["quincy"], "en", 18.0, 30.0),
    ("german.mp3", ["steph"], "de", 12.0, None),
    ("short.flac", ["benjamin"], "en", 4.0, None),
]
SILENCE = ("silence.flac", 4.0)
PAUSE = 10.0  # seconds in the middle of pause.mp3


def encode(samples: np.ndarray, path: Path) -> None:
    data = np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2").tobytes()
    codec = ["-c:a", "libmp3lame", "-b:a", "24k"] if path.suffix == ".mp3" else ["-compression_level", "12"]
    source = ["-f", "s16le", "-ar", str(RATE), "-ac", "1", "-i", "-"]
    exact = ["-map_metadata", "-1", "-fflags", "+bitexact", "-flags:a", "+bitexact"]
    subprocess.run(["ffmpeg", "-loglevel", "error", "-y", *source, *codec, *exact, str(path)], input=data, check=True)


def main() -> None:
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    reader, truth = Reader(Tokenizer.from_file(str(model / "tokenizer.json"))), []
    for name, variants, language, seconds, noise in SAMPLES:
        rng = random.Random(f"samples/{name}")
        placed = []
        while not placed:
            voice, samples, placed = passage(reader, rng, language, seconds, variants)
        if name == "pause.mp3":
            half = len(placed) // 2
            placed = [(at + (PAUSE if index >= half else 0.0), sentence) for index, (at, sentence) in enumerate(placed)]
            samples = lay(placed, len(samples) / RATE + PAUSE)
        encode(add_noise(samples, noise, rng), folder / name)
        entry = {
            "file": name, "voice": voice, "language": language, "seconds": round(len(samples) / RATE, 3),
            "text": " ".join(sentence.text for _, sentence in placed),
            "sentences": [{
                "text": sentence.text, "start": round(at, 3), "end": round(at + sentence.seconds, 3),
                "words": [{"word": word, "start": round(at + begin, 3), "end": round(at + end, 3)}
                          for word, begin, end in sentence.words],
            } for at, sentence in placed],
        }
        if language != "en":
            translations = [reader.tokenizer.decode(sentence.translation.tolist()).strip() for _, sentence in placed]
            entry["translation"] = " ".join(translations)
        truth.append(entry)
    name, seconds = SILENCE
    noise = np.random.default_rng(1).standard_normal(round(seconds * RATE)).astype(np.float32) * 2 / 32768
    encode(noise, folder / name)
    truth.append({"file": name, "seconds": seconds, "text": "", "sentences": []})
    (folder / "truth.json").write_text(json.dumps(truth, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
