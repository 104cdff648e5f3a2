// What an application sees through Anthropic's official Node SDK. Prints one line per check; ends with 1 when one failed.
//
//   node anthropic_checks.mjs PACKAGE      the dependency to check, or an older major under another name

import assert from "node:assert/strict";

import {
  addSchema,
  cancelled,
  header,
  load,
  model,
  prompt,
  provider,
  providerCalls,
  raises as raisesOf,
  run,
  runAgent,
} from "./support.mjs";

const Anthropic = await load();
const client = (options = {}) => new Anthropic({ maxRetries: 0, ...options });
const body = (script, mark, more = {}) => ({
  max_tokens: 200,
  messages: [{ role: "user", content: prompt(script, mark) }],
  ...more,
  model: model(more.model ?? "fast"),
});
const create = (script, mark, more, options) => client(options).messages.create(body(script, mark, more));
const raises = (kind, act) => raisesOf(kind, Anthropic.APIError, act);
const kindOf = (error) => error.error.error.type;

const city = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ name: "weather", input_schema: city }];
const twoCalls = {
  tool_calls: [
    { name: "weather", arguments: '{"city":"Köln","days":3}', id: "call_a", fragments: 5 },
    { name: "weather", arguments: '{"city":"Bonn"}', id: "call_b", fragments: 4 },
  ],
};
const expectedCalls = [["call_a", { city: "Köln", days: 3 }], ["call_b", { city: "Bonn" }]];
const callsOf = (answer) =>
  answer.content.filter((block) => block.type === "tool_use").map((block) => [block.id, block.input]);
