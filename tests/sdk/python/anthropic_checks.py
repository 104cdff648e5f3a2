"""What an application sees through Anthropic's official Python SDK. Prints one line per check; ends with 1 when one failed."""

import asyncio
import os

import anthropic

from support import ADD, PROVIDER, cancelled, check, main, model, prompt, provider_calls, raises, run_agent

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": "weather", "description": "the weather", "input_schema": WEATHER}]
TWO_CALLS = {
    "tool_calls": [
        {"name": "weather", "arguments": '{"city":"Köln","days":3}', "id": "call_a", "fragments": 5},
        {"name": "weather", "arguments": '{"city":"Bonn"}', "id": "call_b", "fragments": 4},
    ]
}


def client(**options):
    return anthropic.Anthropic(**{"max_retries": 0, **options})


def ask(script=None, mark="", of="fast", sdk=None, **more):
    messages = [{"role": "user", "content": prompt(script, mark)}]
    return (sdk or client()).messages.create(**{"model": model(of), "max_tokens": 200, "messages": messages, **more})


def fails(kind, function):
    return raises(kind, anthropic.AnthropicError, function)


def kind_of(error):
    return error.body["error"]["type"]


@check
def plain():
    answer = ask({"text": "the answer", "usage": {"prompt": 12, "completion": 5, "cached": 4}})
    assert [block.text for block in answer.content] == ["the answer"], answer
    assert (answer.stop_reason, answer.model, answer.role) == ("end_turn", model("fast"), "assistant"), answer
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 4, 5), usage


@check
def streamed():
    script = {"text": "one two three four", "chunks": 4, "usage": {"prompt": 12, "completion": 5}}
    messages = [{"role": "user", "content": prompt(script)}]
    with client().messages.stream(model=model("fast"), max_tokens=200, messages=messages) as stream:
        pieces = list(stream.text_stream)
        answer = stream.get_final_message()
    assert "".join(pieces) == "one two three four" and len(pieces) == 4, pieces
    assert (answer.stop_reason, answer.model) == ("end_turn", model("fast")), answer
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (12, 5), answer.usage


@check
def raw_events():
    kinds = [event.type for event in ask({"chunks": 2}, stream=True) if event.type != "ping"]
    block = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block, "message_delta", "message_stop"], kinds


@check
def tools_in_parallel():
    answer = ask(TWO_CALLS, tools=TOOLS)
    calls = [(block.id, block.input) for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use", answer
    assert calls == [("call_a", {"city": "Köln", "days": 3}), ("call_b", {"city": "Bonn"})], calls


@check
def tool_arguments_streamed():
    messages = [{"role": "user", "content": prompt(TWO_CALLS)}]
    pieces = 0
    with client().messages.stream(model=model("fast"), max_tokens=200, messages=messages, tools=TOOLS) as stream:
        for event in stream:
            pieces += event.type == "content_block_delta" and event.delta.type == "input_json_delta"
        answer = stream.get_final_message()
    calls = [(block.id, block.input) for block in answer.content if block.type == "tool_use"]
    assert calls == [("call_a", {"city": "Köln", "days": 3}), ("call_b", {"city": "Bonn"})], calls
    assert pieces >= 7, f"{pieces} pieces: the arguments were not streamed"


@check
def tool_results_in_one_turn():
    calls = ask(TWO_CALLS, tools=TOOLS).content
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
    text = {"type": "text", "text": prompt({"text": "both sunny"})}
    messages = [
        {"role": "user", "content": "the weather?"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": [*results, text]},
    ]
    answer = client().messages.create(model=model("fast"), max_tokens=200, messages=messages, tools=TOOLS)
    assert answer.content[0].text == "both sunny", answer


@check
def system_and_images():
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "image", "source": source}, {"type": "text", "text": prompt({"text": "a dot"}, "picture")}]
    messages = [{"role": "user", "content": content}]
    answer = client().messages.create(
        model=model("seeing"), max_tokens=200, system="Be brief.", messages=messages
    )
    assert answer.content[0].text == "a dot", answer
    (call,) = provider_calls("picture")
    assert PIXEL in call["body"] and "Be brief." in call["body"], call["body"]


@check
def thinking_comes_back_as_it_was_signed():
    if PROVIDER != "anthropic":
        return
    thinking = {"type": "enabled", "budget_tokens": 1024}
    script = {"thinking": "let me see", "usage": {"prompt": 20, "completion": 30, "reasoning": 9}, **TWO_CALLS}
    messages = [{"role": "user", "content": prompt(script)}]
    options = {"model": model("thinking"), "max_tokens": 2000, "thinking": thinking, "tools": TOOLS}
    with client().messages.stream(messages=messages, **options) as stream:
        first = stream.get_final_message()
    assert first.content[0].type == "thinking" and first.content[0].thinking == "let me see", first
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    # The provider refuses a signature that does not fit its text.
    answer = client().messages.create(messages=messages, **options)
    assert answer.content[0].type == "thinking", answer


