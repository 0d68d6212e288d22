#!/usr/bin/env python3
"""A task with a tool: products too long to do in one's head, and a calculator to call.

Speaks docs/formats/program_environment.md. No dependencies. The right answer earns 1; how often the tool was called on the way does not matter.
"""
import hashlib
import json
import re
import sys

EVAL_PROBLEMS = 200
NUMBER = {"type": "integer"}
TOOLS = [{"type": "function", "function": {
    "name": "multiply", "description": "The exact product of two whole numbers.",
    "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}}}]


def factors(seed, split, index):
    """A pure function of the problem's name."""
    digest = hashlib.sha256(f"{seed}/{split}/{index}".encode()).digest()
    return [1000 + int.from_bytes(digest[i:i + 2], "big") % 9000 for i in (0, 2)]


def reset(request, episodes):
    for old in request.get("closed", []):
        episodes.pop(old, None)
    a, b = episodes[request["episode"]] = factors(request["seed"], request["split"], request["index"])
    return {"messages": [{"role": "user", "content": f"What is {a} times {b}?"}]}


def answer_to(call):
    """What the tool says to one call of the model."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name != "multiply":
        return {"role": "tool", "name": name, "content": f"error: there is no tool {name}"}
    numbers = [arguments.get("a"), arguments.get("b")]
    if not all(type(n) is int and abs(n) < 10**9 for n in numbers):
        return {"role": "tool", "name": name, "content": "error: a and b must be whole numbers"}
    return {"role": "tool", "name": name, "content": str(numbers[0] * numbers[1])}


def step(request, episodes):
    reply = request["reply"]
    if reply.get("tool_calls"):
        return {"reward": 0.0, "done": False, "answered": False, "messages": [answer_to(call) for call in reply["tool_calls"]]}
    a, b = episodes.pop(request["episode"])
    numbers = re.findall(r"\d+", reply.get("answer", reply["content"]).replace(",", ""))
    return {"reward": float(bool(numbers) and numbers[-1] == str(a * b)), "done": True, "answered": bool(numbers)}


def main():
    episodes = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "hello":
            answer = {"train": None, "eval": EVAL_PROBLEMS, "tools": TOOLS}
        elif request["op"] == "reset":
            answer = reset(request, episodes)
        elif request["op"] == "step":
            answer = step(request, episodes)
        else:
            answer = {"error": f"unknown op {request['op']}"}
        answer["id"] = request["id"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
