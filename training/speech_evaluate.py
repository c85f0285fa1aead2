"""Word error rate and errors of times on held-out voices and sentences, decoded by transformers.

    python speech_evaluate.py /tmp/akunu-speech [--windows 40] [--noise 20] [--language de] [--task translate] [--words]

The weights are rounded to Q8_0 as the GGUF file has them, unless `--exact` is given. Windows are 30 s or less; `--noise` is
the distance of white noise in decibels.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import WhisperForConditionalGeneration

from export import dequantize_q8_0, quantize_q8_0
from grammar import german
from speech_data import END, FIRST_TIME, Reader, Sentence, choose_voice, held_out, story
from speech_espeak import HELD_OUT, RATE, TRAINED
from speech_model import FrontEnd
from speech_score import errors, matched, spread, words


def texts(rng: random.Random, language: str, fresh: bool = True):
    """Sentences that are held out (or that are not), with translations, without end."""
    while True:
        found = [german.sentence(rng)] if language == "de" else [(text, None) for text in story(rng)]
        yield from (pair for pair in found if held_out(pair[0]) == fresh)


def passage(reader: Reader, rng: random.Random, language: str, seconds: float, variants: list[str] = HELD_OUT,
            fresh: bool = True) -> tuple[str, np.ndarray, list[tuple[float, Sentence]]]:
    """Sentences of one voice with pauses between them: the voice, samples, and when each begins."""
    voice = choose_voice(rng, language, variants)
    reader.espeak.use(voice)
    at, placed = round(rng.uniform(0.1, 0.5), 2), []
    for pair in texts(rng, language, fresh):
        sentence = reader.sentence(*pair)
        if sentence is None or sentence.text in [other.text for _, other in placed]:
            continue
        if at + sentence.seconds + 0.1 > seconds:
            break
        placed.append((at, sentence))
        at = round(at + sentence.seconds + rng.uniform(0.25, 0.9), 2)
    return voice.name, lay(placed, at), placed


def lay(placed: list[tuple[float, Sentence]], seconds: float) -> np.ndarray:
    samples = np.zeros(round(seconds * RATE), dtype=np.float32)
    for at, sentence in placed:
        begin = round(at * RATE)
        samples[begin:begin + sentence.length] += sentence.samples.astype(np.float32)[: len(samples) - begin] / 32768
    return samples


def add_noise(samples: np.ndarray, decibels: float | None, rng: random.Random) -> np.ndarray:
    if decibels is None:
        return samples
    noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(len(samples)).astype(np.float32)
    loud = samples[np.abs(samples) > 1e-4]
    return samples + noise * float(np.sqrt((loud**2).mean())) * 10 ** (-decibels / 20)


def load(folder: Path, exact: bool) -> WhisperForConditionalGeneration:
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if not exact:
        with torch.no_grad():
            for name, values in model.named_parameters():
                if "embed_positions" not in name and "conv1" not in name and values.dim() > 1:
                    rows = values.numpy()
                    values.copy_(torch.from_numpy(dequantize_q8_0(quantize_q8_0(rows), rows.shape)))
    return model


def segments(ids: list[int]) -> list[tuple[float, float, list[int]]]:
    found, begin, text = [], None, []
    for token in ids:
        if token < END:
            text.append(token)
        elif token >= FIRST_TIME and text:
            found.append((begin or 0.0, (token - FIRST_TIME) * 0.02, text))
            begin, text = None, []
        elif token >= FIRST_TIME:
            begin = (token - FIRST_TIME) * 0.02
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--noise", type=float)
    parser.add_argument("--language", default="en")
    parser.add_argument("--task", default="transcribe")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--words", action="store_true", help="times of words by cross-attention")
    parser.add_argument("--heard", action="store_true", help="voices of training")
    parser.add_argument("--familiar", action="store_true", help="sentences that are not held out")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--show", type=int, default=2)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    reader, rng, front, began = Reader(tokenizer), random.Random("evaluation"), FrontEnd("cpu"), time.time()
    model = load(args.folder, args.exact)
    variants = TRAINED if args.heard else HELD_OUT
    cases = [passage(reader, rng, args.language, rng.uniform(12, 30), variants, not args.familiar) for _ in range(args.windows)]
    wrong, total, late, word_late, by_voice, uneven = 0, 0, [], [], {}, 0
    for first in range(0, len(cases), args.batch):
        part = cases[first:first + args.batch]
        audio = np.zeros((len(part), 30 * RATE), dtype=np.float32)
        for row, (_, samples, _) in zip(audio, part):
            row[: len(samples)] = add_noise(samples, args.noise, rng)
        more = {"return_token_timestamps": True} if args.words else {}
        with torch.no_grad():
            out = model.generate(front.plain(torch.from_numpy(audio)), return_timestamps=True, language=args.language, task=args.task,
                                 num_beams=args.beams, max_new_tokens=220, return_dict_in_generate=args.words, **more)
        rows = out["sequences"] if args.words else out
        for index, (voice, _, placed) in enumerate(part):
            ids = [token for token in rows[index].tolist() if token != END]
            truth = words(" ".join(sentence.text for _, sentence in placed))
            if args.task == "translate":
                truth = words(tokenizer.decode([token for _, sentence in placed for token in sentence.translation.tolist()]))
            found = segments(ids)
            heard = words(tokenizer.decode([token for _, _, text in found for token in text]))
            mistakes = errors(truth, heard)
            wrong, total = wrong + mistakes, total + len(truth)
            row = by_voice.setdefault(voice.split("+")[1], [0, 0])
            row[0], row[1] = row[0] + mistakes, row[1] + len(truth)
            uneven += len(found) != len(placed)
            if len(found) == len(placed):
                for (begin, end, _), (at, sentence) in zip(found, placed):
                    late += [abs(begin - at), abs(end - at - sentence.seconds)]
            if args.words:
                word_late += word_errors(tokenizer, rows[index].tolist(), out["token_timestamps"][index].tolist(), placed)
            if args.show > 0 and mistakes:
                args.show -= 1
                print(f"  {voice}: {' '.join(truth)}\n  {' ' * len(voice)}  {' '.join(heard)}")
        print(f"{first + len(part)} windows, {time.time() - began:.0f} s: {wrong} of {total}", flush=True)
    print(f"word error rate {wrong / total:.4f} ({wrong} of {total} words in {len(cases)} windows); sentence times {spread(late)}; "
          f"{uneven} windows with another number of sentences")
    if args.words:
        print(f"beginnings of words: {spread(word_late)}")
    print({voice: f"{bad / all:.3f}" for voice, (bad, all) in sorted(by_voice.items())})


def word_errors(tokenizer: Tokenizer, ids: list[int], times: list[float], placed: list) -> list[float]:
    """Errors of the beginnings of the words that are right."""
    truth = [((words(word) or [""])[0], at + begin, at + end) for at, sentence in placed for word, begin, end in sentence.words]
    heard, text, since = [], [], 0.0
    for token, time_of in list(zip(ids, times)) + [(FIRST_TIME, 0.0)]:
        new = token >= END or tokenizer.id_to_token(token).startswith("Ġ")
        if new and text:
            heard.append(((words(tokenizer.decode(text)) or [""])[0], since, 0.0))
            text = []
        if token < END:
            since = since if text else time_of
            text.append(token)
    return [abs(truth[i][1] - heard[j][1]) for i, j in matched(truth, heard)]


if __name__ == "__main__":
    main()
