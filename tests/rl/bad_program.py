#!/usr/bin/env python3
"""A task program that misbehaves in the way its first argument says; the second may name a file that counts its starts."""
import json
import os
import subprocess
import sys
import time

MODE = sys.argv[1]
if len(sys.argv) > 2:
    with open(sys.argv[2], "a") as starts:
        starts.write(f"{os.getpid()}\n")


def say(request, **fields):
    print(json.dumps({"id": request["id"], **fields}), flush=True)


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def with_tools(index):
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    messages = [{"role": "user", "content": "where am I?"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "a wall", "name": "look", "tool_call_id": "c1", "weight": 3}]
    own = {1: {"tools": [tool("jump")]}, 2: {"tools": []}, 3: {"tools": "jump"}}
    return {"messages": messages, **own.get(index, {})}


def misbehave(request):
    if MODE == "tools":
        say(request, reward=0, done=False, messages=[{"role": "user", "content": " ".join(sorted(request["reply"]))}])
    elif MODE == "hang":
        time.sleep(1000)
    elif MODE == "hang_with_child":
        child = subprocess.Popen(["sleep", "1000"])
        print(f"child {child.pid}", file=sys.stderr, flush=True)
        time.sleep(1000)
    elif MODE == "exit":
        print("about to leave", file=sys.stderr, flush=True)
        sys.exit(3)
    elif MODE == "throw":
        raise ValueError("no such puzzle")
    elif MODE == "nan":
        say(request, reward=float("nan"), done=True)
    elif MODE == "infinite":
        say(request, reward=float("-inf"), done=True)
    elif MODE == "overflow":
        print('{"id": %d, "reward": 1e999, "done": true}' % request["id"], flush=True)
    elif MODE == "range":
        say(request, reward=7, done=True)
    elif MODE == "text":
        say(request, reward="1", done=True)
    elif MODE == "print":
        print("debug: here", flush=True)
    elif MODE == "wrong_id":
        print(json.dumps({"id": 0, "reward": 1, "done": True}), flush=True)
    elif MODE == "no_done":
        say(request, reward=1)
    elif MODE == "silent":
        say(request, reward=0, done=False)
    elif MODE == "reports":
        say(request, error="the puzzle is broken")
    elif MODE == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    elif MODE == "stderr_flood":
        for _ in range(200):
            sys.stderr.write("noise " * 10000)
        sys.stderr.write("END")
        sys.stderr.flush()
        say(request, reward=1, done=True)
    elif MODE == "deep":
        print("[" * 300000, flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "hello":
        if MODE == "bad_hello":
            say(asked, train="many")
        elif MODE == "tools":
            say(asked, tools=[tool("look")])
        elif MODE == "bad_tools":
            say(asked, tools=[{"name": "look"}])
        elif MODE == "die_at_hello":
            sys.exit("no data here")
        else:
            say(asked)
    elif asked["op"] == "reset":
        if MODE == "no_messages":
            say(asked)
        elif MODE == "die_at_reset":
            sys.exit(4)
        elif MODE == "tools":
            say(asked, **with_tools(asked["index"]))
        else:
            say(asked, messages=[{"role": "user", "content": f"problem {asked['index']} closed {asked['closed']}"}])
    elif MODE == "fail_once" and asked["reply"]["content"] != "crash":
        say(asked, reward=1, done=True)
    elif MODE == "fail_once":
        os._exit(9)
    else:
        misbehave(asked)
