"""Texts, conversations and tokens."""

import json
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field

import akunu

GREEDY = {"temperature": 0}


def test_the_same_text_in_every_way(model):
    whole = model.generate("Once upon a time", max_tokens=40, **GREEDY)
    assert whole.text and str(whole) == whole.text
    assert whole.finish_reason in ("stop", "length")
    assert whole.usage["completion_tokens"] <= 40 and whole.timings["predicted_n"] > 0
    pieces = list(model.stream("Once upon a time", max_tokens=40, **GREEDY))
    assert len(pieces) > 1 and "".join(pieces) == whole.text
    ids = model.tokenize("Once upon a time", add_special=True)
    assert model.generate(ids, max_tokens=40, **GREEDY).text == whole.text


def test_a_stream_knows_its_usage_and_ends_early(model):
    with model.stream("Once", max_tokens=5, ignore_eos=True, **GREEDY) as stream:
        assert "".join(stream)
        assert stream.usage["completion_tokens"] == 5 and stream.finish_reason == "length"
        assert stream.timings["predicted_n"] == 5
    with model.stream("Once", max_tokens=400, ignore_eos=True) as stream:
        assert next(stream)
    assert list(stream) == []


def test_several_prompts_and_choices(model):
    one = model.generate("A dog", max_tokens=8, **GREEDY)
    both = model.generate(["A dog", "A cat"], max_tokens=8, **GREEDY)
    assert [answer.text for answer in both][0] == one.text and len(both) == 2
    assert len(model.generate("A dog", max_tokens=4, n=3, seed=1)) == 3


def test_seeds_stops_and_log_probabilities(model):
    settings = {"max_tokens": 12, "temperature": 0.9, "seed": 42}
    assert model.generate("The sea", **settings).text == model.generate("The sea", **settings).text
    assert "." not in model.generate("The sea", stop=["."], max_tokens=60, **GREEDY).text
    scored = model.generate("The sea", max_tokens=3, logprobs=2, **GREEDY)
    assert len(scored.logprobs["tokens"]) == 3 and all(score <= 0 for score in scored.logprobs["token_logprobs"])


def test_tokens_and_templates(model):
    ids = model.tokenize("Once upon a time")
    assert ids and model.detokenize(ids).strip() == "Once upon a time"
    assert "Hello" in model.apply_template([{"role": "user", "content": "Hello"}])


def test_logits_are_those_that_a_greedy_text_follows(model):
    ids = model.tokenize("Once upon a time", add_special=True)
    logits = model.logits(ids)
    assert logits.dtype == np.float32 and logits.shape[0] == len(ids) and np.isfinite(logits).all()
    np.testing.assert_array_equal(model.logits(ids, all=False), logits[-1])
    np.testing.assert_array_equal(model.logits("Once upon a time", all=False), logits[-1])
    scored = model.generate(ids, max_tokens=1, logprobs=1, **GREEDY)
    exact = logits[-1].astype(np.float64)
    best = exact.max() - np.log(np.exp(exact - exact.max()).sum()) - exact.max()
    assert scored.logprobs["token_logprobs"][0] == pytest.approx(best, abs=1e-4)


