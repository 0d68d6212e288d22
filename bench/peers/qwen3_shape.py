"""The decoder that `troupe bench generate` and `train` measure, as transformers builds it: random weights."""
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def add_arguments(parser):
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)


def build(arguments):
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=arguments.vocab, hidden_size=arguments.hidden, intermediate_size=3 * arguments.hidden,
        num_hidden_layers=arguments.layers, num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=max(1, arguments.hidden // 128), head_dim=64, tie_word_embeddings=True,
        attn_implementation="sdpa")
    return Qwen3ForCausalLM(config).to(getattr(torch, arguments.dtype))


def median(values):
    values = sorted(values)
    return values[len(values) // 2]
