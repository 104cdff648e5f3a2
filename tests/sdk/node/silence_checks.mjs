// What an official Node SDK makes of a gateway that keeps a silent stream open (O04). Prints one line per check.
//
//   node silence_checks.mjs PACKAGE      the dependency to check, or an older major under another name
//
// Between what the provider says there is silence of more than one keep-alive. The decoder must see none of them: no
// empty event, no event more, no error. The same request without an SDK shows that they are on the wire.

import assert from "node:assert/strict";

import { load, model, prompt, provider, run } from "./support.mjs";

const Sdk = await load();
const sdk = new Sdk({ maxRetries: 0 });

const usage = { prompt: 12, completion: 5 };
const silent = { text: "one two", chunks: 2, before_content_ms: 900, gap_ms: 900, usage };
const chunk = (content, finish_reason = null) => ({
  id: "c",
  object: "chat.completion.chunk",
  created: 1,
  model: "m",
  choices: [{ index: 0, delta: { content }, finish_reason }],
});
// A provider that numbers its events: a decoder that has seen an `id:` dispatches an event at each blank line.
const events = [chunk("one "), chunk("two"), chunk("", "stop")];
const numberedEvents = events.map((event, number) => `id: ${number}\ndata: ${JSON.stringify(event)}\n\n`);
const numbered = { gap_ms: 900, raw: [...numberedEvents, "data: [DONE]\n\n"].join("¦") };
const scripts = provider === "openai" ? [silent, numbered] : [silent];

// The lines of the same stream, to a client that keeps all of them.
async function onTheWire(path, headers, body) {
  const request = { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", ...headers } };
  const answer = await fetch(process.env.OPENAI_BASE_URL + path, request);
  assert.equal(answer.status, 200);
  return (await answer.text()).split("\n");
}

const read = async (stream, seen = []) => {
  for await (const event of stream) seen.push(event);
  return seen;
};
const many = (lines, sign) => {
  assert.ok(lines.filter((line) => line === sign).length > 4, lines.join("\n"));
  assert.ok(!lines.some((line) => line.startsWith("id:")), lines.join("\n"));
};

const ofChat = {
  async chat() {
    for (const script of scripts) {
      const body = { model: model("fast"), stream: true, messages: [{ role: "user", content: prompt(script) }] };
      const chunks = await read(await sdk.chat.completions.create(body));
      assert.ok(chunks.every((chunk) => chunk.choices.length === 1));
      assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), "one two");
      assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
      many(await onTheWire("/chat/completions", { authorization: `Bearer ${process.env.OPENAI_API_KEY}` }, body), ": ping");
    }
  },
};

const ofMessages = {
  async messages() {
    for (const script of scripts) {
      const body = { model: model("fast"), max_tokens: 200, messages: [{ role: "user", content: prompt(script) }] };
      const answer = await sdk.messages.stream(body).finalMessage();
      assert.deepEqual([answer.content[0].text, answer.stop_reason], ["one two", "end_turn"]);
      const streamed = { ...body, stream: true };
      const kinds = (await read(await sdk.messages.create(streamed))).map((event) => event.type);
      assert.deepEqual([kinds[0], kinds.at(-1)], ["message_start", "message_stop"]);
      assert.ok(!kinds.includes("ping"), kinds.join());
      const key = { "x-api-key": process.env.ANTHROPIC_API_KEY, "anthropic-version": "2023-06-01" };
      many(await onTheWire("/messages", key, streamed), "event: ping");
    }
  },
};

await run(sdk.chat ? ofChat : ofMessages);
