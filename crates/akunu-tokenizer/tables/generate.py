#!/usr/bin/env python3
"""Writes src/unicode/tables.rs: what the pre-tokenisers have to know about every character.

    pip install unicodedata2          # newer tables than Python's own; without it, Python's are used
    python3 crates/akunu-tokenizer/tables/generate.py

Takes two seconds. The Unicode version that was used stands in the written file.
"""
import pathlib

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# The order is that of the bits in src/unicode/mod.rs.
CLASSES = ["Lu", "Ll", "Lt", "Lo", "Mn", "M", "N", "P", "S", "White", "C", "Unassigned"]
# The White_Space property: stable since Unicode 6.3.
WHITE = {0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
WHITE |= set(range(0x2000, 0x200B))
HANGUL = range(0xAC00, 0xD7A4)


def class_of(code):
    if code in WHITE:
        return "White"
    category = unicodedata.category(chr(code))
    if category in ("Lu", "Ll", "Lt", "Mn"):
        return category
    if category in ("Lm", "Lo"):
        return "Lo"
    if category == "Cn":
        return "Unassigned"
    return category[0]


def runs():
    last = None
    for code in range(0x110000):
        now = class_of(code)
        if now != last:
            yield code, CLASSES.index(now)
            last = now


def bare(code):
    """The character's canonical decomposition without its non-spacing marks."""
    whole = unicodedata.normalize("NFD", chr(code))
    return [ord(c) for c in whole if unicodedata.category(c) != "Mn"]


def rows(items, per_row=8):
    for at in range(0, len(items), per_row):
        yield "    " + " ".join(item + "," for item in items[at : at + per_row])


def main():
    out = [
        "//! Written by tables/generate.py from Unicode %s. Do not edit." % unicodedata.unidata_version,
        "",
        "/// (first character, class): a run ends where the next begins.",
    ]
    items = ["(0x%x, %d)" % run for run in runs()]
    out += ["#[rustfmt::skip]", "pub(super) static RUNS: [(u32, u8); %d] = [" % len(items), *rows(items), "];", ""]

    single, several = [], []
    for code in range(0x110000):
        if code in HANGUL or 0xD800 <= code < 0xE000 or class_of(code) == "Mn":
            continue
        base = bare(code)
        if base == [code]:
            continue
        (single if len(base) == 1 else several).append((code, base))
    out.append("/// (character, what is left of its canonical decomposition without its non-spacing marks).")
    items = ["(0x%x, 0x%x)" % (code, base[0]) for code, base in single]
    out += ["#[rustfmt::skip]", "pub(super) static BARE: [(u32, u32); %d] = [" % len(items), *rows(items, 6), "];", ""]
    out.append("/// The same for the few of which several characters, or none, are left (0: no character).")
    items = []
    for code, base in several:
        assert len(base) <= 3, (code, base)
        items.append("(0x%x, [%s])" % (code, ", ".join("0x%x" % c for c in base + [0] * (3 - len(base)))))
    out += ["#[rustfmt::skip]", "pub(super) static BARE_SEVERAL: [(u32, [u32; 3]); %d] = [" % len(items)]
    out += [*rows(items, 3), "];", ""]

    path = pathlib.Path(__file__).resolve().parent.parent / "src" / "unicode" / "tables.rs"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(out))
    print(path, len(list(runs())), "runs,", len(single), "bare,", len(several), "several")


if __name__ == "__main__":
    main()