const pixel =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const checks = {
  async plain() {
    const answer = await create({ text: "the answer", usage: { prompt: 12, completion: 5, cached: 4 } });
    assert.deepEqual([answer.content[0].text, answer.stop_reason], ["the answer", "end_turn"]);
    assert.equal(answer.model, model("fast"));
    const { input_tokens, cache_read_input_tokens, output_tokens } = answer.usage;
    assert.deepEqual([input_tokens, cache_read_input_tokens, output_tokens], [8, 4, 5]);
  },

  async streamed() {
    const script = { text: "one two three four", chunks: 4, usage: { prompt: 12, completion: 5 } };
    const stream = client().messages.stream(body(script));
    const pieces = [];
    stream.on("text", (text) => pieces.push(text));
    const answer = await stream.finalMessage();
    assert.deepEqual([pieces.join(""), pieces.length], ["one two three four", 4]);
    assert.deepEqual([answer.stop_reason, answer.usage.output_tokens], ["end_turn", 5]);
  },

  async tools_in_parallel() {
    const answer = await create(twoCalls, "", { tools });
    assert.equal(answer.stop_reason, "tool_use");
    assert.deepEqual(callsOf(answer), expectedCalls);
  },

  async tool_arguments_streamed() {
    const stream = client().messages.stream(body(twoCalls, "", { tools }));
    let pieces = 0;
    stream.on("inputJson", () => (pieces += 1));
    assert.deepEqual(callsOf(await stream.finalMessage()), expectedCalls);
    assert.ok(pieces >= 7, `${pieces} pieces: the arguments were not streamed`);
  },

  async system_and_images() {
    const source = { type: "base64", media_type: "image/png", data: pixel };
    const content = [{ type: "image", source }, { type: "text", text: prompt({ text: "a dot" }, "picture") }];
    const messages = [{ role: "user", content }];
    const answer = await create(undefined, "", { model: "seeing", system: "Be brief.", messages });
    assert.equal(answer.content[0].text, "a dot");
    const [call] = await providerCalls("picture");
    assert.ok(call.body.includes(pixel) && call.body.includes("Be brief."));
  },

  async thinking_comes_back_as_it_was_signed() {
    if (provider !== "anthropic") return;
    const more = { model: "thinking", max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 }, tools };
    const asked = body({ thinking: "let me see", ...twoCalls }, "", more);
    const first = await client().messages.stream(asked).finalMessage();
    assert.deepEqual([first.content[0].type, first.content[0].thinking], ["thinking", "let me see"]);
    const results = callsOf(first).map(([id]) => ({ type: "tool_result", tool_use_id: id, content: "sunny" }));
    const turns = [{ role: "assistant", content: first.content }, { role: "user", content: results }];
    // The provider refuses a signature that does not fit its text.
    const answer = await client().messages.create({ ...asked, messages: [...asked.messages, ...turns] });
    assert.equal(answer.content[0].type, "thinking");
  },

  async unknown_key_401() {
    const error = await raises(Anthropic.AuthenticationError, () =>
      create(undefined, "", {}, { apiKey: "weir_live_nobody" }),
    );
    assert.equal(kindOf(error), "authentication_error");
  },

  async denied_model_403() {
    const error = await raises(Anthropic.PermissionDeniedError, () => create(undefined, "", { model: "closed" }));
    assert.equal(kindOf(error), "permission_error");
  },

  async unknown_model_404() {
    const error = await raises(Anthropic.NotFoundError, () => create(undefined, "", { model: "none" }));
    assert.equal(kindOf(error), "not_found_error");
  },

  async own_limit_429() {
    const error = await raises(Anthropic.RateLimitError, () =>
      create(undefined, "limited-messages", {}, { apiKey: process.env.WEIR_LIMITED_KEY }),
    );
    assert.ok(Number(header(error, "retry-after")) > 0);
    assert.equal((await providerCalls("limited-messages")).length, 0, "a refusal reached the provider");
  },

  async provider_limit_429() {
    const script = { status: 429, headers: { "retry-after": "1" } };
    const error = await raises(Anthropic.RateLimitError, () => create(script, "", { model: "throttled" }));
    assert.equal(header(error, "retry-after"), "1");
  },

  async overloaded() {
    const script = { status: provider === "anthropic" ? 529 : 503 };
    const isOverloaded = (error) => error instanceof Anthropic.APIError && [503, 529].includes(error.status);
    await assert.rejects(() => create(script, "", { model: "early" }), isOverloaded);
  },

  async error_before_content() {
    const script = { chunks: 3, fault: { kind: "error" }, billing: "none" };
    await assert.rejects(async () => {
      for await (const _ of await create(script, "", { model: "early-error", stream: true }));
    }, (error) => error instanceof Anthropic.APIError && error.status >= 500);
  },

  async broken_stream() {
    const script = { chunks: 6, fault: { kind: "reset", after_chunks: 2 } };
    const seen = [];
    await assert.rejects(async () => {
      for await (const event of await create(script, "", { model: "broken", stream: true })) {
        if (event.type === "content_block_delta") seen.push(event.delta.text);
      }
    }, (error) => error instanceof Anthropic.APIError && String(error.message).includes("incomplete"));
    assert.equal(seen.length, 2);
  },

  async aborted_stream() {
    const asked = body({ chunks: 500, gap_ms: 20 }, "aborted-messages", { stream: true, max_tokens: 1000 });
    const { data: stream, response } = await client().messages.create(asked).withResponse();
    let number = 0;
    for await (const _ of stream) if (++number === 6) break;
    await cancelled("aborted-messages");
    return response.headers.get("x-weir-reservation");
  },

  async agent_of_twenty_turns() {
    const sdk = client({ maxRetries: 2 });
    const add = [{ name: "add", input_schema: addSchema }];
    const turn = async (ran) => {
      const messages = [{ role: "user", content: "add them all" }];
      for (const number of ran) {
        const id = `call_${number}`;
        const call = { type: "tool_use", id, name: "add", input: { n: number } };
        const result = { type: "tool_result", tool_use_id: id, content: String(number) };
        messages.push({ role: "assistant", content: [call] }, { role: "user", content: [result] });
      }
      const asked = { model: model("agent"), max_tokens: 500, messages, tools: add };
      const answer = await sdk.messages.stream(asked).finalMessage();
      return answer.stop_reason === "tool_use" ? answer.content[0].input.n : null;
    };
    return runAgent(turn, Anthropic.AnthropicError);
  },
};

await run(checks);
