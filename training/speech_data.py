"""What the speech model hears and answers: vocabulary, sentences, recordings, and windows of 30 s.

A recording is a story told by one voice, sentence by sentence. A window is laid out from a recording: which sentences are
heard when, and the tokens that Whisper's conventions ask for. Layouts are cheap, so that a sentence is heard in many
windows, with other pauses, prompts and noise.
"""

import json
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from grammar import german
from grammar.tales import Grammar
from speech_espeak import ACCENTS, FRAME, HELD_OUT, RATE, TRAINED, Espeak, Voice

TEXT_TOKENS = 1024
LANGUAGES = ["en", "de"]
CONTROLS = (["<|endoftext|>", "<|startoftranscript|>"] + [f"<|{code}|>" for code in LANGUAGES]
            + ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"])
TIMESTAMPS = 1501
VOCABULARY = TEXT_TOKENS + len(CONTROLS) + TIMESTAMPS
END, START, EN, DE, TRANSLATE, TRANSCRIBE, START_OF_LM, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = range(TEXT_TOKENS, TEXT_TOKENS + 10)
FIRST_TIME = NO_TIMESTAMPS + 1

WINDOW = 30 * RATE
POSITIONS = WINDOW // FRAME
PROMPT = 223  # tokens of previous text, as Whisper's own decoding passes them
ANSWER = 224
CONTEXT = 448
IGNORED = -100

GRAMMAR = Grammar()


# ---- vocabulary ----


def make_tokenizer(stories: int = 6_000) -> Tokenizer:
    """Byte-level BPE with GPT-2's byte alphabet and pre-tokeniser, then Whisper's control tokens and timestamps."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random("vocabulary")
    texts = [" " + text for _ in range(stories) for text in story(rng)]
    texts += [" " + text for _ in range(stories) for text in german.sentence(rng)]
    trainer = trainers.BpeTrainer(vocab_size=TEXT_TOKENS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(CONTROLS)
    tokenizer.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>", normalized=False) for step in range(TIMESTAMPS)])
    assert tokenizer.get_vocab_size() == VOCABULARY and tokenizer.token_to_id("<|0.00|>") == FIRST_TIME
    return tokenizer


def time_token(seconds: float) -> int:
    return FIRST_TIME + min(max(round(seconds * 50), 0), TIMESTAMPS - 1)


def suppressed(tokenizer: Tokenizer) -> list[int]:
    """Symbols that are not said, by the definition of OpenAI's tokenizer, and controls that are not answers."""
    symbols = list('"#()*+/:;<=>@[\\]^_`{|}~') + "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }}".split()
    found = set()
    for text in [" -", " '"] + symbols + [" " + symbol for symbol in symbols]:
        ids = tokenizer.encode(text).ids
        found |= {ids[0]} if len(ids) == 1 or text in (" -", " '") else set()
    return sorted(found | {START, TRANSLATE, TRANSCRIBE, START_OF_LM, PREVIOUS, NO_SPEECH})


# ---- sentences ----


def story(rng: random.Random) -> list[str]:
    """The sentences of a story, without quotation marks: Whisper's decoding suppresses them."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", GRAMMAR.story(rng).replace('"', ""))


def scramble(rng: random.Random, texts: list[str]) -> list[str]:
    """The same words in any order, as sentences of any length."""
    words = re.findall(r"[\w'-]+", " ".join(texts))
    rng.shuffle(words)
    made = []
    while words:
        count = rng.randint(1, 9)
        taken, words = words[:count], words[count:]
        made.append((taken[0][0].upper() + " ".join(taken)[1:]) + rng.choice(".....!?"))
    return made


def held_out(sentence: str) -> bool:
    """Every 20th sentence is never heard in training, in whichever story it occurs."""
    return zlib.crc32(sentence.encode()) % 20 == 0


def choose_voice(rng: random.Random, language: str, variants: list[str]) -> Voice:
    accent = "de" if language == "de" else rng.choice(ACCENTS)
    variant = rng.choice(variants)
    return Voice(f"gmw/{accent}+{variant}" if variant else f"gmw/{accent}", int(rng.triangular(120, 260, 170)),
                 rng.randint(20, 80), rng.randint(20, 80))


@dataclass
class Sentence:
    text: str
    tokens: np.ndarray  # with the space before it
    times: np.ndarray  # (tokens, 2): when each is said, in seconds from the beginning of the sentence
    words: list[tuple[str, float, float]]
    starts: np.ndarray  # the first token of each word
    translation: np.ndarray | None
    samples: np.ndarray
    phonemes: np.ndarray
    offset: int = 0  # in the pool of samples

    @property
    def seconds(self) -> float:
        return self.length / RATE

    def __post_init__(self):
        self.length = len(self.samples)


@dataclass
class Recording:
    language: str
    voice: Voice
    sentences: list[Sentence]


class Reader:
    """Makes recordings."""

    def __init__(self, tokenizer: Tokenizer, scrambled: float = 0.0):
        """`scrambled`: the part of English recordings whose words are in no order, so that they have to be heard."""
        self.tokenizer, self.espeak, self.scrambled = tokenizer, Espeak(), scrambled

    def sentence(self, text: str, translation: str | None = None) -> Sentence | None:
        speech = self.espeak.say(text)
        if speech is None or len(speech.samples) < RATE // 5 or len(speech.samples) > 20 * RATE:
            return None
        encoded = self.tokenizer.encode(" " + text)
        words = [(text[a:b], begin, end) for a, b, begin, end in speech.words]
        times, starts = token_times(text, encoded.offsets, speech.words, len(speech.samples) / RATE)
        translated = np.array(self.tokenizer.encode(" " + translation).ids, dtype=np.int32) if translation else None
        return Sentence(text, np.array(encoded.ids, dtype=np.int32), times, words, starts, translated, speech.samples,
                        speech.phonemes)

    def recording(self, rng: random.Random, holdout: bool) -> Recording | None:
        language = "de" if rng.random() < 0.12 else "en"
        voice = choose_voice(rng, language, HELD_OUT if holdout else TRAINED)
        if language == "de":
            texts = [german.sentence(rng) for _ in range(rng.randint(8, 14) * (20 if holdout else 1))]
        else:
            texts = [(text, None) for _ in range(20 if holdout else 1) for text in story(rng)]
            if not holdout and rng.random() < self.scrambled:
                texts = [(text, None) for text in scramble(rng, [text for text, _ in texts])]
        texts = [pair for pair in texts if held_out(pair[0]) == holdout]
        self.espeak.use(voice)
        sentences = [self.sentence(*pair) for pair in texts]
        sentences = [sentence for sentence in sentences if sentence]
        return Recording(language, voice, sentences) if len(sentences) >= 3 else None


def token_times(text: str, offsets: list, words: list, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Letters share the time of their word; punctuation after a word has the pause that follows."""
    times = np.zeros((len(offsets), 2), dtype=np.float32)
    starts = np.zeros(len(words), dtype=np.int32)
    index = -1
    for token, (a, b) in enumerate(offsets):
        a, b = max(a - 1, 0), b - 1  # the space before the text
        while index + 1 < len(words) and b > words[index + 1][0]:
            index += 1
            starts[index] = token
        begin, end, since, until = words[index]
        if not any(character.isalnum() for character in text[a:b]):
            following = words[index + 1][2] if index + 1 < len(words) else length + 0.1
            times[token] = (until, max(following, until + 0.04))
            continue
        letters = end - begin
        times[token] = (since + (until - since) * max(a - begin, 0) / letters, since + (until - since) * (b - begin) / letters)
    return times, starts


# ---- windows ----


@dataclass
class Layout:
    """A window: where its sound comes from, and the tokens."""

    sounds: list[tuple[int, int, int]]  # (from, to, samples): from the pool, to the window
    end: int  # samples; silence is appended to the rest
    phonemes: np.ndarray
    inputs: list[int]
    targets: list[int]
    times: list[tuple[float, float]]  # of targets; (-1, -1): not known
    segments: list[tuple[float, float, str]]
    words: list[tuple[str, float, float]]


def pause(rng: random.Random) -> float:
    kind = rng.random()
    return rng.uniform(0.12, 1.0) if kind < 0.88 else rng.uniform(1.0, 4.0) if kind < 0.97 else rng.uniform(4.0, 12.0)


def prompt(rng: random.Random, before: list[Sentence]) -> list[int]:
    """Previous text, with or without timestamps, the latest tokens of it."""
    stamped = rng.random() < 0.7
    ids, at = [], rng.uniform(0, 2)
    for sentence in before:
        if at + sentence.seconds > 30:
            at = rng.uniform(0, 2)
        if stamped:
            ids += [time_token(at), *sentence.tokens.tolist(), time_token(at + sentence.seconds)]
        else:
            ids += sentence.tokens.tolist()
        at += sentence.seconds + rng.uniform(0.15, 1.0)
    return [PREVIOUS] + ids[-PROMPT:]


class Planner:
    def __init__(self, rng: random.Random):
        self.rng = rng

    def silence(self) -> Layout:
        rng = self.rng
        inputs, targets = [START], [NO_SPEECH]
        if rng.random() < 0.5:
            stamped = rng.random() < 0.7
            inputs += [rng.choice([EN, DE]), TRANSCRIBE, time_token(0) if stamped else NO_TIMESTAMPS]
            targets += [IGNORED, IGNORED, END]
        else:
            inputs.append(NO_SPEECH)
            targets.append(END)
        end = WINDOW if rng.random() < 0.5 else rng.randint(RATE, WINDOW)
        return Layout([], end, np.zeros(POSITIONS, np.uint8), inputs, targets, [(-1, -1)] * len(inputs), [], [])

    def window(self, recordings: list[Recording], recording: Recording) -> Layout | None:
        """`None` where the answer would be longer than decoding allows."""
        rng = self.rng
        if rng.random() < 0.04:
            return self.silence()
        stamped = rng.random() < 0.75
        translate = recording.language == "de" and rng.random() < 0.4
        first = rng.randrange(len(recording.sentences))
        count = rng.randint(1, 3) if rng.random() < 0.15 else 100
        sounds, phonemes = [], np.zeros(POSITIONS, np.uint8)
        answer, times, segments, words = [], [], [], []
        at, cut, how = 0.0, 0, rng.random()
        if how < 0.55:
            at = rng.uniform(0.0, 0.7)
        elif how < 0.75 and first > 0:  # the end of a sentence that was answered before
            before = recording.sentences[first - 1]
            rest = min(rng.uniform(0.02, 0.25), before.seconds)
            sounds.append((before.offset + before.length - int(rest * RATE), 0, int(rest * RATE)))
            at = rest + rng.uniform(0.12, 0.9)
        elif how < 0.85:
            at = rng.uniform(0.7, 10.0)
        elif how < 0.93 and not translate:  # within a sentence
            cut = rng.randrange(len(recording.sentences[first].words))
        queue = recording.sentences[first:first + count]
        speaker = recording
        while queue:
            sentence = queue.pop(0)
            place = round(at * RATE)
            since = max(int(sentence.words[cut][1] * RATE) - RATE // 100, 0) if cut else 0
            length = sentence.length - since
            if place + length > WINDOW:
                if stamped and place < WINDOW - RATE // 5:
                    self.put(sounds, phonemes, sentence, since, place)
                    answer.append(time_token(at))
                    times.append((at - 0.06, at + 0.1))
                    at = 30.0
                break
            self.put(sounds, phonemes, sentence, since, place)
            shift, begin, end = at - since / RATE, at, at + length / RATE
            ids, when = sentence.tokens, sentence.times + shift
            if cut:
                ids, when = ids[sentence.starts[cut]:], when[sentence.starts[cut]:]
            if translate:
                ids, when = sentence.translation, np.full((len(sentence.translation), 2), -1.0)
            if stamped:
                answer.append(time_token(begin))
                times.append((begin - 0.06, begin + 0.1))
            answer += ids.tolist()
            times += [tuple(pair) for pair in when.tolist()]
            if stamped:
                answer.append(time_token(end))
                times.append((end - 0.1, end + 0.06))
            segments.append((begin, end, sentence.text))
            words += [(word, a + shift, b + shift) for word, a, b in sentence.words[cut:]]
            at, cut = end + pause(rng), 0
            if not queue and count == 100 and rng.random() < 0.7:  # another voice goes on
                speaker = next((other for other in rng.choices(recordings, k=4) if other.language == recording.language), None)
                queue = list(speaker.sentences) if speaker else []
        if len(answer) > ANSWER - 4 or not segments:
            return None
        language = EN if recording.language == "en" else DE
        head = [START, language, TRANSLATE if translate else TRANSCRIBE] + ([] if stamped else [NO_TIMESTAMPS])
        inputs, targets = head + answer, [language] + [IGNORED] * (len(head) - 2) + answer + [END]
        last = segments[-1][1]
        times = [(-1, -1)] * (len(head) - 1) + times + [(last, last + 0.3)]
        if stamped and answer[0] > FIRST_TIME + 50 and rng.random() < 0.5:  # decoding allows at most 1 s
            inputs[len(head)] = time_token(1.0)
            targets[len(head) - 1] = IGNORED
        if rng.random() < 0.4:
            irrelevant = rng.random() < 0.2
            before = rng.choice(recordings).sentences if irrelevant else recording.sentences[:first]
            before = before[-rng.randint(1, 14):]
            if before:
                ids = prompt(rng, before)
                inputs, targets = ids + inputs, [IGNORED] * len(ids) + targets
                times = [(-1, -1)] * len(ids) + times
        end = min(round(at * RATE), WINDOW)
        return Layout(sounds, end, phonemes, inputs, targets, times, segments, words)

    def put(self, sounds: list, phonemes: np.ndarray, sentence: Sentence, since: int, place: int) -> None:
        length = min(sentence.length - since, WINDOW - place)
        sounds.append((sentence.offset + since, place, length))
        position = round(place / FRAME)
        row = sentence.phonemes[round(since / FRAME):][: POSITIONS - position]
        phonemes[position:position + len(row)] = row


def collate(layouts: list[Layout]) -> dict[str, np.ndarray]:
    rows, length = len(layouts), -(-max(len(layout.inputs) for layout in layouts) // 32) * 32
    length = min(length, CONTEXT)
    parts = max(1, max(len(layout.sounds) for layout in layouts))
    batch = {
        "sounds": np.zeros((rows, parts, 3), np.int64),
        "end": np.array([layout.end for layout in layouts], np.int64),
        "phonemes": np.stack([layout.phonemes for layout in layouts]),
        "inputs": np.full((rows, length), END, np.int16),
        "targets": np.full((rows, length), IGNORED, np.int16),
        "times": np.full((rows, length, 2), -1, np.float32),
    }
    batch["sounds"][:, :, 1] = WINDOW
    for row, layout in enumerate(layouts):
        if layout.sounds:
            batch["sounds"][row, : len(layout.sounds)] = layout.sounds
        used = len(layout.inputs)
        batch["inputs"][row, :used] = layout.inputs
        batch["targets"][row, :used] = layout.targets
        batch["times"][row, :used] = layout.times
    return batch


# ---- the folder ----


def write_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "WhisperTokenizer", "add_prefix_space": False, "bos_token": CONTROLS[0], "eos_token": CONTROLS[0],
        "unk_token": CONTROLS[0], "pad_token": CONTROLS[0], "errors": "replace", "model_max_length": CONTEXT,
        "additional_special_tokens": CONTROLS[1:],
    }, indent=1) + "\n")
