"""espeak-ng as a library: a sentence in, samples with the times of its words and phonemes out.

The library is found by the system's loader; `ESPEAK_DATA` names the folder that contains `espeak-ng-data`, where that is
not the usual one.
"""

import ctypes
import os
import zlib
from dataclasses import dataclass

import numpy as np
from scipy.signal import resample_poly

RATE = 16_000
FRAME = 320  # samples of 0.02 s: a step of timestamps, and a position of the encoder
SILENCE = 0  # the phoneme of pauses
PHONEMES = 256

SYNCHRONOUS, UTF8 = 2, 1
PHONEME_EVENTS = 1
WORD, PHONEME = 1, 7
PARAMETERS = {"rate": 1, "volume": 2, "pitch": 3, "range": 4}

ACCENTS = ["en-US", "en", "en-GB-x-rp", "en-GB-scotland", "en-GB-x-gbclan", "en-GB-x-gbcwmd", "en-029", "en-US-nyc"]
VARIANTS = [
    "", "Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Jacky", "Lee",
    "Marco", "Mario", "Michael", "Mike", "Nguyen", "RicishayMax", "Storm", "Tweaky", "adam", "anika", "announcer", "antonio",
    "aunty", "belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "edward2", "f1", "f2", "f3", "f4", "f5",
    "grandma", "grandpa", "gustave", "iven", "iven2", "iven3", "john", "kaukovalta", "klatt", "klatt2", "klatt3", "klatt4",
    "linda", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul",
    "pedro", "quincy", "rob", "robert", "sandro", "shelby", "steph", "steph2", "travis", "victor", "whisper", "zac",
]
# Never heard in training, with any accent.
HELD_OUT = ["f4", "m3", "Alicia", "benjamin", "klatt2", "steph", "quincy", "Denis"]
TRAINED = [variant for variant in VARIANTS if variant not in HELD_OUT]


class Event(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_uint), ("text_position", ctypes.c_int), ("length", ctypes.c_int),
                ("milliseconds", ctypes.c_int), ("sample", ctypes.c_int), ("user", ctypes.c_void_p), ("name", ctypes.c_char * 8)]


@dataclass
class Voice:
    name: str  # "gmw/en-US+m3"
    rate: int  # words a minute
    pitch: int  # 0 to 100
    range: int  # of pitch, 0 to 100


@dataclass
class Speech:
    """A sentence without silence around it."""

    samples: np.ndarray  # int16 at `RATE`
    words: list[tuple[int, int, float, float]]  # characters of the text, and seconds
    phonemes: np.ndarray  # uint8, one for each `FRAME`


def pieces(text: str) -> list[tuple[int, int]]:
    """Where the words of a text are, with their punctuation."""
    found, begin = [], None
    for at, character in enumerate(text + " "):
        if character == " " and begin is not None:
            found.append((begin, at))
            begin = None
        elif character != " " and begin is None:
            begin = at
    return found


