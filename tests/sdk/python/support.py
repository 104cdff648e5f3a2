"""What the checks of all SDKs share: names, the scripted provider, and how a check is run.

The gateway and the provider behind it are named by the environment, as for any application. A prompt carries the
script that the scripted provider plays: `[[stub {...}]]`. A provider that fails is another model each time, because
the gateway leaves one alone that failed.
"""

import json
import os
import sys
import time
import traceback
import urllib.request

STUB = os.environ["WEIR_STUB_URL"]
# Which API the provider speaks; its models have the name of it at their end.
PROVIDER = os.environ.get("WEIR_PROVIDER_API", "openai")
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def model(name):
    return name if PROVIDER == "openai" else f"{name}-{PROVIDER}"


def prompt(script=None, mark=""):
    return f"{mark} [[stub {json.dumps(script)}]]" if script else f"hello {mark}"


def provider_calls(mark):
    """The provider's journal: the requests whose prompt has the mark."""
    with urllib.request.urlopen(f"{STUB}/stub/journal") as page:
        return [entry for entry in json.load(page) if mark in entry["body"]]


def queue(name, scripts):
    """The next calls of a model play these scripts, in order."""
    body = json.dumps({"model": model(name), "scripts": scripts}).encode()
    headers = {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{STUB}/stub/script", body, headers)).close()


def raises(kind, of, function):
    """The error, which must be of exactly this kind; `of` is what all of an SDK's errors are."""
    try:
        function()
    except of as error:
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised instead of {kind.__name__}")


def cancelled(mark):
    """Waits until the provider has noticed that nobody reads any more."""
    left = time.monotonic()
    while provider_calls(mark)[0]["state"] != "cancelled":
        assert time.monotonic() < left + 2, f"the provider still answers: {provider_calls(mark)[0]['state']}"
        time.sleep(0.01)


# An agent of twenty turns, and what befalls it. A fault before content is another try of the SDK's; one after content is
# the application's to repeat, from what it has stored.
TURNS = 20
BEFORE = {3: {"status": 503}, 8: {"status": 429, "headers": {"retry-after": "0"}}, 14: {"status": 500}}
AFTER = {
    5: {"kind": "reset", "after_chunks": 2},
    11: {"kind": "close", "after_chunks": 3},
    17: {"kind": "error", "after_chunks": 2},
}
ADD = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def script_agent():
    """Queues every answer of the provider. Each turn but the last calls the tool `add` with its number."""
    scripts = []
    for turn in range(TURNS):
        arguments = json.dumps({"n": turn})
        call = {"tool_calls": [{"name": "add", "arguments": arguments, "id": f"call_{turn}", "fragments": 3}]}
        last = {"text": "the sum is known", "chunks": 3}
        answer = last if turn == TURNS - 1 else call
        if turn in BEFORE:
            scripts.append(BEFORE[turn])
        if turn in AFTER:
            scripts.append({**answer, "fault": AFTER[turn]})
        scripts.append({**answer, "usage": {"prompt": 100 + turn, "completion": 10}})
    queue("agent", scripts)


def run_agent(turn, of):
    """Plays the turns. `turn(ran)` asks once with the results so far and returns the tool's argument, or None at the end."""
    script_agent()
    ran, broken = [], 0
    for number in range(TURNS):
        try:
            argument = turn(ran)
        except of:
            broken += 1
            argument = turn(ran)
        if argument is None:
            assert number == TURNS - 1, f"the agent ended after {number} turns"
            break
        ran.append(argument)
    assert ran == list(range(TURNS - 1)), ran
    assert broken == len(AFTER), broken
    return broken


def main(sdk):
    failed = 0
    for function in CHECKS:
        try:
            found = function()
            print("ok", function.__name__, *([found] if found else []), flush=True)
        except Exception:
            failed += 1
            print("failed", function.__name__, flush=True)
            traceback.print_exc()
    told = f"{sdk.__name__} {sdk.__version__}, Python {sys.version.split()[0]}, {PROVIDER} provider"
    print(f"{told}: {len(CHECKS)} checks, {failed} failed")
    sys.exit(1 if failed else 0)
