// What an application sees through OpenAI's official Node SDK. Prints one line per check; ends with 1 when one failed.
//
//   node checks.mjs PACKAGE      the dependency to check: `openai`, or an older major under another name

import assert from "node:assert/strict";

import { cancelled, header, load, model, prompt, providerCalls, raises as raisesOf, run } from "./support.mjs";

const OpenAI = await load();

const client = (options = {}) => new OpenAI({ maxRetries: 0, ...options });

const messages = (script, mark) => [{ role: "user", content: prompt(script, mark) }];

const create = (body, options) =>
  client(options).chat.completions.create({ ...body, model: model(body.model ?? "fast") });

const raises = (kind, act) => raisesOf(kind, OpenAI.APIError, act);

const read = async (stream, seen = []) => {
  for await (const chunk of stream) seen.push(chunk);
  return seen;
};
const content = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join("");

const tools = [
  {
    type: "function",
    function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
  },
];
const call = { tool_calls: [{ name: "weather", arguments: '{"city":"Köln","days":3}', fragments: 6 }], chunks: 0 };

const checks = {
  async plain() {
    const answer = await create({ messages: messages({ text: "the answer", usage: { prompt: 12, completion: 5 } }) });
    assert.equal(answer.choices[0].message.content, "the answer");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.deepEqual([answer.usage.prompt_tokens, answer.usage.completion_tokens], [12, 5]);
    assert.equal(answer.model, model("fast"));
  },

  async streamed() {
    const script = { text: "one two three four", chunks: 4, usage: { prompt: 12, completion: 5 } };
    const chunks = await read(await create({ stream: true, messages: messages(script) }));
    assert.equal(content(chunks), "one two three four");
    assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
    assert.ok(chunks.every((chunk) => !chunk.usage && chunk.model === model("fast")));
  },

  async streamed_with_usage() {
    const script = { text: "one two", chunks: 2, usage: { prompt: 12, completion: 5 } };
    const body = { stream: true, stream_options: { include_usage: true }, messages: messages(script) };
    const last = (await read(await create(body))).at(-1);
    assert.deepEqual([last.choices, last.usage.prompt_tokens, last.usage.completion_tokens], [[], 12, 5]);
  },

  async tools() {
    const answer = await create({ tools, messages: messages(call) });
    const made = answer.choices[0].message.tool_calls[0];
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    assert.deepEqual([made.function.name, JSON.parse(made.function.arguments).city], ["weather", "Köln"]);
  },

  async tools_streamed() {
    const chunks = await read(await create({ stream: true, tools, messages: messages(call) }));
    const pieces = chunks.flatMap((chunk) => chunk.choices[0].delta.tool_calls ?? []);
    const joined = (field) => pieces.map((piece) => piece.function[field] ?? "").join("");
    assert.equal(joined("name"), "weather");
    assert.deepEqual(JSON.parse(joined("arguments")), { city: "Köln", days: 3 });
    assert.ok(pieces.length > 3, `${pieces.length} pieces: the arguments were not streamed`);
  },

  async models() {
    const listed = [];
    for await (const one of await client().models.list()) listed.push(one.id);
    assert.ok(listed.includes(model("fast")) && !listed.includes(model("closed")), listed.join());
  },

  async unknown_key_401() {
    const error = await raises(OpenAI.AuthenticationError, () =>
      create({ messages: messages() }, { apiKey: "weir_live_nobody" }),
    );
    assert.deepEqual([error.status, error.code], [401, "invalid_api_key"]);
  },

  async denied_model_403() {
    const error = await raises(OpenAI.PermissionDeniedError, () => create({ model: "closed", messages: messages() }));
    assert.deepEqual([error.status, error.code, error.param], [403, "model_not_allowed", "model"]);
  },

  async unknown_model_404() {
    const error = await raises(OpenAI.NotFoundError, () => create({ model: "none", messages: messages() }));
    assert.deepEqual([error.status, error.code], [404, "model_not_found"]);
  },

  async bad_request_400() {
    const error = await raises(OpenAI.BadRequestError, () =>
      create({ max_completion_tokens: 0, messages: messages() }),
    );
    assert.deepEqual([error.status, error.param], [400, "max_completion_tokens"]);
  },

  async own_limit_429() {
    const error = await raises(OpenAI.RateLimitError, () =>
      create({ messages: messages(undefined, "limited") }, { apiKey: process.env.WEIR_LIMITED_KEY }),
    );
    assert.deepEqual([error.status, error.code], [429, "request_quota_exceeded"]);
    assert.ok(Number(header(error, "retry-after")) > 0);
    assert.equal((await providerCalls("limited")).length, 0, "a refusal reached the provider");
  },

  async provider_limit_429() {
    const script = { status: 429, headers: { "retry-after": "1" } };
    const error = await raises(OpenAI.RateLimitError, () =>
      create({ model: "throttled", messages: messages(script) }),
    );
    assert.equal(error.status, 429);
    assert.notEqual(error.code, "request_quota_exceeded");
    assert.equal(header(error, "retry-after"), "1");
  },

  async broken_stream() {
    const script = { chunks: 6, fault: { kind: "reset", after_chunks: 2 } };
    const stream = await create({ model: "broken", stream: true, messages: messages(script) });
    const seen = [];
    const error = await raises(OpenAI.APIError, () => read(stream, seen));
    assert.equal(seen.filter((chunk) => chunk.choices[0].delta.content).length, 2);
    assert.deepEqual([error.error.incomplete, error.error.chunks_delivered], [true, 2]);
    assert.ok(error.error.reason);
  },

  async raw_response_headers() {
    const { data, response } = await create({ messages: messages() }).withResponse();
    for (const header of ["x-request-id", "x-weir-reservation"]) assert.ok(response.headers.get(header), header);
    assert.equal(response.headers.get("x-weir-attempts"), "1");
    assert.ok(data.choices[0].message.content);
    assert.equal(data._request_id, response.headers.get("x-request-id"));
    const raw = await create({ messages: messages() }).asResponse();
    assert.ok(raw.headers.get("x-weir-reservation"));
    assert.ok((await raw.json()).choices[0].message.content);
  },

  async retries_once_where_it_may_not() {
    // The provider may have executed it, so the gateway says `x-should-retry: false`, and the SDK obeys.
    const script = { status: 504, body: { error: { message: "late" } } };
    const error = await raises(OpenAI.InternalServerError, () =>
      create({ model: "late", messages: messages(script, "only-once") }, { maxRetries: 2 }),
    );
    assert.equal(header(error, "x-should-retry"), "false");
    assert.equal((await providerCalls("only-once")).length, 1);
  },

  async retries_are_not_multiplied() {
    // The provider was overloaded and executed nothing. The SDK may ask again: once per try, not per try and attempt.
    const error = await raises(OpenAI.InternalServerError, () =>
      create({ model: "busy", messages: messages({ status: 503 }, "three-times") }, { maxRetries: 2 }),
    );
    assert.equal(error.status, 503);
    assert.equal((await providerCalls("three-times")).length, 3);
  },

  async aborted_stream() {
    const body = { stream: true, messages: messages({ chunks: 500, gap_ms: 20 }, "aborted") };
    const { data: stream, response } = await create(body).withResponse();
    let number = 0;
    for await (const _ of stream) if (++number === 4) break;
    await cancelled("aborted");
    return response.headers.get("x-weir-reservation");
  },

  async fifty_at_once() {
    const sdk = client();
    const one = async (number) => {
      const script = { text: `answer ${number}`, chunks: 3, gap_ms: 5, usage: { prompt: 7, completion: 3 } };
      const body = { model: model("fast"), messages: messages(script), stream: number % 2 === 0 };
      const answer = await sdk.chat.completions.create(body);
      return body.stream ? content(await read(answer)) : answer.choices[0].message.content;
    };
    const numbers = Array.from({ length: 50 }, (_, number) => number);
    assert.deepEqual(await Promise.all(numbers.map(one)), numbers.map((number) => `answer ${number}`));
  },
};

await run(checks);