class Espeak:
    def __init__(self):
        self.library = ctypes.CDLL("libespeak-ng.so.1")
        folder = os.environ.get("ESPEAK_DATA")
        self.rate = self.library.espeak_Initialize(SYNCHRONOUS, 1000, folder.encode() if folder else None, PHONEME_EVENTS)
        assert self.rate > 0, "espeak-ng finds no data"
        self.chunks: list[bytes] = []
        self.events: list[tuple[int, int, int, bytes]] = []
        receiver = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(Event))

        def receive(samples, count, events):
            if count > 0:
                self.chunks.append(ctypes.string_at(samples, 2 * count))
            at = 0
            while (event := events[at]).type != 0:
                if event.type in (WORD, PHONEME):
                    self.events.append((event.type, event.text_position - 1, event.sample,
                                        event.name if event.type == PHONEME else b""))
                at += 1
            return 0

        self.receive = receiver(receive)
        self.library.espeak_SetSynthCallback(self.receive)

    def use(self, voice: Voice) -> None:
        assert self.library.espeak_SetVoiceByName(voice.name.encode()) == 0, f"no voice {voice.name}"
        for name in ("rate", "pitch", "range"):
            self.library.espeak_SetParameter(PARAMETERS[name], getattr(voice, name), 0)

    def say(self, text: str) -> Speech | None:
        """`None` if nothing is heard."""
        self.chunks.clear()
        self.events.clear()
        data = text.encode() + b"\0"
        self.library.espeak_Synth(data, len(data), 0, 1, 0, UTF8, None, None)
        raw = np.frombuffer(b"".join(self.chunks), dtype=np.int16)
        if len(raw) == 0 or (peak := np.abs(raw.astype(np.int32)).max()) < 500:
            return None
        first, last = heard(raw, peak, self.rate // 100)
        samples = resample_poly(raw[first:last].astype(np.float32), 320, 441) if self.rate == 22_050 else None
        assert samples is not None, f"espeak-ng speaks at {self.rate} Hz"
        samples = np.clip(np.round(samples * (16_000 / peak)), -32768, 32767).astype(np.int16)
        length = len(samples) / RATE
        seconds = [(kind, at, min(max((sample - first) / self.rate, 0.0), length), name)
                   for kind, at, sample, name in self.events]
        return Speech(samples, word_times(text, seconds, length), phonemes(seconds, len(samples)))


def heard(raw: np.ndarray, peak: int, step: int) -> tuple[int, int]:
    """The samples between the first and the last 10 ms of at least 1% of the peak."""
    frames = np.abs(raw[: len(raw) // step * step].astype(np.int32)).reshape(-1, step).max(axis=1)
    loud = np.flatnonzero(frames >= peak * 0.01)
    return int(loud[0]) * step, (int(loud[-1]) + 1) * step


def word_times(text: str, events: list[tuple[int, int, float, bytes]], length: float) -> list[tuple[int, int, float, float]]:
    """Words that espeak joins with others ("of the") share the time of these by their letters."""
    spans = pieces(text)
    starts: list[float | None] = [None] * len(spans)
    ends = [length] * len(spans)
    index = 0
    for at, (kind, position, time, name) in enumerate(events):
        if kind == WORD:
            while index + 1 < len(spans) and position >= spans[index + 1][0]:
                index += 1
            if starts[index] is None and position < spans[index][1]:
                starts[index] = time
        elif not name.startswith(b"_"):
            ends[index] = next((event[2] for event in events[at + 1:] if event[0] == PHONEME), length)
    starts[0] = starts[0] or 0.0
    at = 0
    while at < len(spans):
        after = next((k for k in range(at + 1, len(spans)) if starts[k] is not None), len(spans))
        letters = np.cumsum([0] + [spans[k][1] - spans[k][0] for k in range(at, after)])
        begin, until = starts[at], ends[at]
        for k in range(at, after):
            starts[k] = begin + (until - begin) * letters[k - at] / letters[-1]
            ends[k] = begin + (until - begin) * letters[k - at + 1] / letters[-1]
        at = after
    words = []
    for k, (a, b) in enumerate(spans):
        begin = min(max(starts[k], words[-1][3] if words else 0.0), length)
        words.append((a, b, round(begin, 3), round(min(max(ends[k], begin), length), 3)))
    return words


def phonemes(events: list[tuple[int, int, float, bytes]], samples: int) -> np.ndarray:
    row = np.zeros(-(-samples // FRAME), dtype=np.uint8)
    marks = [(time, name) for kind, _, time, name in events if kind == PHONEME]
    for (time, name), (until, _) in zip(marks, marks[1:] + [(samples / RATE, b"")]):
        number = SILENCE if name.startswith(b"_") or not name else zlib.crc32(name) % (PHONEMES - 1) + 1
        row[round(time * 50):round(until * 50)] = number
    return row
