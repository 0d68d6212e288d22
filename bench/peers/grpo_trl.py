"""TRL's GRPOTrainer on two-digit sums, from the weights and tokenizer that a troupe run exported. Prints one JSON object:
trained completions/s, and the curve of greedy accuracy over training seconds (evaluations are left out of the clock)."""
import argparse
import json
import random
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True)
parser.add_argument("--groups", type=int, default=32)
parser.add_argument("--samples", type=int, default=8)
parser.add_argument("--max-new", type=int, default=4)
parser.add_argument("--lr", type=float, default=5e-5)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--until", type=float, default=0.0, help="stop at this accuracy")
parser.add_argument("--eval-every", type=int, default=0)
parser.add_argument("--problems", type=int, default=400)
parser.add_argument("--threads", type=int, default=2)
a = parser.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
random.seed(0)
tokenizer = PreTrainedTokenizerFast.from_pretrained(a.model, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)


def problem():
    x, y = random.randint(10, 99), random.randint(10, 99)
    return f"{x}+{y}=", str(x + y)


def right(text, answer):
    return text.replace(" ", "") == answer


held_out = [problem() for _ in range(a.problems)]


def accuracy():
    model.eval()
    ids = tokenizer([q for q, _ in held_out], return_tensors="pt", add_special_tokens=False).input_ids
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=a.max_new, do_sample=False)
    model.train()
    texts = tokenizer.batch_decode(out[:, ids.shape[1]:], skip_special_tokens=True)
    return sum(right(t, s) for t, (_, s) in zip(texts, held_out)) / len(held_out)


def reward(completions, answer, **_):
    return [float(right(c, s)) for c, s in zip(completions, answer)]


class Curve(TrainerCallback):
    """Accuracy every eval_every steps; seconds spent on it do not count."""

    def __init__(self):
        self.points, self.lost, self.step, self.start = [(0.0, accuracy())], 0.0, 0, None

    def on_train_begin(self, args, state, control, **_):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        self.step = state.global_step
        if not a.eval_every or self.step % a.eval_every:
            return
        began = time.perf_counter()
        self.points.append((began - self.start - self.lost, accuracy()))
        self.lost += time.perf_counter() - began
        if a.until > 0 and self.points[-1][1] >= a.until:
            control.should_training_stop = True


curve = Curve()
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=a.steps, per_device_train_batch_size=a.groups * a.samples, num_generations=a.samples,
    max_completion_length=a.max_new, learning_rate=a.lr, lr_scheduler_type="constant", beta=0.0, temperature=1.0, loss_type="grpo",
    logging_steps=10, report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True)
data = Dataset.from_list([dict(prompt=q, answer=s) for q, s in (problem() for _ in range(8000))])
trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[curve])
trainer.train()
seconds = time.perf_counter() - curve.start - curve.lost
print(json.dumps(dict(peer="TRL GRPOTrainer", parameters=sum(p.numel() for p in model.parameters()), steps=curve.step, seconds=seconds,
                      completions_per_s=curve.step * a.groups * a.samples / seconds, curve=curve.points)))