@check
def unknown_key_401():
    error = fails(anthropic.AuthenticationError, lambda: ask(sdk=client(api_key="weir_live_nobody")))
    assert (error.status_code, kind_of(error)) == (401, "authentication_error"), error
    assert error.request_id, error


@check
def denied_model_403():
    error = fails(anthropic.PermissionDeniedError, lambda: ask(of="closed"))
    assert (error.status_code, kind_of(error)) == (403, "permission_error"), error


@check
def unknown_model_404():
    error = fails(anthropic.NotFoundError, lambda: ask(of="none"))
    assert (error.status_code, kind_of(error)) == (404, "not_found_error"), error


@check
def bad_request_400():
    error = fails(anthropic.BadRequestError, lambda: ask(messages=[{"role": "nobody", "content": "x"}]))
    assert kind_of(error) == "invalid_request_error", error


@check
def own_limit_429():
    limited = client(api_key=os.environ["WEIR_LIMITED_KEY"])
    error = fails(anthropic.RateLimitError, lambda: ask(mark="limited-messages", sdk=limited))
    assert kind_of(error) == "rate_limit_error", error
    assert int(error.response.headers["retry-after"]) > 0, error.response.headers
    assert not provider_calls("limited-messages"), "a refusal reached the provider"


@check
def provider_limit_429():
    script = {"status": 429, "headers": {"retry-after": "1"}}
    error = fails(anthropic.RateLimitError, lambda: ask(script, of="throttled"))
    assert error.response.headers["retry-after"] == "1", error.response.headers


@check
def overloaded():
    error = fails(anthropic.OverloadedError, lambda: ask({"status": 529 if PROVIDER == "anthropic" else 503}, of="early"))
    assert error.status_code in (503, 529), error


@check
def error_before_content():
    # The provider's 200 was out, but nothing of its answer: the application gets a status.
    script = {"chunks": 3, "fault": {"kind": "error"}, "billing": "none"}
    try:
        list(ask(script, of="early-error", stream=True))
    except anthropic.APIStatusError as error:
        assert error.status_code >= 500, error
    else:
        raise AssertionError("a failed answer looked whole")


@check
def broken_stream():
    script = {"chunks": 6, "fault": {"kind": "reset", "after_chunks": 2}}
    seen = []

    def read():
        for event in ask(script, of="broken", stream=True):
            if event.type == "content_block_delta":
                seen.append(event.delta.text)

    try:
        read()
    except anthropic.APIStatusError as error:
        body = error.body["error"]
        assert body["incomplete"] is True and body["chunks_delivered"] == 2 and body["reason"], body
    else:
        raise AssertionError("a broken stream looked whole")
    assert len(seen) == 2, seen


@check
def retries_once_where_it_may_not():
    script = {"status": 504}
    try:
        ask(script, "only-once-messages", of="late", sdk=client(max_retries=2))
    except anthropic.APIStatusError as error:
        assert error.response.headers["x-should-retry"] == "false", error.response.headers
    assert len(provider_calls("only-once-messages")) == 1, provider_calls("only-once-messages")


@check
def aborted_stream():
    raw = client().messages.with_raw_response.create(
        model=model("fast"),
        max_tokens=1000,
        stream=True,
        messages=[{"role": "user", "content": prompt({"chunks": 500, "gap_ms": 20}, "aborted-messages")}],
    )
    stream = raw.parse()
    for number, _ in enumerate(stream):
        if number == 5:
            break
    stream.close()
    cancelled("aborted-messages")
    return raw.headers["x-weir-reservation"]


@check
def twenty_at_once():
    async def one(sdk, number):
        script = {"text": f"answer {number}", "chunks": 3, "gap_ms": 5, "usage": {"prompt": 7, "completion": 3}}
        options = {
            "model": model("fast"),
            "max_tokens": 100,
            "messages": [{"role": "user", "content": prompt(script)}],
        }
        if number % 2:
            return (await sdk.messages.create(**options)).content[0].text
        async with sdk.messages.stream(**options) as stream:
            return await stream.get_final_text()

    async def all_of_them():
        async with anthropic.AsyncAnthropic(max_retries=0) as sdk:
            return await asyncio.gather(*[one(sdk, number) for number in range(20)])

    answers = asyncio.run(all_of_them())
    assert answers == [f"answer {number}" for number in range(20)], answers


@check
def agent_of_twenty_turns():
    sdk = client(max_retries=2)
    tool = {"name": "add", "input_schema": ADD}

    def turn(ran):
        messages = [{"role": "user", "content": "add them all"}]
        for number in ran:
            call = {"type": "tool_use", "id": f"call_{number}", "name": "add", "input": {"n": number}}
            result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": str(number)}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        with sdk.messages.stream(model=model("agent"), max_tokens=500, messages=messages, tools=[tool]) as stream:
            answer = stream.get_final_message()
        if answer.stop_reason == "tool_use":
            return answer.content[0].input["n"]
        assert answer.content[0].text == "the sum is known", answer
        return None

    return run_agent(turn, anthropic.APIError)


main(anthropic)
