// OpenAI's own client for Node.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { AKUNU_URL, AKUNU_LOCKED_URL, AKUNU_TEXTS_URL, AKUNU_CALLER_URL, AKUNU_KEY, AKUNU_MODEL: model } = process.env;
const client = (url = AKUNU_URL, apiKey = "none") => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "tell me a story about a fox" }];
const greedy = { model, messages, max_tokens: 24, temperature: 0 };

test("chat, and a stream that says the same", async () => {
  const whole = await client().chat.completions.create(greedy);
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 24);
  const stream = await client().chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } });
  let text = "", usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 24);
});

test("the streaming helper gathers the answer", async () => {
  const final = await client().chat.completions.stream(greedy).finalChatCompletion();
  assert.ok(final.choices[0].message.content.length > 20);
});

test("stop, seed, n and logprobs", async () => {
  const whole = (await client().chat.completions.create(greedy)).choices[0].message.content;
  const word = whole.split(/\s+/)[3];
  const stopped = await client().chat.completions.create({ ...greedy, stop: word });
  assert.equal(stopped.choices[0].message.content, whole.slice(0, whole.indexOf(word)));
  const drawn = { ...greedy, temperature: 1, seed: 5, n: 2, logprobs: true, top_logprobs: 2 };
  const [first, second] = await Promise.all([1, 2].map(() => client().chat.completions.create(drawn)));
  assert.deepEqual(first.choices, second.choices);
  assert.equal(first.choices[1].logprobs.content.length, 24);
});

test("responses, streamed and stored", async () => {
  const asked = { model, input: "tell me a story about a fox", max_output_tokens: 24, temperature: 0 };
  const { responses } = client();
  const whole = await responses.create(asked);
  assert.equal(whole.status, "incomplete");
  const kinds = [];
  let text = "";
  for await (const event of await responses.create({ ...asked, stream: true })) {
    assert.equal(event.sequence_number, kinds.length);
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.incomplete"]);
  assert.equal((await responses.retrieve(whole.id)).output_text, whole.output_text);
  const more = await responses.create({ ...asked, input: "And then?", previous_response_id: whole.id });
  assert.ok(more.usage.input_tokens > whole.usage.input_tokens);
  await responses.delete(whole.id);
  await assert.rejects(responses.retrieve(whole.id), OpenAI.NotFoundError);
  await assert.rejects(responses.create({ ...asked, background: true }), /background/);
});

for (const family of ["caller", "harmony", "mistral", "llama"]) {
  test(`responses call tools: ${family}`, async () => {
    const { responses } = client(AKUNU_CALLER_URL);
    const parameters = { type: "object", properties: { zone: { type: "string" } }, required: ["zone"], additionalProperties: false };
    const tools = [{ type: "function", name: "clock", parameters, strict: true }];
    const asked = { model: family, input: "What time is it?", tools, temperature: 0, max_output_tokens: 50 };
    const stream = responses.stream(asked);
    let streamed = "";
    for await (const event of stream) {
      if (event.type === "response.function_call_arguments.delta") streamed += event.delta;
    }
    const whole = await stream.finalResponse();
    const call = whole.output.at(-1);
    assert.deepEqual([call.type, call.name, call.arguments], ["function_call", "clock", streamed]);
    assert.deepEqual(JSON.parse(streamed), { zone: "UTC" });
    const output = { type: "function_call_output", call_id: call.call_id, output: "noon" };
    const answer = await responses.create({ ...asked, input: [output], previous_response_id: whole.id });
    assert.equal(answer.output_text, "It is noon.");
  });
}

test("completions and models", async () => {
  const answer = await client().completions.create({ model, prompt: "Once", max_tokens: 4, temperature: 0 });
  assert.ok(answer.choices[0].text.length > 0);
  const names = [];
  for await (const { id } of client().models.list()) names.push(id);
  assert.ok(names.includes(model));
});

test("vectors of texts and of ids, with the bits of floats", async () => {
  const embed = async (input, more) => {
    const answer = await client(AKUNU_TEXTS_URL).embeddings.create({ model: "words", input, ...more });
    return answer.data.map(({ embedding }) => Array.from(Float32Array.from(embedding)));
  };
  const floats = await embed(["a fox", "The sky is blue!"], { encoding_format: "float" });
  // [CLS] a fox [SEP]: the client asks for base64, and decodes it.
  assert.deepEqual(await embed(["a fox", "The sky is blue!"]), floats);
  assert.deepEqual(await embed([[1, 4, 31, 2]]), floats.slice(0, 1));
  assert.deepEqual(await embed([1, 4, 31, 2]), floats.slice(0, 1));
  assert.deepEqual((await embed("a fox", { dimensions: 8 })).map((vector) => vector.length), [8]);
  for (const input of ["", [], [64], "fox ".repeat(100), Array(10_000).fill("a fox")]) {
    await assert.rejects(embed(input), OpenAI.BadRequestError);
  }
  await assert.rejects(embed("a fox", { dimensions: 0 }), OpenAI.BadRequestError);
  await assert.rejects(embed("a fox", { dimensions: 49 }), /49.*48/);
  await assert.rejects(embed("a fox", { model: "none" }), OpenAI.NotFoundError);
  await assert.rejects(embed("a fox", { model: "judge" }), /\/v1\/rerank/);
});

test("errors are the client's own", async () => {
  const create = (more, to = client()) => to.chat.completions.create({ ...greedy, ...more });
  await assert.rejects(create({ temperature: 9 }), OpenAI.BadRequestError);
  await assert.rejects(create({ model: "none" }), OpenAI.NotFoundError);
  await assert.rejects(create({}, client(AKUNU_LOCKED_URL, "wrong")), OpenAI.AuthenticationError);
  assert.ok((await create({}, client(AKUNU_LOCKED_URL, AKUNU_KEY))).choices.length);
});

test("a client that hangs up mid-stream leaves a server that answers", async () => {
  const stream = await client().chat.completions.create({ ...greedy, max_tokens: 400, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) break;
  }
  stream.controller.abort();
  assert.ok((await client().chat.completions.create({ ...greedy, max_tokens: 1 })).choices.length);
});
