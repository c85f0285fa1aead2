"""Tools and reasoning in the forms of several families of models, with the clients of OpenAI and Anthropic.

The models are those of crates/akunu-server/examples/scripted_model.rs: each reasons, if its family does, calls a tool, and
answers in words when it has the result."""

import json
import os
import unittest

from anthropic import Anthropic
from openai import OpenAI

from common import conforms

URL = os.environ["AKUNU_CALLER_URL"]
# Whether models of the family reason.
FAMILIES = {"caller": True, "harmony": True, "mistral": False, "llama": False}
QUESTION, THOUGHT, ANSWER = "What time is it?", "Which time is it?", "It is noon."
PARAMETERS = {
    "type": "object",
    "properties": {"zone": {"type": "string"}},
    "required": ["zone"],
    "additionalProperties": False,
}


class Families(unittest.TestCase):
    def each(self):
        for name, reasons in FAMILIES.items():
            with self.subTest(name):
                yield name, THOUGHT if reasons else None

    def called(self, name, arguments):
        self.assertEqual((name, json.loads(arguments)), ("clock", {"zone": "UTC"}))

    def test_chat_completions(self):
        tools = [{"type": "function", "function": {"name": "clock", "parameters": PARAMETERS, "strict": True}}]
        with OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0) as client:
            create = client.chat.completions.create
            for model, thought in self.each():
                messages = [{"role": "user", "content": QUESTION}]
                asked = {"model": model, "messages": messages, "tools": tools, "temperature": 0, "max_tokens": 50}
                whole = create(**asked).choices[0]
                self.assertEqual((whole.finish_reason, whole.message.content), ("tool_calls", None))
                self.assertEqual(getattr(whole.message, "reasoning_content", None), thought)
                [call] = whole.message.tool_calls
                self.called(call.function.name, call.function.arguments)
                text, reasoning, arguments, names = "", "", "", []
                for chunk in create(**asked, stream=True):
                    delta = chunk.choices[0].delta
                    text += delta.content or ""
                    reasoning += getattr(delta, "reasoning_content", None) or ""
                    for call_delta in delta.tool_calls or []:
                        names += [call_delta.function.name] if call_delta.function.name else []
                        arguments += call_delta.function.arguments or ""
                self.assertEqual((text, reasoning or None, len(names)), ("", thought, 1))
                self.called(names[0], arguments)
                messages += [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
                self.assertEqual(create(**asked).choices[0].message.content, ANSWER)
                self.assertEqual(create(**{**asked, "tools": []}).choices[0].message.content, ANSWER)

    def test_responses(self):
        tools = [{"type": "function", "name": "clock", "parameters": PARAMETERS, "strict": True}]
        with OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0) as client:
            for model, thought in self.each():
                asked = {"model": model, "input": QUESTION, "tools": tools, "temperature": 0, "max_output_tokens": 50}
                whole = client.responses.create(**asked)
                conforms(self, "Response", whole.model_dump(mode="json", exclude_unset=True))
                kinds = (["reasoning"] if thought else []) + ["function_call"]
                self.assertEqual([item.type for item in whole.output], kinds)
                call = whole.output[-1]
                self.called(call.name, call.arguments)
                if thought:
                    self.assertEqual(whole.output[0].content[0].text, thought)
                events = list(client.responses.create(**asked, stream=True))
                self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
                deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
                self.called("clock", "".join(deltas))
                self.assertEqual([item.type for item in events[-1].response.output], kinds)
                output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
                # The server has the turns before, or gets them with the reasoning.
                stored = client.responses.create(**{**asked, "input": [output]}, previous_response_id=whole.id)
                self.assertEqual(stored.output_text, ANSWER)
                turns = [{"role": "user", "content": QUESTION}, *whole.output, output]
                sent = client.responses.create(**{**asked, "input": turns}, store=False)
                self.assertEqual(sent.output_text, ANSWER)

    def test_messages(self):
        tools = [{"name": "clock", "description": "The time", "input_schema": PARAMETERS}]
        with Anthropic(base_url=URL, api_key="any", max_retries=0) as client:
            for model, thought in self.each():
                messages = [{"role": "user", "content": QUESTION}]
                asked = {"model": model, "messages": messages, "max_tokens": 1030, "tools": tools}
                asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
                whole = client.messages.create(**asked)
                kinds = (["thinking"] if thought else []) + ["tool_use"]
                self.assertEqual(([block.type for block in whole.content], whole.stop_reason), (kinds, "tool_use"))
                if thought:
                    self.assertEqual(whole.content[0].thinking, thought)
                use = whole.content[-1]
                self.called(use.name, json.dumps(use.input))
                with client.messages.stream(**asked) as stream:
                    final = stream.get_final_message()
                self.assertEqual([block.type for block in final.content], kinds)
                self.called(final.content[-1].name, json.dumps(final.content[-1].input))
                result = {"type": "tool_result", "tool_use_id": use.id, "content": "noon"}
                messages += [
                    {"role": "assistant", "content": whole.content},
                    {"role": "user", "content": [result]},
                ]
                [answer] = client.messages.create(**asked).content
                self.assertEqual(answer.text, ANSWER)


if __name__ == "__main__":
    unittest.main()
