"""What an application sees through OpenAI's official Python SDK. Prints one line per check; ends with 1 when one failed."""

import asyncio
import json
import os

import openai

from support import cancelled, check, main, model, prompt, provider_calls, raises


def messages(script=None, mark=""):
    return [{"role": "user", "content": prompt(script, mark)}]


def client(**options):
    return openai.OpenAI(**{"max_retries": 0, **options})


def fails(kind, function):
    return raises(kind, openai.OpenAIError, function)


@check
def plain():
    answer = client().chat.completions.create(
        model=model("fast"), messages=messages({"text": "the answer", "usage": {"prompt": 12, "completion": 5}})
    )
    assert answer.choices[0].message.content == "the answer", answer
    assert answer.choices[0].finish_reason == "stop", answer
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 5), answer.usage
    assert answer.model == model("fast"), answer.model


@check
def streamed():
    script = {"text": "one two three four", "chunks": 4, "usage": {"prompt": 12, "completion": 5}}
    stream = client().chat.completions.create(model=model("fast"), stream=True, messages=messages(script))
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three four", chunks
    assert chunks[-1].choices[0].finish_reason == "stop", chunks[-1]
    assert all(chunk.usage is None and chunk.model == model("fast") for chunk in chunks), chunks


@check
def streamed_with_usage():
    script = {"text": "one two", "chunks": 2, "usage": {"prompt": 12, "completion": 5}}
    stream = client().chat.completions.create(
        model=model("fast"), stream=True, stream_options={"include_usage": True}, messages=messages(script)
    )
    last = list(stream)[-1]
    assert last.choices == [] and (last.usage.prompt_tokens, last.usage.completion_tokens) == (12, 5), last


TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
CALL = {"tool_calls": [{"name": "weather", "arguments": '{"city":"Köln","days":3}', "fragments": 6}], "chunks": 0}


@check
def tools():
    answer = client().chat.completions.create(model=model("fast"), tools=TOOLS, messages=messages(CALL))
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls", answer
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] == "Köln", call


@check
def tools_streamed():
    stream = client().chat.completions.create(model=model("fast"), stream=True, tools=TOOLS, messages=messages(CALL))
    name, arguments, pieces = "", "", 0
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            pieces += 1
    assert name == "weather" and json.loads(arguments) == {"city": "Köln", "days": 3}, (name, arguments)
    assert pieces > 3, f"{pieces} pieces: the arguments were not streamed"


@check
def models():
    listed = [model.id for model in client().models.list()]
    assert model("fast") in listed and model("closed") not in listed, listed


@check
def unknown_key_401():
    error = fails(
        openai.AuthenticationError,
        lambda: client(api_key="weir_live_nobody").chat.completions.create(model=model("fast"), messages=messages()),
    )
    assert (error.status_code, error.code) == (401, "invalid_api_key"), error


@check
def denied_model_403():
    error = fails(
        openai.PermissionDeniedError, lambda: client().chat.completions.create(model=model("closed"), messages=messages())
    )
    assert (error.status_code, error.code, error.param) == (403, "model_not_allowed", "model"), error


@check
def unknown_model_404():
    error = fails(openai.NotFoundError, lambda: client().chat.completions.create(model=model("none"), messages=messages()))
    assert (error.status_code, error.code) == (404, "model_not_found"), error


@check
def bad_request_400():
    error = fails(
        openai.BadRequestError,
        lambda: client().chat.completions.create(model=model("fast"), max_completion_tokens=0, messages=messages()),
    )
    assert error.status_code == 400 and error.param == "max_completion_tokens", error


@check
def own_limit_429():
    limited = client(api_key=os.environ["WEIR_LIMITED_KEY"])
    error = fails(
        openai.RateLimitError, lambda: limited.chat.completions.create(model=model("fast"), messages=messages(mark="limited"))
    )
    assert (error.status_code, error.code) == (429, "request_quota_exceeded"), error
    assert int(error.response.headers["retry-after"]) > 0, error.response.headers
    assert not provider_calls("limited"), "a refusal reached the provider"


@check
def provider_limit_429():
    script = {"status": 429, "headers": {"retry-after": "1"}}
    error = fails(
        openai.RateLimitError, lambda: client().chat.completions.create(model=model("throttled"), messages=messages(script))
    )
    assert error.status_code == 429 and error.code != "request_quota_exceeded", error
    assert error.response.headers["retry-after"] == "1", error.response.headers


@check
def broken_stream():
    script = {"chunks": 6, "fault": {"kind": "reset", "after_chunks": 2}}
    stream = client().chat.completions.create(model=model("broken"), stream=True, messages=messages(script))
    seen = []

    def read():
        for chunk in stream:
            seen.append(chunk.choices[0].delta.content or "")

    error = fails(openai.APIError, read)
    assert len([text for text in seen if text]) == 2, seen
    body = error.body
    assert body["incomplete"] is True and body["chunks_delivered"] == 2 and body["reason"], body


@check
def raw_response_headers():
    raw = client().chat.completions.with_raw_response.create(model=model("fast"), messages=messages())
    assert raw.headers["x-request-id"] and raw.headers["x-weir-reservation"], raw.headers
    assert raw.headers["x-weir-attempts"] == "1", raw.headers
    assert raw.parse().choices[0].message.content, raw.text
    assert raw.parse()._request_id == raw.headers["x-request-id"]


@check
def retries_once_where_it_may_not():
    # The provider may have executed it, so the gateway says `x-should-retry: false`, and the SDK obeys.
    script = {"status": 504, "body": {"error": {"message": "late"}}}
    error = fails(
        openai.InternalServerError,
        lambda: client(max_retries=2).chat.completions.create(model=model("late"), messages=messages(script, "only-once")),
    )
    assert error.response.headers["x-should-retry"] == "false", error.response.headers
    assert len(provider_calls("only-once")) == 1, provider_calls("only-once")


@check
def retries_are_not_multiplied():
    # The provider was overloaded and executed nothing. The SDK may ask again: once per try, not once per try and attempt.
    script = {"status": 503}
    error = fails(
        openai.InternalServerError,
        lambda: client(max_retries=2).chat.completions.create(model=model("busy"), messages=messages(script, "three-times")),
    )
    assert error.status_code == 503, error
    assert len(provider_calls("three-times")) == 3, len(provider_calls("three-times"))


@check
def aborted_stream():
    script = {"chunks": 500, "gap_ms": 20}
    raw = client().chat.completions.with_raw_response.create(
        model=model("fast"), stream=True, messages=messages(script, "aborted")
    )
    stream = raw.parse()
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    cancelled("aborted")
    return raw.headers["x-weir-reservation"]


@check
def fifty_at_once():
    async def one(sdk, number):
        script = {"text": f"answer {number}", "chunks": 3, "gap_ms": 5, "usage": {"prompt": 7, "completion": 3}}
        if number % 2:
            answer = await sdk.chat.completions.create(model=model("fast"), messages=messages(script))
            return answer.choices[0].message.content
        stream = await sdk.chat.completions.create(model=model("fast"), stream=True, messages=messages(script))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(max_retries=0) as sdk:
            return await asyncio.gather(*[one(sdk, number) for number in range(50)])

    answers = asyncio.run(all_of_them())
    assert answers == [f"answer {number}" for number in range(50)], answers


main(openai)
