// What else OpenAI's official Node SDK can do: tools in parallel, pictures, an agent, and, in majors that have them,
// responses and embeddings.
//
//   node more_checks.mjs PACKAGE

import assert from "node:assert/strict";

import { addSchema, cancelled, load, model, prompt, provider, providerCalls, runAgent, run } from "./support.mjs";

const OpenAI = await load();
const client = (options = {}) => new OpenAI({ maxRetries: 0, ...options });
const messages = (script, mark) => [{ role: "user", content: prompt(script, mark) }];
const create = (body, options) =>
  client(options).chat.completions.create({ ...body, model: model(body.model ?? "fast") });

const city = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", parameters: city } }];
const twoCalls = {
  tool_calls: [
    { name: "weather", arguments: '{"city":"Köln"}', id: "call_a", fragments: 3 },
    { name: "weather", arguments: '{"city":"Bonn"}', id: "call_b", fragments: 4 },
  ],
};
const pixel =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const checks = {
  async tools_in_parallel() {
    const whole = await create({ tools, messages: messages(twoCalls) });
    const found = whole.choices[0].message.tool_calls.map((call) => [call.id, JSON.parse(call.function.arguments).city]);
    assert.deepEqual(found, [["call_a", "Köln"], ["call_b", "Bonn"]]);
    const made = [];
    for await (const chunk of await create({ stream: true, tools, messages: messages(twoCalls) })) {
      for (const call of chunk.choices[0].delta.tool_calls ?? []) {
        made[call.index] ??= { id: "", arguments: "" };
        made[call.index].id += call.id ?? "";
        made[call.index].arguments += call.function.arguments ?? "";
      }
    }
    assert.deepEqual(made.map((call) => [call.id, JSON.parse(call.arguments).city]), found);
  },

  async images() {
    const image = { type: "image_url", image_url: { url: `data:image/png;base64,${pixel}` } };
    const content = [{ type: "text", text: prompt({ text: "a dot" }, "picture-of-chat") }, image];
    const answer = await create({ model: "seeing", messages: [{ role: "user", content }] });
    assert.equal(answer.choices[0].message.content, "a dot");
    const [call] = await providerCalls("picture-of-chat");
    assert.ok(call.body.includes(pixel));
  },

  async agent_of_twenty_turns() {
    const add = [{ type: "function", function: { name: "add", parameters: addSchema } }];
    const turn = async (ran) => {
      const sent = [{ role: "user", content: "add them all" }];
      for (const number of ran) {
        const call = { name: "add", arguments: JSON.stringify({ n: number }) };
        const tool_calls = [{ id: `call_${number}`, type: "function", function: call }];
        sent.push({ role: "assistant", content: null, tool_calls });
        sent.push({ role: "tool", tool_call_id: `call_${number}`, content: String(number) });
      }
      const body = { model: "agent", stream: true, messages: sent, tools: add };
      let [given, finish] = ["", null];
      for await (const chunk of await create(body, { maxRetries: 2 })) {
        for (const call of chunk.choices[0].delta.tool_calls ?? []) given += call.function.arguments ?? "";
        finish = chunk.choices[0].finish_reason ?? finish;
      }
      assert.ok(finish, "a broken turn looked whole");
      return finish === "tool_calls" ? JSON.parse(given).n : null;
    };
    return runAgent(turn, OpenAI.APIError);
  },
};

const ask = (script, mark, more = {}) =>
  client().responses.create({ input: prompt(script, mark), ...more, model: model(more.model ?? "fast") });

const ofResponses = {
  async response() {
    const answer = await ask({ text: "the answer", usage: { prompt: 12, completion: 5 } });
    assert.deepEqual([answer.output_text, answer.status, answer.model], ["the answer", "completed", model("fast")]);
    assert.deepEqual([answer.usage.input_tokens, answer.usage.output_tokens], [12, 5]);
  },

  async response_streamed() {
    const calls = [{ name: "add", arguments: '{"n":1}', fragments: 4 }];
    const script = { text: "one two three", chunks: 3, tool_calls: calls };
    const tool = { type: "function", name: "add", parameters: addSchema, strict: false };
    const events = [];
    for await (const event of await ask(script, "", { stream: true, tools: [tool] })) events.push(event);
    const deltas = (kind) => events.filter((event) => event.type === kind).map((event) => event.delta);
    assert.equal(deltas("response.output_text.delta").join(""), "one two three");
    assert.equal(deltas("response.function_call_arguments.delta").join(""), '{"n":1}');
    assert.equal(events.at(-1).type, "response.completed");
  },

  async response_broken() {
    const script = { chunks: 6, fault: { kind: "reset", after_chunks: 2 } };
    const seen = [];
    await assert.rejects(async () => {
      for await (const event of await ask(script, "", { model: "broken-response", stream: true })) {
        if (event.type === "response.output_text.delta") seen.push(event.delta);
      }
    }, OpenAI.APIError);
    assert.equal(seen.length, 2);
  },

  async response_aborted() {
    let number = 0;
    for await (const _ of await ask({ chunks: 500, gap_ms: 20 }, "aborted-response", { stream: true })) {
      if (++number === 8) break;
    }
    await cancelled("aborted-response");
  },

  async embeddings() {
    const input = [prompt({ usage: { prompt: 9 } }), "b"];
    const answer = await client().embeddings.create({ model: model("embed"), input, dimensions: 4 });
    assert.deepEqual(answer.data.map((item) => item.embedding), [[1, 0, 0, 0], [0, 1, 0, 0]]);
    assert.equal(answer.usage.prompt_tokens, 9);
  },
};

await run(provider === "openai" ? { ...checks, ...ofResponses } : checks);
