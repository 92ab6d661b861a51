"""Small models with random weights, as folders that vLLM loads: `python random_models.py FOLDER`, and `llama` and `gemma` are in it.

The weights are large, so that each token of a prompt decides what follows: with those of vLLM's load_format=dummy all tokens are as likely,
and wrong state would not be seen. The layers of `gemma` have windows and full attention in turns: two groups of blocks.
"""

import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

SIZES = dict(
    vocab_size=1000,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    dtype="float32",
)


def main() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    gemma = Gemma3TextConfig(**SIZES, sliding_window=96, layer_types=kinds, query_pre_attn_scalar=32)
    for name, config in (("llama", LlamaConfig(**SIZES)), ("gemma", gemma)):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).to(torch.float32)
        with torch.no_grad():
            for part, weight in model.named_parameters():
                # Norms are about 1 (as llama has them) or 0 (as gemma has them) beforehand, and stay near it.
                weight.add_(torch.randn_like(weight), alpha=0.1 if "norm" in part else 0.15)
        model.save_pretrained(pathlib.Path(sys.argv[1]) / name)


if __name__ == "__main__":
    main()
