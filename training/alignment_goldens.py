"""Golden word timestamps, from OpenAI's own implementation with random models and random times.

    python alignment_goldens.py ../crates/akunu/tests/golden/alignment.json

Needs: openai-whisper (made with 20250625).
"""

import json
import random
import sys

import numpy as np
import torch
import whisper
from whisper import timing
from whisper.model import ModelDimensions, Whisper
from whisper.tokenizer import get_tokenizer

TEXTS = {
    "en": [" And so, my fellow Americans: ask not what your country can do for you.", " \"Why?\" he said (twice)...",
           " It's 3.50 € – that's \N{GRINNING FACE} cheap!  OK? [Music] (--) ()"],
    "de": [" Das heißt: „Grüße aus Köln“, sagte er.", " Schön!"],
    "es": [" ¿Qué hora es? ¡Hola, señor!"],
    "ru": [" Привет, мир! Как дела?"],
    "zh": ["你好，世界。我们今天去哪里？𠮷野家"],
    "ja": ["こんにちは、世界。「東京」へ行きます！"],
    "th": ["สวัสดีชาวโลก ภาษาไทย"],
    "ko": [" 안녕하세요, 세계!"],
    "yue": ["你好呀，食咗飯未？"],
}


def tokenizer_of(language: str):
    return get_tokenizer(True, num_languages=100 if language == "yue" else 99, language=language, task="transcribe")


def digits(values) -> list:
    return [float(f"{value:.9g}") for value in np.asarray(values, dtype=np.float64).flatten()]


def with_bytes(tokenizer, tokens: list[int]) -> list:
    return [[token, tokenizer.encoding.decode_single_token_bytes(token).hex()] for token in tokens]


def splits(rng: random.Random) -> list:
    cases = []
    for language, texts in TEXTS.items():
        tokenizer = tokenizer_of(language)
        whole = [tokenizer.encode(text) for text in texts]
        # Cut inside a character.
        cut = [tokens[:-1] for tokens in whole] + [tokens[1:] for tokens in whole]
        bytes_only = [[rng.randrange(256) for _ in range(12)] for _ in range(4)]
        mixed = [[rng.choice(sum(whole, [])) for _ in range(20)] for _ in range(2)]
        for tokens in whole + cut + bytes_only + mixed:
            try:
                words, parts = tokenizer.split_to_word_tokens(tokens + [tokenizer.eot])
            except IndexError:
                continue
            # Some bytes that are no characters make it lose all tokens after them.
            if sum(parts, []) == tokens + [tokenizer.eot]:
                cases.append({"language": language, "tokens": with_bytes(tokenizer, tokens),
                              "words": [[word, len(part)] for word, part in zip(words[:-1], parts[:-1])]})
    return cases


def paths(rng: np.random.Generator) -> list:
    cases = []
    for rows, cols in [(1, 1), (1, 7), (6, 1), (5, 5), (9, 4), (4, 30), (12, 40)]:
        for most in (1, 3, 1000):
            matrix = rng.integers(-most, most + 1, (rows, cols))
            text, time = timing.dtw_cpu(-matrix.astype(np.float64))
            jumps = np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)
            cases.append({"frames": cols, "matrix": matrix.flatten().tolist(), "first": time[jumps].tolist()})
    return cases


def random_model(seed: int) -> Whisper:
    torch.manual_seed(seed)
    model = Whisper(ModelDimensions(n_mels=80, n_audio_ctx=40, n_audio_state=16, n_audio_head=2, n_audio_layer=1,
                                    n_vocab=51865, n_text_ctx=64, n_text_state=16, n_text_head=2, n_text_layer=4))
    for name, values in model.named_parameters():
        with torch.no_grad():
            noise = torch.randn_like(values) * (0.6 if values.dim() > 1 else 0.1)
            values.copy_(noise + ("ln" in name and "weight" in name))
    return model.eval()


def words_of(alignment: list) -> list:
    return [[w.word, w.tokens, float(w.start), float(w.end), float(w.probability)] for w in alignment if w.word]


