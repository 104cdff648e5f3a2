"""Responses and embeddings, through OpenAI's official Python SDK: only a provider of that API has them."""

import openai

from support import ADD, cancelled, check, model, prompt, provider_calls, run_agent


def add_to(client, fails):
    """Adds the checks, with the SDK's own `client` and what `fails` of it."""

    def ask(script=None, mark="", of="fast", **more):
        return client().responses.create(**{"model": model(of), "input": prompt(script, mark), **more})

    @check
    def response():
        answer = ask({"text": "the answer", "usage": {"prompt": 12, "completion": 5, "reasoning": 2}})
        assert (answer.output_text, answer.status, answer.model) == ("the answer", "completed", model("fast")), answer
        usage = answer.usage
        assert (usage.input_tokens, usage.output_tokens) == (12, 5), usage
        assert usage.output_tokens_details.reasoning_tokens == 2, usage

    @check
    def response_streamed():
        script = {
            "text": "one two three",
            "chunks": 3,
            "tool_calls": [{"name": "add", "arguments": '{"n":1}', "fragments": 4}],
            "thinking": "let me see",
        }
        tool = {"type": "function", "name": "add", "parameters": ADD, "strict": False}
        events = list(ask(script, stream=True, tools=[tool]))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert text == "one two three", text
        assert "".join(arguments) == '{"n":1}' and len(arguments) == 4, arguments
        last = events[-1]
        assert last.type == "response.completed" and last.response.model == model("fast"), last
        assert [item.type for item in last.response.output] == ["reasoning", "message", "function_call"], last

    @check
    def response_built_on_another():
        first = ask({"text": "first"})
        again = ask({"text": "second"}, mark="built-on", previous_response_id=first.id)
        assert again.output_text == "second" and again.previous_response_id == first.id, again
        (call,) = provider_calls("built-on")
        assert '"previous_response_id"' in call["body"], call["body"]

    @check
    def response_broken():
        script = {"chunks": 6, "fault": {"kind": "reset", "after_chunks": 2}}
        seen = []

        def read():
            for event in ask(script, of="broken-response", stream=True):
                if event.type == "response.output_text.delta":
                    seen.append(event.delta)

        try:
            read()
        except openai.APIError as error:
            assert error.body["incomplete"] is True and error.body["chunks_delivered"] == 2, error.body
        else:
            raise AssertionError("a broken response looked whole")
        assert len(seen) == 2, seen

    @check
    def response_aborted():
        stream = ask({"chunks": 500, "gap_ms": 20}, mark="aborted-response", stream=True)
        for number, _ in enumerate(stream):
            if number == 8:
                break
        stream.close()
        cancelled("aborted-response")

    @check
    def agent_by_responses():
        sdk = client(max_retries=2)
        tool = {"type": "function", "name": "add", "parameters": ADD, "strict": False}

        def turn(ran):
            items = [{"role": "user", "content": "add them all"}]
            for number in ran:
                call_id = f"call_{number}"
                arguments = f'{{"n": {number}}}'
                items.append({"type": "function_call", "call_id": call_id, "name": "add", "arguments": arguments})
                items.append({"type": "function_call_output", "call_id": call_id, "output": str(number)})
            stream = sdk.responses.create(model=model("agent"), input=items, tools=[tool], store=False, stream=True)
            whole = None
            for event in stream:
                whole = event.response if event.type == "response.completed" else whole
            assert whole is not None, "a broken turn looked whole"
            calls = [item for item in whole.output if item.type == "function_call"]
            return int(calls[0].call_id.removeprefix("call_")) if calls else None

        return run_agent(turn, openai.APIError)

    @check
    def embeddings():
        script = {"usage": {"prompt": 9}}
        answer = client().embeddings.create(model=model("embed"), input=[prompt(script), "b"], dimensions=4)
        assert [item.embedding for item in answer.data] == [[1, 0, 0, 0], [0, 1, 0, 0]], answer
        assert (answer.model, answer.usage.prompt_tokens) == (model("embed"), 9), answer

    @check
    def embeddings_refused():
        fails(openai.NotFoundError, lambda: client().embeddings.create(model=model("none"), input="a"))
