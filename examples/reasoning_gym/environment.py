#!/usr/bin/env python3
"""reasoning-gym (PyPI) as a task: any of its generators, graded by its own scorers.

    pip install reasoning-gym
    environment.py DATASET [--size N] [--eval N] [--config JSON]

Speaks docs/formats/program_environment.md. Train index i is entry i of a dataset of --size entries made with the task's seed (round and round after that);
the eval split is another dataset with a seed of its own, minus questions that also stand in the training set.
"""
import argparse
import json
import sys

EVAL_SEED_OFFSET = 1_000_003
INSTRUCTION = "\n\nGive the final answer alone in <answer></answer>."


def load(name, seed, size, config):
    try:
        import reasoning_gym
    except ImportError:
        sys.exit("reasoning-gym is not installed for this Python: pip install reasoning-gym")
    return reasoning_gym.create_dataset(name, seed=seed % 2**31, size=size, **config)


def final_answer(text):
    """What stands in the last <answer> pair, or None."""
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    return text[start + len("<answer>"):end].strip() if start >= 0 and end >= 0 else None


class Problems:
    def __init__(self, options):
        self.options = options
        self.loaded = {}

    def of(self, seed):
        """(training dataset, evaluation dataset, indices of the evaluation entries that training never sees)."""
        if seed not in self.loaded:
            o = self.options
            train = load(o.dataset, seed, o.size, o.config)
            held_out = load(o.dataset, seed + EVAL_SEED_OFFSET, 4 * o.eval, o.config)
            seen = {train[i]["question"] for i in range(o.size)}
            kept = []
            for i in range(4 * o.eval):
                question = held_out[i]["question"]
                if question not in seen:
                    seen.add(question)
                    kept.append(i)
            if not kept:
                sys.exit(f"{o.dataset} has too few different problems for an eval split: lower --size")
            self.loaded[seed] = (train, held_out, kept)
        return self.loaded[seed]

    def entry(self, seed, split, index):
        train, held_out, kept = self.of(seed)
        if split == "train":
            return train, train[index % self.options.size]
        return held_out, held_out[kept[index % len(kept)]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--size", type=int, default=5000)
    parser.add_argument("--eval", type=int, default=400)
    parser.add_argument("--config", type=json.loads, default={})
    options = parser.parse_args()
    protocol, sys.stdout = sys.stdout, sys.stderr  # whatever a generator prints must not reach the protocol
    problems = Problems(options)
    problems.of(0)  # fail at the start, not in the first episode
    episodes = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "hello":
            answer = {"train": options.size, "eval": options.eval}
        elif request["op"] == "reset":
            for old in request.get("closed", []):
                episodes.pop(old, None)
            dataset, entry = problems.entry(request["seed"], request["split"], request["index"])
            episodes[request["episode"]] = (dataset, entry)
            answer = {"messages": [{"role": "user", "content": entry["question"] + INSTRUCTION}]}
        else:
            dataset, entry = episodes.pop(request["episode"])
            said = final_answer(request["reply"]["content"])
            score = float(dataset.score_answer(answer=said, entry=entry)) if said is not None else 0.0
            answer = {"reward": score, "done": True, "answered": said is not None}
        answer["id"] = request["id"]
        print(json.dumps(answer), file=protocol, flush=True)


if __name__ == "__main__":
    main()
