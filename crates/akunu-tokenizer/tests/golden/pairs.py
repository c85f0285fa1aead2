#!/usr/bin/env python3
"""Writes pairs.json: what Hugging Face's libraries put around one text and around two, and what is left of them when
they are too long.

    pip install tokenizers transformers     # 0.23.3 and 5.17.0 wrote the file that is checked in
    python3 crates/akunu-tokenizer/tests/golden/pairs.py DATA

Takes some seconds. DATA is the folder of the shared test data. Cases of its tokenizers have their path in it as
`model`.
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
DATA = pathlib.Path(sys.argv[1])
REAL = ["minilm/tokenizer.json", "tokenizers/bert-base-uncased.json", "tokenizers/gpt2.json", "tokenizers/llama2.json"]


def added(tokens):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": id, "content": text, **flags} for id, text in tokens]


def models():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s", "on", "mat", ".", "?", "where", "is"]
    wordpiece = {
        "version": "1.0",
        "added_tokens": added(list(enumerate(words[:4]))),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: id for id, word in enumerate(words)},
        },
    }
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    merges = ["t h", "th e", "a t", "c at", "Ġ c", "Ġc at", "s at"]
    texts = special + [letters[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    bytes_ = {
        "version": "1.0",
        "added_tokens": added(list(enumerate(special))),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: id for id, text in enumerate(texts)},
            "merges": merges,
        },
    }
    pieces = ["▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁where", "▁is", "▁", "s", "a", "t", "c", "e", ".", "?"]
    scored = [[text, 0.0] for text in special] + [[text, -1.0 - 0.25 * n] for n, text in enumerate(pieces)]
    unigram = {
        "version": "1.0",
        "added_tokens": added(list(enumerate(special))),
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": scored, "byte_fallback": False},
    }
    return {"wordpiece": wordpiece, "bytes": bytes_, "unigram": unigram}


def template(single, pair, ids):
    def pieces(text):
        out = []
        for part in text.split():
            name, segment = part.rsplit(":", 1)
            kind = "Sequence" if name in ("A", "B") else "SpecialToken"
            out.append({kind: {"id": name, "type_id": int(segment)}})
        return out

    tokens = {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)} for name, ids in ids.items()}
    return {"type": "TemplateProcessing", "single": pieces(single), "pair": pieces(pair), "special_tokens": tokens}


def posts():
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    bert = template("C:0 A:0 S:0", "C:0 A:0 S:0 B:1 S:1", {"C": [2], "S": [3]})
    llama = template("S:0 A:0", "S:0 A:0 S:1 B:1", {"S": [0]})
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
    return {
        "bert": ("wordpiece", bert),
        "bert-processing": ("wordpiece", {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}),
        "mpnet": ("wordpiece", {**roberta, "trim_offsets": True, "add_prefix_space": False}),
        "modernbert": ("bytes", template("C:0 A:0 S:0", "C:0 A:0 S:0 B:1 S:1", {"C": [0], "S": [2]})),
        "roberta": ("bytes", {**roberta, "trim_offsets": True, "add_prefix_space": False}),
        "llama-3": ("bytes", {"type": "Sequence", "processors": [level, llama]}),
        "bytes-alone": ("bytes", level),
        "none": ("bytes", None),
        "xlm-roberta": ("unigram", template("C:0 A:0 S:0", "C:0 A:0 S:0 S:0 B:0 S:0", {"C": [0], "S": [2]})),
        "t5": ("unigram", template("A:0 S:0", "A:0 S:0 B:0 S:0", {"S": [2]})),
        "xlnet": ("unigram", template("A:0 S:0 C:2", "A:0 S:0 B:1 S:1 C:2", {"C": [0], "S": [2]})),
        "several-ids": ("unigram", template("C:1 A:1", "C:0 A:0 S:0 B:3 S:2 C:2", {"C": [0, 1], "S": [2, 2]})),
    }


TEXTS = [
    ("where is the cat?", "the cats sat on the mat."),
    ("the cats sat on the mat.", "cat"),
    ("", "the cat."),
    ("the cat.", ""),
    ("", ""),
    ("the cat </s> [SEP] sat", "<s> [CLS] the mat"),
    ("cat cat cat cat cat", "mat mat mat mat mat"),
]


def cases(name, post, tokenizer):
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    out = []

    # Lists, since an empty second text by itself counts as none.
    def add(first, second, special, most):
        limit = {} if most is None else {"truncation": True, "max_length": most}
        seconds = None if second is None else [second]
        found = fast([first], seconds, add_special_tokens=special, return_token_type_ids=True, **limit)
        case = {"model": name, "first": first, "special": special, "ids": found["input_ids"][0]}
        case["segments"] = found["token_type_ids"][0]
        for key, value in (("post", post), ("second", second), ("most", most)):
            if value is not None:
                case[key] = value
        out.append(case)

    for first, second in TEXTS:
        for special in (True, False):
            add(first, None, special, None)
            add(first, second, special, None)
        around = tokenizer.num_special_tokens_to_add(True)
        long = len(fast([first], [second])["input_ids"][0])
        for most in sorted({around + 1, around + 2, around + 5, around + 6, long - 1}):
            if around < most < long:
                add(first, second, True, most)
        around = tokenizer.num_special_tokens_to_add(False)
        if len(fast(first)["input_ids"]) > around + 2:
            add(first, None, True, around + 2)
    return out


def main():
    out = {"models": models(), "posts": {}, "cases": []}
    for post, (name, processor) in posts().items():
        out["posts"][post] = processor
        tokenizer = Tokenizer.from_str(json.dumps({**out["models"][name], "post_processor": processor}))
        out["cases"] += cases(name, post, tokenizer)
    for path in REAL:
        tokenizer = Tokenizer.from_file(str(DATA / path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        out["cases"] += cases(path, None, tokenizer)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in out["cases"])
    head = json.dumps({"models": out["models"], "posts": out["posts"]}, ensure_ascii=False)
    (HERE / "pairs.json").write_text(f'{head[:-1]},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(len(out["cases"]), "cases")


main()
