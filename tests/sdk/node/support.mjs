// What the checks of all Node SDKs share: names, the scripted provider, and how a check is run.
//
// The gateway and the provider behind it are named by the environment, as for any application. A prompt carries the
// script that the scripted provider plays: `[[stub {...}]]`. A provider that fails is another model each time, because
// the gateway leaves one alone that failed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const stub = process.env.WEIR_STUB_URL;
// Which API the provider speaks; its models have the name of it at their end.
export const provider = process.env.WEIR_PROVIDER_API ?? "openai";

// The SDK to check: the package that the command line names.
const name = process.argv[2];
export const load = async () => (await import(name)).default;

export const model = (name) => (provider === "openai" ? name : `${name}-${provider}`);

export const prompt = (script, mark = "") =>
  script ? `${mark} [[stub ${JSON.stringify(script)}]]` : `hello ${mark}`;

// The provider's journal: the requests whose prompt has the mark.
export async function providerCalls(mark) {
  const page = await fetch(`${stub}/stub/journal`);
  return (await page.json()).filter((entry) => entry.body.includes(mark));
}

// The error, which must be of exactly this kind; `of` is what all of an SDK's errors are.
export async function raises(kind, of, act) {
  try {
    await act();
  } catch (error) {
    assert.equal(error.constructor.name, kind.name, `${error.constructor.name}: ${error.message}`);
    assert.ok(error instanceof of);
    return error;
  }
  assert.fail(`nothing was raised instead of ${kind.name}`);
}

// Headers are an object in older majors.
export const header = (error, name) => (error.headers?.get ? error.headers.get(name) : error.headers?.[name]);

// Waits until the provider has noticed that nobody reads any more.
export async function cancelled(mark) {
  const left = performance.now();
  for (;;) {
    const [entry] = await providerCalls(mark);
    if (entry.state === "cancelled") return;
    assert.ok(performance.now() < left + 2000, `the provider still answers: ${entry.state}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

// An agent of twenty turns, and what befalls it. A fault before content is another try of the SDK's; one after content
// is the application's to repeat, from what it has stored.
const TURNS = 20;
const before = { 3: { status: 503 }, 8: { status: 429, headers: { "retry-after": "0" } }, 14: { status: 500 } };
const after = {
  5: { kind: "reset", after_chunks: 2 },
  11: { kind: "close", after_chunks: 3 },
  17: { kind: "error", after_chunks: 2 },
};
export const addSchema = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };

// Queues every answer of the provider. Each turn but the last calls the tool `add` with its number.
async function scriptAgent() {
  const scripts = [];
  for (let turn = 0; turn < TURNS; turn += 1) {
    const call = { name: "add", arguments: JSON.stringify({ n: turn }), id: `call_${turn}`, fragments: 3 };
    const answer = turn === TURNS - 1 ? { text: "the sum is known", chunks: 3 } : { tool_calls: [call] };
    if (before[turn]) scripts.push(before[turn]);
    if (after[turn]) scripts.push({ ...answer, fault: after[turn] });
    scripts.push({ ...answer, usage: { prompt: 100 + turn, completion: 10 } });
  }
  const body = JSON.stringify({ model: model("agent"), scripts });
  const queued = await fetch(`${stub}/stub/script`, { method: "POST", body });
  assert.equal(queued.status, 204, await queued.text());
}

// Plays the turns. `turn(ran)` asks once with the results so far and gives the tool's argument, or null at the end.
export async function runAgent(turn, of) {
  await scriptAgent();
  const ran = [];
  let broken = 0;
  for (;;) {
    let argument;
    try {
      argument = await turn(ran);
    } catch (error) {
      if (!(error instanceof of)) throw error;
      broken += 1;
      argument = await turn(ran);
    }
    if (argument === null) break;
    ran.push(argument);
    assert.ok(ran.length < TURNS, "the agent does not end");
  }
  assert.deepEqual(ran, Array.from({ length: TURNS - 1 }, (_, number) => number));
  assert.equal(broken, Object.keys(after).length);
  return broken;
}

export async function run(checks) {
  let failed = 0;
  for (const [title, act] of Object.entries(checks)) {
    try {
      const found = await act();
      console.log("ok", title, ...(found ? [found] : []));
    } catch (error) {
      failed += 1;
      console.log("failed", title);
      console.error(error);
    }
  }
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  const told = `${name} ${version}, Node ${process.version}, ${provider} provider`;
  console.log(`${told}: ${Object.keys(checks).length} checks, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
