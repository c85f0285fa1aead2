"""Anthropic's own Python client."""

import asyncio
import json
import unittest

from anthropic import Anthropic, AsyncAnthropic, AuthenticationError, BadRequestError, NotFoundError

from common import FOX, KEY, LOCKED_URL, MODEL, STORY, URL, answers, is_valid


def client(url=URL, key="none"):
    return Anthropic(base_url=url, api_key=key, max_retries=0, timeout=600)


class AnthropicClient(unittest.TestCase):
    def setUp(self):
        self.client = client()
        self.greedy = {"model": MODEL, "messages": STORY, "max_tokens": 24, "extra_body": {"temperature": 0}}

    def tearDown(self):
        self.client.close()

    def test_a_message(self):
        message = self.client.messages.create(**self.greedy)
        self.assertEqual((message.type, message.role, message.stop_reason, message.stop_sequence), ("message", "assistant", "max_tokens", None))
        self.assertEqual([block.type for block in message.content], ["text"])
        self.assertGreater(len(message.content[0].text), 20)
        self.assertEqual(message.usage.output_tokens, 24)

    def test_a_stream_says_the_same(self):
        whole = self.client.messages.create(**self.greedy)
        with self.client.messages.stream(**self.greedy) as stream:
            said = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((said, final.content[0].text), (whole.content[0].text,) * 2)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), (whole.stop_reason, 24))

    def test_events_come_in_their_order(self):
        kinds = [event.type for event in self.client.messages.create(**self.greedy, stream=True)]
        self.assertEqual(kinds[0], "message_start")
        self.assertEqual(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertGreater(kinds.count("content_block_delta"), 12)
        self.assertEqual(kinds.count("content_block_start"), 1)

    def test_async(self):
        async def both():
            async with AsyncAnthropic(base_url=URL, api_key="none", max_retries=0, timeout=600) as client:
                return await asyncio.gather(*[client.messages.create(**self.greedy) for _ in range(2)])

        first, second = asyncio.run(both())
        self.assertEqual(first.content[0].text, second.content[0].text)

    def test_stop_sequences(self):
        whole = self.client.messages.create(**self.greedy).content[0].text
        word = whole.split()[3]
        message = self.client.messages.create(**self.greedy, stop_sequences=[word])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", word))
        self.assertEqual(message.content[0].text, whole[: whole.index(word)])

    def test_a_tool_is_used_where_that_is_asked_for(self):
        meet = {"name": "meet", "description": "Meets a fox", "input_schema": FOX}
        for choice in [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "meet"}]:
            asked = {**self.greedy, "max_tokens": 300, "tools": [meet], "tool_choice": choice}
            message = self.client.messages.create(**asked)
            [block] = message.content
            self.assertEqual((block.type, block.name, message.stop_reason), ("tool_use", "meet", "tool_use"))
            is_valid(self, FOX, json.dumps(block.input))
            with self.client.messages.stream(**asked) as stream:
                [streamed] = stream.get_final_message().content
            self.assertEqual(streamed.input, block.input)

    def test_system_is_a_text_or_blocks(self):
        count = lambda **more: self.client.messages.count_tokens(model=MODEL, messages=STORY, **more).input_tokens
        text, blocks = count(system="Be brief."), count(system=[{"type": "text", "text": "Be brief."}])
        self.assertEqual(text, blocks)
        usage = self.client.messages.create(**self.greedy, system="Be brief.").usage
        self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, text)

    def test_errors_are_the_client_s_own(self):
        for wrong in [{"extra_body": {"temperature": 3}}, {"max_tokens": 0}, {"messages": []}, {"stop_sequences": [""]}]:
            with self.assertRaises(BadRequestError) as caught:
                self.client.messages.create(**{**self.greedy, **wrong})
            self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(NotFoundError):
            self.client.messages.create(**{**self.greedy, "model": "claude-none"})
        with client(LOCKED_URL, "wrong") as stranger, self.assertRaises(AuthenticationError):
            stranger.messages.create(**self.greedy)
        with client(LOCKED_URL, KEY) as friend:
            self.assertTrue(friend.messages.create(**self.greedy).content)

    def test_a_client_that_hangs_up_mid_stream_leaves_a_server_that_answers(self):
        for _ in range(3):
            with self.client.messages.stream(**{**self.greedy, "max_tokens": 400}) as stream:
                next(iter(stream.text_stream))
        self.assertTrue(answers())


if __name__ == "__main__":
    unittest.main()
