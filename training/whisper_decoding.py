"""Tokens that OpenAI's own decoding finds in made-up logits: what tests of our search are compared with.

usage: whisper_decoding.py DECODING.PY OUT.json

DECODING.PY is `whisper/decoding.py` of the package `openai-whisper` (20250625), which runs here with a small vocabulary
and a model whose logits are a hash of the tokens before. Needs torch.
"""

import importlib.util
import json
import sys
import types

import torch

# The vocabulary: text, then control tokens in Whisper's order, then timestamps.
TEXT = 60
NAMES = ["eot", "sot", "en", "de", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps"]
IDS = {name: TEXT + i for i, name in enumerate(NAMES)}
TIMESTAMPS = TEXT + len(NAMES)
ROWS = TIMESTAMPS + 1501
CONTEXT = 48
MASK = (1 << 64) - 1


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def logits_after(seed, tokens):
    """Every value is a multiple of 2^-20, so that it is the same number in f32."""
    state = mix(seed + 1)
    for token in tokens:
        state = mix(state + token + 1 & MASK)
    row = []
    for i in range(ROWS):
        value = (mix(state + i * 0x9E3779B97F4A7C15 & MASK) >> 41) / 2**20  # 0 to 8
        if i >= TIMESTAMPS:
            # Timestamps near the one that is due are more probable.
            due = 40 * len(tokens)
            value = value - 3.0 - min(abs(i - TIMESTAMPS - due), 512) / 64.0
        if i == IDS["eot"]:
            value += len(tokens) / (2.0 if seed % 2 else 8.0) - 4.0
        row.append(value)
    return row


class Tokenizer:
    eot, sot, sot_prev, sot_lm = IDS["eot"], IDS["sot"], IDS["sot_prev"], IDS["sot_lm"]
    transcribe, translate, no_speech = IDS["transcribe"], IDS["translate"], IDS["no_speech"]
    no_timestamps, timestamp_begin = IDS["no_timestamps"], TIMESTAMPS
    non_speech_tokens = (3, 17, 41)
    sot_sequence = (IDS["sot"], IDS["en"], IDS["transcribe"])
    sot_sequence_including_notimestamps = sot_sequence + (IDS["no_timestamps"],)

    def encode(self, text):
        assert text == " "
        return [7]

    def decode(self, tokens):
        return ""


class Inference:
    def __init__(self, seed):
        self.seed = seed

    def logits(self, tokens, audio_features):
        rows = []
        for sequence in tokens.tolist():
            rows.append([logits_after(self.seed, sequence[: i + 1]) for i in range(len(sequence))])
        return torch.tensor(rows, dtype=torch.float32)

    def rearrange_kv_cache(self, source_indices):
        pass

    def cleanup_caching(self):
        pass


def load(path):
    package = types.ModuleType("whisper")
    package.__path__ = []
    sys.modules["whisper"] = package
    parts = {
        "audio": {"CHUNK_LENGTH": 30},
        "tokenizer": {"Tokenizer": Tokenizer, "get_tokenizer": lambda *args, **named: Tokenizer()},
        "utils": {"compression_ratio": lambda text: 0.0},
    }
    for name, contents in parts.items():
        module = types.ModuleType(f"whisper.{name}")
        module.__dict__.update(contents)
        sys.modules[f"whisper.{name}"] = module
    spec = importlib.util.spec_from_file_location("whisper.decoding", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["whisper.decoding"] = module
    spec.loader.exec_module(module)
    return module


def main():
    decoding = load(sys.argv[1])
    model = types.SimpleNamespace(
        is_multilingual=True,
        num_languages=2,
        device="cpu",
        decoder=types.SimpleNamespace(blocks=[]),
        dims=types.SimpleNamespace(n_text_ctx=CONTEXT, n_audio_ctx=1500, n_audio_state=1),
    )
    cases = []
    for seed in range(12):
        for width in (None, 2, 5):
            for without in (False, True):
                prompt = [5, 9, 11, 2] if seed % 3 == 1 else None
                patience = 2.0 if width == 2 and seed % 2 else None
                options = decoding.DecodingOptions(
                    language="en", beam_size=width, patience=patience, without_timestamps=without, prompt=prompt, fp16=False
                )
                task = decoding.DecodingTask(model, options)
                task.inference = Inference(seed)
                if width is not None:
                    task.decoder.inference = task.inference
                [result] = task.run(torch.zeros(1, 1500, 1))
                cases.append(
                    {
                        "seed": seed,
                        "width": width or 1,
                        "patience": patience or 1.0,
                        "timestamps": not without,
                        "prompt": list(task.initial_tokens),
                        "start": task.sot_index,
                        "tokens": result.tokens,
                        "mean_log_probability": result.avg_logprob,
                        "no_speech": result.no_speech_prob,
                    }
                )
    with open(sys.argv[2], "w") as out:
        json.dump({"context": CONTEXT, "text": TEXT, "cases": cases}, out)
        out.write("\n")


main()
