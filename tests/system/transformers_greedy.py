"""Loads exported folders with transformers and continues prompts greedily. Usage: transformers_greedy.py < JOBS > RESULTS

JOBS: JSON list of {"folder", "cases"}; a case is {"text"} or {"ids"}, with "tokens", how many to generate at most, and optionally "chat",
messages to render. RESULTS: for each job a list of {"prompt": ids, "output": ids, "chat": ids or null}."""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

torch.set_num_threads(1)
logging.disable_progress_bar()


def run(folder, cases):
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    problems = {kind: list(names) for kind, names in loading.items() if names}
    assert not problems, problems  # missing, unexpected or mismatched tensors are only warnings otherwise
    model = model.float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder) if any("text" in case for case in cases) else None
    results = []
    for case in cases:
        ids = case["ids"] if "ids" in case else tokenizer(case["text"], add_special_tokens=False)["input_ids"]
        prompt = torch.tensor([ids])
        with torch.no_grad():
            output = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=case["tokens"])
        chat = tokenizer.apply_chat_template(case["chat"], add_generation_prompt=True, return_dict=False) if "chat" in case else None
        results.append({"prompt": ids, "output": output[0, len(ids):].tolist(), "chat": chat})
    return results


json.dump([run(job["folder"], job["cases"]) for job in json.load(sys.stdin)], sys.stdout)