def window(seed: int, language: str, text: str, frames: int, few_heads: bool) -> dict:
    model, tokenizer = random_model(seed), tokenizer_of(language)
    if few_heads:
        heads = torch.zeros(4, 2, dtype=torch.bool)
        heads[1, 1] = heads[2, 0] = heads[3, 1] = True
        model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    seen, scores = {}, [None] * 4
    for index, block in enumerate(model.decoder.blocks):
        block.cross_attn.register_forward_hook(lambda _, ins, outs, i=index: scores.__setitem__(i, outs[-1][0]))
    softmax, dtw = torch.Tensor.softmax, timing.dtw

    def spy(matrix):
        seen["matrix"] = -matrix
        return dtw(matrix)

    def spy_softmax(values, dim):
        result = softmax(values, dim=dim)
        if values.shape[-1] == tokenizer.eot:
            seen["probabilities"] = result
        return result

    timing.dtw, torch.Tensor.softmax = spy, spy_softmax
    tokens = tokenizer.encode(text)
    words = timing.find_alignment(model, tokenizer, tokens, torch.rand(80, 80) * 2 - 1, frames)
    timing.dtw, torch.Tensor.softmax = dtw, softmax
    chosen = torch.stack([scores[layer][head] for layer, head in model.alignment_heads.indices().T], dim=1)
    probabilities = seen["probabilities"][range(len(tokens)), tokens]
    return {"language": language, "before": len(tokenizer.sot_sequence), "heads": chosen.shape[1],
            "positions": 40, "frames": frames // 2, "scores": digits(chosen), "matrix": digits(seen["matrix"]),
            "tokens": with_bytes(tokenizer, tokens), "probabilities": digits(probabilities), "words": words_of(words)}


def assigned(rng: random.Random, language: str) -> dict:
    """Segments of several texts; words of random lengths, some far too long."""
    tokenizer = tokenizer_of(language)
    texts = [tokenizer.encode(rng.choice(TEXTS[language])) for _ in range(rng.randint(1, 4))]
    seek, last_speech = rng.randrange(0, 9000), 0.0
    offset = seek / 100
    last_speech = round(max(0.0, offset - rng.random() * 3), 2)
    words, parts = tokenizer.split_to_word_tokens(sum(texts, []) + [tokenizer.eot])
    frame, alignment, segments = rng.randrange(60), [], []
    for word, part in zip(words[:-1], parts[:-1]):
        last = frame
        frame += rng.choice([0, 5, 10, 10, 15, 20, 25, 30, rng.randrange(40, 300)])
        alignment.append(timing.WordTiming(word, part, last / 50, frame / 50, round(rng.random(), 3)))
    at = offset
    for tokens in texts:
        end = at + round(rng.random() * 4 + 0.2, 2)
        segments.append({"seek": seek, "start": at, "end": end, "tokens": [50364, *tokens, 50414]})
        at = end + rng.choice([0, 0.5])
    before = {"offset": offset, "last_speech": last_speech, "alignment": words_of(alignment),
              "segments": [[s["start"], s["end"], len(s["tokens"]) - 2] for s in segments]}
    find, timing.find_alignment = timing.find_alignment, lambda *_, **__: alignment
    timing.add_word_timestamps(segments=segments, model=None, tokenizer=tokenizer, mel=None, num_frames=3000,
                               last_speech_timestamp=last_speech)
    timing.find_alignment = find
    result = [[s["start"], s["end"], [[w["word"], w["start"], w["end"], w["probability"]] for w in s["words"]]]
              for s in segments]
    return before | {"result": result}


if __name__ == "__main__":
    rng = random.Random(5)
    golden = {
        "made_by": f"training/alignment_goldens.py, openai-whisper {whisper.__version__}",
        "splits": splits(rng),
        "paths": paths(np.random.default_rng(5)),
        "windows": [
            # Seeds for which most words begin at different times.
            window(34, "en", " Ask not: what?", 67, False),
            window(11, "ja", "東京へ行きます。", 80, True),
            window(39, "de", " Ja.", 5, True),
            window(37, "en", " One word", 30, False),
        ],
        "assigned": [assigned(rng, language) for language in ["en", "en", "en", "zh", "de", "ja"] * 6],
    }
    with open(sys.argv[1], "w") as file:
        json.dump(golden, file, separators=(",", ":"), ensure_ascii=False)
