"""Usage: openai_client.py PORT KEY. Asks a server of the model of tests/serve/folder.h through PyPI `openai`."""
import concurrent.futures
import sys

import openai

port, key = sys.argv[1:]
base = f"http://127.0.0.1:{port}/v1"
client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)
question = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
greedy = dict(model="letters", messages=question, max_tokens=24, temperature=0)

assert [m.id for m in client.models.list()] == ["letters"]
assert client.models.retrieve("letters").id == "letters"

whole = client.chat.completions.create(**greedy, logprobs=True, top_logprobs=3)
choice = whole.choices[0]
assert choice.message.role == "assistant" and choice.message.content
assert choice.finish_reason in ("stop", "length")
assert whole.usage.completion_tokens == len(choice.logprobs.content) <= 24
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert all(len(t.top_logprobs) == 3 and t.top_logprobs[0].token == t.token for t in choice.logprobs.content)

text, usage, ends = "", None, []
with client.chat.completions.create(**greedy, stream=True, stream_options={"include_usage": True}) as stream:
    for chunk in stream:
        usage = chunk.usage or usage
        for c in chunk.choices:
            text += c.delta.content or ""
            ends.append(c.finish_reason)
assert text == choice.message.content, (text, choice.message.content)
assert usage.completion_tokens == whole.usage.completion_tokens
assert ends[-1] == choice.finish_reason and not any(ends[:-1])

sampled = dict(model="letters", messages=question, max_completion_tokens=16, seed=7, n=3, top_p=0.9)
first = client.chat.completions.create(**sampled)
assert len({c.message.content for c in first.choices}) > 1
with concurrent.futures.ThreadPoolExecutor(6) as pool:
    others = [f.result() for f in [pool.submit(client.chat.completions.create, **sampled) for _ in range(6)]]
assert all([c.message.content for c in o.choices] == [c.message.content for c in first.choices] for o in others)

old = client.completions.create(model="letters", prompt=["abc", "xyz"], max_tokens=8, temperature=0, logprobs=2)
assert len(old.choices) == 2 and all(len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) for c in old.choices)
streamed = "".join(c.choices[0].text for c in client.completions.create(model="letters", prompt="abc", max_tokens=8, temperature=0, stream=True))
assert streamed == old.choices[0].text
stop = old.choices[0].text[2:4]
if stop:
    assert client.completions.create(model="letters", prompt="abc", max_tokens=8, temperature=0, stop=stop).choices[0].text == old.choices[0].text.split(stop)[0]

tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
history = question + [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
                      {"role": "tool", "tool_call_id": "c", "content": "noon"}]
assert client.chat.completions.create(model="letters", messages=history, tools=tools, tool_choice="auto", max_tokens=4).choices


def refused(kind, **arguments):
    try:
        client.chat.completions.create(**{**greedy, **arguments})
    except kind as error:
        assert error.body and error.body["message"], error
        return
    raise AssertionError(f"{arguments} was not refused")


refused(openai.NotFoundError, model="other")
refused(openai.BadRequestError, temperature=9)
refused(openai.BadRequestError, messages=[])
refused(openai.BadRequestError, tools=tools, tool_choice="required")
refused(openai.BadRequestError, messages=[{"role": "user", "content": "x" * 4000}])
try:
    openai.OpenAI(base_url=base, api_key="sk-wrong", max_retries=0).models.list()
    raise AssertionError("a wrong key was taken")
except openai.AuthenticationError:
    pass
print("all checks passed")
