"""What an official Python SDK makes of a gateway that keeps a silent stream open (O04). Prints one line per check.

Between what the provider says there is silence of more than one keep-alive. The decoder must see none of them: no empty
event, no event more, no error. The same request without an SDK shows that they are on the wire.
"""

import json
import os
import urllib.request
from importlib.util import find_spec

from support import PROVIDER, check, main, model, prompt

SILENT = {"text": "one two", "chunks": 2, "before_content_ms": 900, "gap_ms": 900, "usage": {"prompt": 12, "completion": 5}}


def chunk(content, finish):
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


# A provider that numbers its events: a decoder that has seen an `id:` dispatches an event at each blank line.
NUMBERED = {
    "gap_ms": 900,
    "raw": "¦".join(
        f"id: {number}\ndata: {json.dumps(piece)}\n\n"
        for number, piece in enumerate([chunk("one ", None), chunk("two", None), chunk("", "stop")])
    )
    + "¦data: [DONE]\n\n",
}
SCRIPTS = [SILENT, NUMBERED] if PROVIDER == "openai" else [SILENT]


def on_the_wire(path, headers, body):
    """The lines of the same stream, to a client that keeps all of them."""
    data = json.dumps(body).encode()
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, data, {"content-type": "application/json", **headers})
    with urllib.request.urlopen(asked) as answer:
        return answer.read().decode().split("\n")


if find_spec("openai"):
    import openai as sdk

    @check
    def chat():
        for script in SCRIPTS:
            body = {"model": model("fast"), "stream": True, "messages": [{"role": "user", "content": prompt(script)}]}
            chunks = list(sdk.OpenAI(max_retries=0).chat.completions.create(**body))
            assert all(len(chunk.choices) == 1 for chunk in chunks), chunks
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two", chunks
            assert chunks[-1].choices[0].finish_reason == "stop", chunks
            lines = on_the_wire("/chat/completions", {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}, body)
            assert lines.count(": ping") > 4, lines
            assert not [line for line in lines if line.startswith("id:")], lines

else:
    import anthropic as sdk

    @check
    def messages():
        for script in SCRIPTS:
            asked = [{"role": "user", "content": prompt(script)}]
            body = {"model": model("fast"), "max_tokens": 200, "messages": asked}
            with sdk.Anthropic(max_retries=0).messages.stream(**body) as stream:
                text = "".join(stream.text_stream)
                answer = stream.get_final_message()
            assert (text, answer.stop_reason) == ("one two", "end_turn"), answer
            kinds = [event.type for event in sdk.Anthropic(max_retries=0).messages.create(stream=True, **body)]
            assert (kinds[0], kinds[-1]) == ("message_start", "message_stop") and "ping" not in kinds, kinds
            key = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
            lines = on_the_wire("/messages", key, {"stream": True, **body})
            assert lines.count("event: ping") > 4, lines
            assert not [line for line in lines if line.startswith("id:")], lines


main(sdk)
