#!/usr/bin/env python3
"""Write a GGUF model with random weights: of the llama architecture, or of one
with a sliding window, a recurrent one or a hybrid.

It answers nonsense, but it is computed like any other: its KV state, its logits
and the time of its prefill are those of a real model of its shape. The same
arguments give the same file. Needs the packages gguf and numpy.
"""

import argparse

import gguf
import numpy as np

SEED = 7
RMS_EPSILON = 1e-5
ROPE_BASE = 10000.0
# Positions that a layer of gemma3 looks back, but each sixth, which has no window.
WINDOW = 128
CONVOLUTION, SSM_STATE = 4, 16

# A tokenizer of bytes: three control tokens, then one token for each byte.
TOKENS = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % byte for byte in range(256)]
UNKNOWN, BEGIN, END = 0, 1, 2
TOKEN_TYPES = (
    [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    + [gguf.TokenType.BYTE] * 256
)


def is_attention(args, layer):
    """Whether a layer has K and V; the others are recurrent."""
    return args.arch in ("llama", "gemma3") or args.arch == "jamba" and layer % 2 == 1


def write_header(writer, args):
    """The shape of the model, and its tokenizer."""
    writer.add_name("tiny-random")
    writer.add_context_length(args.context)
    writer.add_embedding_length(args.embd)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(args.ff)
    writer.add_head_count(args.heads)
    if args.arch == "jamba":
        writer.add_head_count_kv([args.kv_heads if is_attention(args, layer) else 0 for layer in range(args.layers)])
    else:
        writer.add_head_count_kv(args.kv_heads)
    if args.arch == "gemma3":
        writer.add_sliding_window(WINDOW)
        writer.add_key_length(args.embd // args.heads)
        writer.add_value_length(args.embd // args.heads)
    if args.arch in ("mamba", "jamba"):
        writer.add_ssm_conv_kernel(CONVOLUTION)
        writer.add_ssm_inner_size(2 * args.embd)
        writer.add_ssm_state_size(SSM_STATE)
        writer.add_ssm_time_step_rank(max(1, args.embd // 16))
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_rope_dimension_count(args.embd // args.heads)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(len(TOKENS))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types(TOKEN_TYPES)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(True)


def write_weights(writer, args):
    """The weights. Their order is the order in which the random numbers are
    drawn: changing it changes every model."""
    rng = np.random.default_rng(args.seed)
    head = args.embd // args.heads
    q_rows, kv_rows = args.heads * head, args.kv_heads * head

    def random(name, rows, columns, scale=None):
        # Without the scale a few layers would blow the numbers up.
        scale = scale or 1.0 / np.sqrt(columns)
        weights = rng.standard_normal((rows, columns), dtype=np.float32) * scale
        writer.add_tensor(name + ".weight", weights.astype(np.float32))

    def ones(name, size=None):
        writer.add_tensor(name + ".weight", np.ones(size or args.embd, dtype=np.float32))

    def attention(block):
        random(block + "attn_q", q_rows, args.embd)
        random(block + "attn_k", kv_rows, args.embd)
        random(block + "attn_v", kv_rows, args.embd)
        random(block + "attn_output", args.embd, q_rows)
        if args.arch == "gemma3":
            ones(block + "attn_q_norm", head)
            ones(block + "attn_k_norm", head)
            ones(block + "post_attention_norm")
            ones(block + "post_ffw_norm")

    def recurrent(block):
        inner, rank = 2 * args.embd, max(1, args.embd // 16)
        random(block + "ssm_in", 2 * inner, args.embd)
        random(block + "ssm_conv1d", inner, CONVOLUTION)
        writer.add_tensor(block + "ssm_conv1d.bias", np.zeros(inner, dtype=np.float32))
        random(block + "ssm_x", rank + 2 * SSM_STATE, inner)
        random(block + "ssm_dt", inner, rank)
        writer.add_tensor(block + "ssm_dt.bias", np.full(inner, -3.0, dtype=np.float32))
        writer.add_tensor(block + "ssm_a", -np.tile(np.arange(1, SSM_STATE + 1, dtype=np.float32), (inner, 1)))
        writer.add_tensor(block + "ssm_d", np.ones(inner, dtype=np.float32))
        random(block + "ssm_out", args.embd, inner)
        if args.arch == "jamba":
            ones(block + "ssm_dt_norm", rank)
            ones(block + "ssm_b_norm", SSM_STATE)
            ones(block + "ssm_c_norm", SSM_STATE)

    random("token_embd", len(TOKENS), args.embd, scale=1.0)
    ones("output_norm")
    random("output", len(TOKENS), args.embd)
    for layer in range(args.layers):
        block = f"blk.{layer}."
        ones(block + "attn_norm")
        if not is_attention(args, layer):
            recurrent(block)
        if args.arch == "mamba":
            continue
        ones(block + "ffn_norm")
        if is_attention(args, layer):
            attention(block)
        random(block + "ffn_gate", args.ff, args.embd)
        random(block + "ffn_up", args.ff, args.embd)
        random(block + "ffn_down", args.embd, args.ff)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="the GGUF file to write")
    parser.add_argument("layers", type=int, help="number of layers")
    parser.add_argument("embd", type=int, help="length of an embedding")
    parser.add_argument("heads", type=int, help="attention heads; divides embd")
    parser.add_argument("kv_heads", type=int, help="heads of K and V; divides heads")
    parser.add_argument("ff", type=int, help="width of the feed-forward layers")
    parser.add_argument("context", type=int, help="longest prompt, in tokens")
    parser.add_argument("--arch", choices=["llama", "gemma3", "mamba", "jamba"], default="llama")
    parser.add_argument("--seed", type=int, default=SEED, help="another one gives other weights")
    args = parser.parse_args()
    numbers = (args.layers, args.embd, args.heads, args.kv_heads, args.ff, args.context)
    if min(numbers) < 1 or args.embd % args.heads or args.heads % args.kv_heads:
        parser.error("sizes are at least 1, heads divides embd, kv_heads divides heads")
    return args


def main():
    args = parse_arguments()
    writer = gguf.GGUFWriter(args.out, args.arch)
    write_header(writer, args)
    write_weights(writer, args)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
