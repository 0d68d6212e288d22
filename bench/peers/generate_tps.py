"""Generation by transformers.generate with its KV cache; prints one JSON object: tok/s of new and of prompt tokens over the whole call."""
import argparse
import json
import time

import torch

import qwen3_shape

parser = argparse.ArgumentParser(description=__doc__)
qwen3_shape.add_arguments(parser)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--prompt", type=int, default=64)
parser.add_argument("--new", type=int, default=128)
parser.add_argument("--repeats", type=int, default=3)
a = parser.parse_args()
model = qwen3_shape.build(a).eval()
prompts = torch.randint(0, a.vocab, (a.batch, a.prompt))
took = []
with torch.inference_mode():
    for _ in range(a.repeats + 1):  # the first warms up
        start = time.perf_counter()
        model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=a.new, min_new_tokens=a.new, do_sample=True,
                       top_k=0, pad_token_id=0, eos_token_id=None)
        took.append(time.perf_counter() - start)
seconds = qwen3_shape.median(took[1:])
print(json.dumps(dict(peer="transformers.generate", dtype=a.dtype, batch=a.batch, prompt=a.prompt, new=a.new,
                      new_tok_s=a.batch * a.new / seconds, prompt_tok_s=a.batch * a.prompt / seconds)))
