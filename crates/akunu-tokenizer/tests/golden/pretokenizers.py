#!/usr/bin/env python3
"""Writes pretokenizers.json: how Hugging Face's `tokenizers` cuts awkward texts, for each family that we know.

    pip install tokenizers            # 0.23.3 wrote the file that is checked in
    python3 crates/akunu-tokenizer/tests/golden/pretokenizers.py [TEXTS]

Takes a few seconds. TEXTS is how many random texts to add to the written ones (100). The expressions are those of
the models' own tokenizer.json files; `default` and `falcon` are what GGUF files mean by these names.
"""
import json
import pathlib
import random
import sys

from tokenizers import Regex, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def cl100k(digits, contractions=CONTRACTIONS + "|"):
    return contractions + r"[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + END


def cased(digits, contractions):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = [lead + upper + "*" + lower + "+" + contractions, lead + upper + "+" + lower + "*" + contractions]
    return "|".join(words) + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END


DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
CHINESE_AND_KOREAN = "[一-龥ࠀ-一가-\ud7ff]+"
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + END
)
DEEPSEEK_V3_LINES = DEEPSEEK_V3.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|", r"[\p{P}\p{S}]+|[\r\n]|")
CHINESE_AND_JAPANESE = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
NO_HAN = cased(r"\p{N}{1,3}", CONTRACTIONS + "?").replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("[\\r\\n/]*", "[\\r\\n]*")
CASCADE = "|".join(r"\s{%d}(?!\S)" % 2**power for power in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"

FAMILIES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [cl100k(r"\p{N}{1,3}")],
    "qwen2": [cl100k(r"\p{N}")],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "qwen35": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + END
    ],
    "tekken": [cased(r"\p{N}", "")],
    "gpt-4o": [cased(r"\p{N}{1,3}", CONTRACTIONS + "?")],
    "deepseek-llm": [
        r"[\r\n]",
        r"\s?[" + DEEPSEEK_LETTERS + "]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        CHINESE_AND_KOREAN,
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_AND_KOREAN, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "seed-coder": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + END
    ],
    "ufakzeka": [cl100k(r"\p{N}", "")],
    "minicpm5": [r"\p{N}{1,3}", cl100k(r"\p{N}+")],
    "laguna": [r"[^\n]+|[\n]+", cl100k(r"\p{N}")],
    "jais-2": [cl100k(r"\p{N}{1,3}").replace(r"\s+(?!\S)|\s+", CASCADE)],
    "spark2_5": [r"\p{N}{1,3}", CHINESE_AND_JAPANESE, DEEPSEEK_V3_LINES, r"\p{N}"],
    "youtu": [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + CHINESE_AND_JAPANESE, cased(r"\p{N}", CONTRACTIONS + "?"),
    ],
    "kimi-k2": [r"[\p{Han}]+|" + NO_HAN],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", cased(r"\p{N}{1,3}", CONTRACTIONS + "?")],
    "afmoe": [
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[一-鿿㐀-䶿\u8c48-\ud7ff\ue000-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdf\u0e40-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
        DEEPSEEK_V3,
    ],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "chameleon": [
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2,
    ],
    "exaone-moe": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
}

WRITTEN = [
    "Hello world", " Hello  World!\n", "I'm you'RE we'Ve 'Tis don't 'ſ y'all'd", "''s'll'", "a\t\tb \t c",
    "x = 1234567890;\r\n\r\n  y", "   \n   \n   z   ", "\n", " ", "  ", "", "  \u00a0 \u3000x", "3.14 ½ ²³ Ⅷ ٣٤٥٦",
    "camelCaseHTTPServer XMLHttp ǅabc ʰx", "e\u0301te\u0301 \u0301\u0301x 한국어 ไทย हिन्दी", "中文字符，标点。一龥鿿",
    "ひらがなカタカナ漢字", "🚀😶\u200d🌫️ ✅!", "https://a.b/c?d=e&f=g#h", "//--==>>\r\n/\n/x", "(a|b)…،।", "$100 + `x` ^ ~|",
    "1234567 12345a 12_34 ½1234 ١٢٣٤٥٦٧", "<sentinel:12><sentinel:>IMGIMGABZIMGIMGABCDEZ", "漢字々〇⺀12〇ab中c'S 中's", " " * 700 + "x",
    "a b c  de f\u0301 g\u0301 1 h", "ㄅㄆ，、〿한국어ㄱ︰！", " " * 40,
    "ΆΈ ᾼ Ω Ω K", "\u0378\ue000\u200b\u0000\u0007x", "_a __b -C .d ?E", "ß ﬁ Ǆ ª º",
]

ALPHABET = [
    *"aZbſéÉßſ", *"0189", "½", "٣", "Ⅷ", *"'''", *"sStTrReEvVmMlLdD", *"    ", "\t", "\n", "\n", "\r", "\r\n", "\u00a0",
    "\u3000", "\u2003", "\u0085", "\u2028", "\u000b", *".,!?/-_$+`~^|()…。，、।", "\u0301", "\u093f", "\u20dd", "中", "龥", "鿿",
    "ひ", "カ", "한", "ก", "अ", "ʰ", "ª", "ǅ", "Ω", "ж", "Ж", "€", "🚀", "\u200d", "\ufe0f", "\u0000", "\u200b", "\ue000", "\u0378",
    "𝐀", "𞤀", "𑢠",
]


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rng = random.Random(1)
    texts = list(WRITTEN)
    for _ in range(count):
        # Some texts from few different characters, so that runs come about.
        alphabet = rng.sample(ALPHABET, rng.randint(2, 12)) if rng.random() < 0.6 else ALPHABET
        texts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 24))))
    families = {}
    for name, expressions in FAMILIES.items():
        steps = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
        cut = pre_tokenizers.Sequence(steps)
        families[name] = [[len(piece) for piece, _ in cut.pre_tokenize_str(text)] for text in texts]
    path = pathlib.Path(__file__).resolve().parent / "pretokenizers.json"
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(pieces, separators=(',', ':'))}" for name, pieces in families.items())
    body = json.dumps(texts, separators=(",", ":"))
    path.write_text('{"texts": ' + body + ',\n "piece_chars": {\n' + rows + "}}\n")
    print(path, len(texts), "texts,", len(families), "families")


if __name__ == "__main__":
    main()
