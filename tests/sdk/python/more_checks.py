"""What else OpenAI's official Python SDK can do: tools in parallel, pictures, an agent, responses, embeddings."""

import json

import openai

import responses_checks
from support import ADD, PROVIDER, check, main, model, prompt, provider_calls, raises, run_agent

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def messages(script=None, mark=""):
    return [{"role": "user", "content": prompt(script, mark)}]


def client(**options):
    return openai.OpenAI(**{"max_retries": 0, **options})


def fails(kind, function):
    return raises(kind, openai.OpenAIError, function)


@check
def tools_in_parallel():
    calls = [
        {"name": "weather", "arguments": '{"city":"Köln"}', "id": "call_a", "fragments": 3},
        {"name": "weather", "arguments": '{"city":"Bonn"}', "id": "call_b", "fragments": 4},
    ]
    script = {"tool_calls": calls}
    whole = client().chat.completions.create(model=model("fast"), tools=[WEATHER], messages=messages(script))
    found = [(call.id, json.loads(call.function.arguments)) for call in whole.choices[0].message.tool_calls]
    assert found == [("call_a", {"city": "Köln"}), ("call_b", {"city": "Bonn"})], found
    stream = client().chat.completions.create(model=model("fast"), stream=True, tools=[WEATHER], messages=messages(script))
    ids, arguments = {}, {}
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            ids[call.index] = ids.get(call.index, "") + (call.id or "")
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert ids == {0: "call_a", 1: "call_b"}, ids
    assert [json.loads(arguments[index])["city"] for index in (0, 1)] == ["Köln", "Bonn"], arguments


@check
def images():
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}}
    content = [{"type": "text", "text": prompt({"text": "a dot"}, "picture-of-chat")}, image]
    sent = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": content}]
    answer = client().chat.completions.create(model=model("seeing"), messages=sent)
    assert answer.choices[0].message.content == "a dot", answer
    (call,) = provider_calls("picture-of-chat")
    assert pixel in call["body"] and "Be brief." in call["body"], call["body"]


@check
def agent_of_twenty_turns():
    sdk = client(max_retries=2)
    tool = {"type": "function", "function": {"name": "add", "parameters": ADD}}

    def turn(ran):
        sent = [{"role": "user", "content": "add them all"}]
        for number in ran:
            function = {"name": "add", "arguments": json.dumps({"n": number})}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            sent.append({"role": "assistant", "content": None, "tool_calls": [call]})
            sent.append({"role": "tool", "tool_call_id": f"call_{number}", "content": str(number)})
        stream = sdk.chat.completions.create(model=model("agent"), stream=True, messages=sent, tools=[tool])
        text, arguments, finish = "", "", None
        for chunk in stream:
            choice = chunk.choices[0]
            text += choice.delta.content or ""
            arguments += "".join(call.function.arguments or "" for call in choice.delta.tool_calls or [])
            finish = choice.finish_reason or finish
        # Without a finish reason nothing may be run; the stream has raised by then.
        assert finish is not None, "a broken turn looked whole"
        if finish == "tool_calls":
            return json.loads(arguments)["n"]
        assert text == "the sum is known", text
        return None

    return run_agent(turn, openai.APIError)


if PROVIDER == "openai":
    responses_checks.add_to(client, fails)

main(openai)
