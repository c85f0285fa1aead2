"""Writes the corpus: one story a line, deterministic in its seed.

    python corpus.py --stories 600000 --holdout 2000 --out /tmp/tales

writes `train.txt` and `holdout.txt`. Story number i is made from
"<seed>/<split>/<i>" alone, so the number of processes does not matter. The
held-out stories come from another split name, and any that also occurs in
the training text is dropped.
"""

import argparse
import random
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from grammar.tales import Grammar

MIN_WORDS = 60
GRAMMAR = Grammar()


def story(seed: str, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    while len((text := GRAMMAR.story(rng)).split()) < MIN_WORDS:
        pass
    return text


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--stories", type=int, default=600_000)
    args.add_argument("--holdout", type=int, default=2_000)
    args.add_argument("--seed", default="akunu")
    args.add_argument("--out", type=Path, required=True)
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with Pool() as pool:
        train = pool.map(partial(story, f"{args.seed}/train"), range(args.stories), chunksize=2000)
        holdout = pool.map(partial(story, f"{args.seed}/holdout"), range(args.holdout), chunksize=100)
    seen = set(train)
    fresh = [text for text in dict.fromkeys(holdout) if text not in seen]
    (args.out / "train.txt").write_text("\n".join(train) + "\n")
    (args.out / "holdout.txt").write_text("\n".join(fresh) + "\n")
    words = sum(len(text.split()) for text in train)
    print(f"{len(train)} training stories ({len(seen)} different), {words} words; {len(fresh)} of {len(holdout)} held out")


if __name__ == "__main__":
    main()