class Dog(BaseModel):
    """A dog of the story."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Rex", "Bello"]
    age: int = Field(ge=0, le=30)


def test_answers_are_held_to_schemas(model):
    # A model that knows only stories may put spaces between words until the end.
    replies = [model.chat("Describe a dog.", schema=Dog, max_tokens=300, seed=seed) for seed in range(5)]
    assert {reply.finish_reason for reply in replies} <= {"stop", "length"}
    whole = [reply for reply in replies if reply.finish_reason == "stop"]
    assert whole and all(Dog.model_validate_json(reply.content) == reply.parsed for reply in whole)
    assert all(reply.parsed is None for reply in replies if reply.finish_reason == "length")
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    schema["additionalProperties"] = False
    replies = [model.chat("Is it?", schema=schema, max_tokens=300, seed=seed) for seed in range(5)]
    assert any(reply.parsed and isinstance(reply.parsed["yes"], bool) for reply in replies)
    assert isinstance(json.loads(model.generate("It is", schema={"type": "integer", "maximum": 9}).text), int)


def test_conversations(model):
    messages = [{"role": "user", "content": "Tell me a story about a dog."}]
    reply = model.chat(messages, max_tokens=20, **GREEDY)
    assert reply.content and reply.message["role"] == "assistant" and reply.tool_calls == []
    assert model.chat("Tell me a story about a dog.", max_tokens=20, **GREEDY).content == reply.content
    stream = model.chat_stream(messages, max_tokens=20, **GREEDY)
    assert "".join(delta.get("content") or "" for delta in stream) == reply.content
    messages += [reply.message, {"role": "user", "content": "And then?"}]
    assert model.chat(messages, max_tokens=5).content


class clock(BaseModel):
    """Says what time it is."""

    zone: str


def test_tools_are_called(caller):
    messages = [{"role": "user", "content": "Which time is it?"}]
    reply = caller.chat(messages, tools=[clock], temperature=0)
    [call] = reply.tool_calls
    assert (call.name, call.arguments, reply.finish_reason) == ("clock", {"zone": "UTC"}, "tool_calls")
    assert reply.reasoning == "Which time is it?"
    deltas = list(caller.chat_stream(messages, tools=[clock], temperature=0))
    arguments = "".join(
        part["function"].get("arguments") or "" for delta in deltas for part in delta.get("tool_calls") or ()
    )
    assert json.loads(arguments) == {"zone": "UTC"}
    messages += [reply.message, {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
    assert caller.chat(messages, tools=[clock], temperature=0).content == "It is noon."


def test_errors_have_the_engines_words(model):
    with pytest.raises(akunu.InvalidRequest, match="temperature") as refused:
        model.generate("Once", temperature=-1)
    assert (refused.value.param, refused.value.status) == ("temperature", 400)
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, akunu.Error)
    with pytest.raises(akunu.InvalidRequest, match="512"):
        model.generate("dog " * 2000)
    with pytest.raises(akunu.InvalidRequest, match="generates text"):
        model.embed("a")
    with pytest.raises(akunu.InvalidRequest, match="^the model .* generates text"):
        model.rerank("a", ["b"])
    with pytest.raises(akunu.InvalidRequest):
        next(model.stream("Once", top_p=7))
    for call in (model.chat, model.chat_stream, model.stream):
        with pytest.raises(ValueError, match="n must be 1"):
            call("Once", n=2)
    for call in (model.chat, model.generate):
        with pytest.raises(TypeError, match="stream and chat_stream"):
            call("Once", stream=True)
    for call in (model.chat, model.generate, model.stream, model.chat_stream):
        with pytest.raises(TypeError, match="no option 'tempreature'; did you mean 'temperature'"):
            call("Once", tempreature=1)
    with pytest.raises(TypeError, match="no option 'dimension'"):
        model.embed("a", dimension=7)
    with pytest.raises(TypeError, match="no option 'top'"):
        model.rerank("a", ["b"], top=1)
    with pytest.raises(TypeError):
        model.chat("Hello", schema=7)
    with pytest.raises(akunu.LoadError, match="missing.gguf"):
        akunu.Model("/missing.gguf")
    with pytest.raises(akunu.LoadError, match="there is no option tempo"):
        akunu.Model(tempo=1)
    with pytest.raises(akunu.LoadError, match="context is -1: it must be a positive integer"):
        akunu.Model(context=-1)
    with pytest.raises(akunu.LoadError, match="only devices of cuda have numbers, not cpu"):
        akunu.Model(device="cpu:0,1")
    with pytest.raises(akunu.LoadError, match="divided in one way"):
        akunu.Model(tensor_parallel=2, pipeline_parallel=2)
    with pytest.raises(akunu.LoadError, match="5 ranks cannot share"):
        akunu.Model(device="cpu", tensor_parallel=5)
    closed = akunu.Model(threads=1, context=64)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        closed.generate("Once")


@pytest.mark.parametrize("divided", ["tensor_parallel", "pipeline_parallel"])
def test_a_model_on_two_devices(model, divided):
    with akunu.Model(device="cpu", threads=2, context=256, **{divided: 2}) as two:
        answer = two.generate("Once upon a time", max_tokens=8, temperature=0)
        assert answer.text == model.generate("Once upon a time", max_tokens=8, temperature=0).text
