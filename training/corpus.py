"""Writes the corpus: one story or conversation per line, deterministic for a seed.

    python corpus.py --stories 600000 --chats 300000 --holdout 2000 --out /tmp/tales

writes `train.txt`, `holdout.txt` (stories), `train.jsonl` and `holdout.jsonl`
(conversations, as lists of messages). Number i of either is made from
"<seed>/<split>/<i>" alone, so it does not depend on the number of processes. The
holdout has another split name, and texts that also occur in the training data
are dropped.
"""

import argparse
import json
import random
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from grammar.chat import conversation
from grammar.tales import Grammar

MIN_WORDS = 60
GRAMMAR = Grammar()


def story(seed: str, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    while len((text := GRAMMAR.story(rng)).split()) < MIN_WORDS:
        pass
    return text


def chat(seed: str, index: int) -> str:
    return json.dumps(conversation(GRAMMAR, random.Random(f"{seed}/{index}")))


def write(make, kind: str, suffix: str, args: argparse.Namespace, count: int, pool: Pool) -> None:
    train = pool.map(partial(make, f"{args.seed}/{kind}train"), range(count), chunksize=500)
    holdout = pool.map(partial(make, f"{args.seed}/{kind}holdout"), range(args.holdout), chunksize=50)
    seen = set(train)
    fresh = [text for text in dict.fromkeys(holdout) if text not in seen]
    (args.out / f"train.{suffix}").write_text("\n".join(train) + "\n")
    (args.out / f"holdout.{suffix}").write_text("\n".join(fresh) + "\n")
    words = sum(len(text.split()) for text in train)
    print(f"train.{suffix}: {count} lines ({len(seen)} different), {words} words; {len(fresh)} of {len(holdout)} held out", flush=True)


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--stories", type=int, default=600_000)
    args.add_argument("--chats", type=int, default=300_000)
    args.add_argument("--holdout", type=int, default=2_000)
    args.add_argument("--seed", default="akunu")
    args.add_argument("--out", type=Path, required=True)
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with Pool() as pool:
        write(story, "", "txt", args, args.stories, pool)
        write(chat, "chat/", "jsonl", args, args.chats, pool)


if __name__ == "__main__":
    main()
