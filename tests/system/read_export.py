"""Reads an exported model with the libraries its users have: PyPI `safetensors` and `tokenizers`. Usage: read_export.py FOLDER"""
import json
import sys

from safetensors.numpy import load_file
from tokenizers import Tokenizer

folder = sys.argv[1]
config = json.load(open(folder + "/config.json"))
weights = load_file(folder + "/model.safetensors")
assert weights["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"]), "embedding"
for layer in range(config["num_hidden_layers"]):
    q = weights[f"model.layers.{layer}.self_attn.q_proj.weight"]
    assert q.shape == (config["num_attention_heads"] * config["head_dim"], config["hidden_size"]), q.shape
    assert abs(q).max() > 0
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
ids = tokenizer.encode("12+34=").ids
assert len(ids) == 6 and tokenizer.decode(ids) == "12+34=", (ids, tokenizer.decode(ids))
print("ok", len(weights))
