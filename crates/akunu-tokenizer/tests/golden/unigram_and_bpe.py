#!/usr/bin/env python3
"""Writes unigram_and_bpe.json: small models trained here with SentencePiece's settings and kinds of tokens, and how
SentencePiece itself encodes and decodes with them.

    pip install sentencepiece protobuf    # 0.2.3 wrote the file that is checked in
    python3 crates/akunu-tokenizer/tests/golden/unigram_and_bpe.py

Takes a few seconds. The texts and lists of ids are of the kinds in which Akunu once differed: spaces and space marks
around user-defined tokens, runs of one character, unused and unknown tokens, leading spaces, invalid UTF-8.
"""
import io
import json
import pathlib
import random

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

HERE = pathlib.Path(__file__).parent
USER_DEFINED = ["(c)", "▁x▁", "ab▁cd", "ab cd", "<user>", "▁▁", "the▁", "é"]
# Written as code points: an ideographic space becomes a space, a ligature two letters, a zero-width space nothing.
RULES = "3000\t20\nFB01\t66 69\n200B\t\n41\t61\n"

TRAINING = [
    "the cat sat on the mat and the cat ran",
    "a man and a cat ran to the fat rat",
    "that is the hat (c) of the other man",
    "aaaa aaa aa a bbbb bb ab abab cd abcd",
    "foo(bar) == foo[bar] // x = x + 1",
    "one two three ate nine ten and then none",
    "naïve café déjà vu élan été",
]

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "  a", "a ", "a  ", "a  b", " a  b ", "the cat",
    "the cat sat on the mat", "(c)d", "a(c)d", "(c) d", " (c)", "(c)(c)", "a (c) b", "x x x", " x ", "a x b",
    "▁x▁", "a▁x▁b", "ab cd", "ab▁cd", "abcd ab cd", "<user>", "<user>the", "<user> the", "the<user>the cat",
    "the ", "the the ", "▁", "▁▁", "▁▁▁", "a▁▁b", "a▁", "▁a", "a ▁ b", "é", "été", "e\u0301", "aaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaa", "bbbbbbb", "ababababab", "        ", "                 a", "\n", "a\nb", "\n\n",
    "\t", "\x00", "a\x00b", "\x7f", "<s>", "</s>", "<unk>", "<s>a</s>", "<0x41>", "中文", "a中b", "中 文", "😀",
    "ﬁn", "\u3000a\u3000\u3000b", "a\u200bb", "\u200b", "\u200b a", "AAA", "q", "cqc", "===", "x = x + 1",
]


def train(model_type, **settings):
    out = io.BytesIO()
    rules = settings.pop("rules", "")
    if rules:
        path = HERE / "rules.tsv"
        path.write_text(rules)
        settings["normalization_rule_tsv"] = str(path)
    else:
        settings.setdefault("normalization_rule_name", "identity")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 3),
        model_writer=out,
        model_type=model_type,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 90, **settings},
    )
    proto = pb.ModelProto.FromString(out.getvalue())
    if rules:
        path.unlink()
        proto.normalizer_spec.normalization_rule_tsv = ""
    return proto.SerializeToString()


def unused(model):
    """Every fourth token becomes unused."""
    proto = pb.ModelProto.FromString(model)
    for place, piece in enumerate(proto.pieces):
        if piece.type == pb.ModelProto.SentencePiece.NORMAL and place % 4 == 0:
            piece.type = pb.ModelProto.SentencePiece.UNUSED
    return proto.SerializeToString()


def models():
    with_bytes = {"byte_fallback": True, "vocab_size": 350}
    keep = {"remove_extra_whitespaces": False}
    gemma = USER_DEFINED + ["▁▁▁", "▁▁▁▁", "\n", "\n\n"]
    for kind in ["unigram", "bpe"]:
        yield f"{kind} that removes spaces", train(kind, rules=RULES)
        yield f"{kind} like LLaMA", train(kind, allow_whitespace_only_pieces=True, **keep, **with_bytes)
        yield f"{kind} like Gemma", train(
            kind, add_dummy_prefix=False, user_defined_symbols=gemma, **keep, **with_bytes
        )
        yield f"{kind} with user-defined tokens", train(kind, rules=RULES, user_defined_symbols=USER_DEFINED)
        yield f"{kind} with user-defined tokens that keeps spaces", train(
            kind, user_defined_symbols=USER_DEFINED, **keep
        )
        yield f"{kind} without a prefix", train(kind, add_dummy_prefix=False)
        yield f"{kind} with control tokens", train(kind, control_symbols=["<mask>", "q"], unk_surface="[?]", pad_id=3)
        yield f"{kind} with unused tokens", unused(train(kind, user_defined_symbols=USER_DEFINED[:3], **keep))
        yield f"{kind} across words", train(kind, split_by_whitespace=False, **keep)


def main():
    out = []
    for name, model in models():
        processor = spm.SentencePieceProcessor(model_proto=model)
        some = random.Random(name)
        mixed = ["".join(some.choices("ab ct▁hé(c)x<>\n", k=some.randrange(4, 40))) for _ in range(30)]
        texts = TEXTS + mixed
        size = processor.get_piece_size()
        lists = [[some.randrange(size) for _ in range(some.randrange(1, 6))] for _ in range(60)]
        out.append({
            "name": name,
            "model": model.hex(),
            "encoded": [[text, processor.encode(text)] for text in texts],
            "decoded": [[ids, processor.decode(ids)] for ids in lists],
        })
    lines = ",\n".join(json.dumps(model, ensure_ascii=True, separators=(",", ":")) for model in out)
    (HERE / "unigram_and_bpe.json").write_text(f"[\n{lines}\n]\n")


main()
