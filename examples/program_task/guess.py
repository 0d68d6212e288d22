#!/usr/bin/env python3
"""A task in a program of its own: guess a number from 1 to 31 in at most five tries, told "higher" or "lower" after each.

Speaks docs/formats/program_environment.md. No dependencies. A right guess earns 1, minus 0.1 for every try before it.
"""
import hashlib
import json
import re
import sys

HIGHEST, TRIES, EVAL_PROBLEMS = 31, 5, 400


def secret_of(seed, split, index):
    """A pure function of the problem's name."""
    digest = hashlib.sha256(f"{seed}/{split}/{index}".encode()).digest()
    return 1 + digest[0] % HIGHEST


def reset(request, episodes):
    for old in request.get("closed", []):
        episodes.pop(old, None)
    secret = secret_of(request["seed"], request["split"], request["index"])
    episodes[request["episode"]] = [secret, 0]
    text = f"Guess my number from 1 to {HIGHEST}. You have {TRIES} tries. Reply with a number."
    return {"messages": [{"role": "user", "content": text}]}


def step(request, episodes):
    secret, tries = episodes[request["episode"]]
    numbers = re.findall(r"\d+", request["reply"]["content"])
    guess = int(numbers[-1][:9]) if numbers else None
    tries += 1
    if guess == secret or tries == TRIES:
        del episodes[request["episode"]]
        reward = 1 - 0.1 * (tries - 1) if guess == secret else 0.0
        return {"reward": reward, "done": True, "answered": guess is not None}
    episodes[request["episode"]] = [secret, tries]
    hint = "That is no number." if guess is None else "Higher." if guess < secret else "Lower."
    return {"reward": 0.0, "done": False, "answered": guess is not None, "messages": [{"role": "user", "content": hint}]}


def main():
    episodes = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "hello":
            answer = {"train": None, "eval": EVAL_PROBLEMS}
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
