"""Transcription with OpenAI's client for Python."""

import asyncio
import unittest
from pathlib import Path

import openai
from common import TEXTS_URL

MODEL = "akunu-speech-q8_0"
SPEECH = Path(__file__).parents[2] / "testdata/speech"
CLIENT = openai.OpenAI(base_url=f"{TEXTS_URL}/v1", api_key="any")


def transcribe(name="short.flac", **more):
    with open(SPEECH / name, "rb") as file:
        return CLIENT.audio.transcriptions.create(model=MODEL, file=file, **more)


class Audio(unittest.TestCase):
    def test_each_format_has_the_text(self):
        text = transcribe().text
        self.assertGreater(len(text.split()), 5)
        self.assertEqual(transcribe(response_format="text").strip(), text)
        for subtitles in ["srt", "vtt"]:
            self.assertIn(" --> ", transcribe(response_format=subtitles))
        verbose = transcribe(response_format="verbose_json", timestamp_granularities=["word", "segment"])
        self.assertEqual((verbose.text, verbose.language), (text, "en"))
        self.assertEqual("".join(segment.text for segment in verbose.segments).strip(), text)
        self.assertEqual(" ".join(word.word.strip() for word in verbose.words), text)
        self.assertTrue(all(0 <= word.start <= word.end <= verbose.duration + 0.1 for word in verbose.words))

    def test_a_stream_has_the_same_text(self):
        events = list(transcribe(stream=True))
        self.assertEqual(events[-1].type, "transcript.text.done")
        self.assertEqual("".join(event.delta for event in events[:-1]), events[-1].text)
        self.assertEqual(events[-1].text, transcribe().text)

    def test_german_is_translated(self):
        with open(SPEECH / "german.mp3", "rb") as file:
            english = CLIENT.audio.translations.create(model=MODEL, file=file).text
        self.assertNotEqual(english, transcribe("german.mp3", language="de", prompt="Eine Geschichte.").text)

    def test_requests_at_once_have_the_text_of_single_ones(self):
        client = openai.AsyncOpenAI(base_url=f"{TEXTS_URL}/v1", api_key="any")
        names = ["short.flac", "german.mp3", "short.flac"]

        async def all_of_them():
            files = [(name, (SPEECH / name).read_bytes()) for name in names]
            requests = [client.audio.transcriptions.create(model=MODEL, file=file) for file in files]
            return [transcript.text for transcript in await asyncio.gather(*requests)]

        self.assertEqual(asyncio.run(all_of_them()), [transcribe(name).text for name in names])

    def test_what_is_wrong_is_said(self):
        with self.assertRaisesRegex(openai.BadRequestError, "not an audio file"):
            transcribe("truth.json")
        with self.assertRaisesRegex(openai.BadRequestError, "klingon"):
            transcribe(language="klingon")
        with self.assertRaisesRegex(openai.BadRequestError, "transcribes audio"):
            CLIENT.completions.create(model=MODEL, prompt="Once")


if __name__ == "__main__":
    unittest.main()
