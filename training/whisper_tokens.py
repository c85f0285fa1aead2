"""Ids of random texts and special tokens in Whisper's two vocabularies, as OpenAI's implementation gives them.

    PYTHONPATH=openai_whisper-20250625/whisper python whisper_tokens.py ../testdata/whisper/tokens.json [TEXTS]

The path has the unpacked source of openai-whisper, whose `tokenizer` needs tiktoken only.
"""

import importlib.metadata
import json
import random
import sys
from pathlib import Path

import tokenizer as openai

# Name, file, rows of the embedding, languages.
VOCABULARIES = [
    ("english", False, 51864, 99),
    ("multilingual", True, 51865, 99),
    ("large-v3", True, 51866, 100),
]

PARTS = [
    "the", "The", " quick", "isn't", "we'll", "I'VE", "don't", "Mr.", "3.14159", "2026", " 1,000,000", "½", "e.g.", "—", "…", "“", "”",
    "naïve", "Straße", "Ελληνικά", "Быстрая", "лиса", "中文", "文本", "，", "日本語", "。", "한국어", "العربية", "עברית", "हिन्दी", "ไทย",
    "😀", "👍🏽", "♪", "♪♪", " ♫", "[MUSIC]", "(laughs)", " -", "--", "'", "\"", "#", "\n", "\n\n", "\t", "  ", "     ", " ", "\u00a0",
    "aaaaaaa", "transcription", " Wörter", "\u0301", "_", "==", "https://example.org/?q=1&r=2", "\u200b", "ÿ", "\u007f", "\u0000",
]
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x904, 0x939), (0x3041, 0x3096), (0x4E00, 0x4FFF),
          (0xAC00, 0xADFF), (0x1F600, 0x1F64F), (0x2190, 0x21FF)]


def text(rng: random.Random) -> str:
    out = ""
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.6:
            out += rng.choice(PARTS) + rng.choice(["", " "])
        else:
            first, last = rng.choice(RANGES)
            out += "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 4)))
    return out


def vocabulary(multilingual: bool, rows: int, languages: int, texts: list[str]) -> dict:
    made = openai.get_tokenizer(multilingual, num_languages=languages)
    assert made.encoding.n_vocab == rows
    return {
        "file": f"{'multilingual' if multilingual else 'gpt2'}.tiktoken",
        "rows": rows,
        "languages": [[code, made.to_language_token(code)] for code in list(openai.LANGUAGES)[:languages]],
        "special": {name: made.special_tokens[f"<|{name}|>"] for name in
                    ["startoftranscript", "endoftext", "transcribe", "translate", "startofprev", "startoflm", "nospeech", "notimestamps",
                     "0.00", "30.00"]},
        "non_speech": list(made.non_speech_tokens),
        "ids": [made.encode(text) for text in texts],
    }


if __name__ == "__main__":
    out, count = Path(sys.argv[1]), int((sys.argv[2:] or ["600"])[0])
    rng = random.Random(25)
    texts = [text(rng) for _ in range(count)]
    made = {
        "made_by": f"training/whisper_tokens.py, openai-whisper 20250625, tiktoken {importlib.metadata.version('tiktoken')}",
        "names": openai.TO_LANGUAGE_CODE,
        "texts": texts,
        "vocabularies": {name: vocabulary(*rest, texts if name != "large-v3" else []) for name, *rest in VOCABULARIES},
    }
    out.write_text(json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n")
