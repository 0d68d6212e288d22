"""A training step by transformers, eager or compiled: forward, backward, clipping, fused AdamW. Prints one JSON object."""
import argparse
import json
import time

import torch

import qwen3_shape

parser = argparse.ArgumentParser(description=__doc__)
qwen3_shape.add_arguments(parser)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--seq", type=int, default=512)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=10)
a = parser.parse_args()
model = qwen3_shape.build(a)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
forward = torch.compile(model) if a.compile else model
ids = torch.randint(0, a.vocab, (a.batch, a.seq))
took = []
for _ in range(a.steps + 2):  # the first two compile and warm up
    start = time.perf_counter()
    loss = forward(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    took.append(time.perf_counter() - start)
print(json.dumps(dict(peer="transformers compiled" if a.compile else "transformers eager", dtype=a.dtype,
                      tok_s=a.batch * a.seq / qwen3_shape.median(took[2:]), first_step_s=took[0], loss=loss.item())))
