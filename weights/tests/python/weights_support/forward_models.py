"""Small models for examples/cpp/forward.cpp: each weight is stored in some way, and decoded here.

No two sizes are equal, and the heads are not hidden / heads long. A `store` function takes a matrix
and returns the tensors that take the place of its `.weight`, and the values that these stand for.
"""

import json
import warnings

import numpy as np

from safetensors.numpy import save_file

HIDDEN, FFN, VOCABULARY = 96, 160, 83
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 32
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "vocab_size": VOCABULARY,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def random_model(kind, tied, layers=1):
    """Returns a model of transformers whose norms and biases also have random values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            **SIZES, num_hidden_layers=layers, tie_word_embeddings=tied
        )
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    torch.manual_seed(20261123)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=float("norm" in name), std=0.1)
    return model


def values_of(model):
    """Returns the model's tensors as arrays, without the output tensor if it is the embedding."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def logits_of(model, values, tokens):
    """Returns the logits of transformers with these values in the model."""
    import torch

    state = {name: torch.from_numpy(array.copy()) for name, array in values.items()}
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}  # tied
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(torch.tensor([tokens])).logits[0].numpy()


def save_hf(folder, model, store, only=lambda name: True, **config):
    """Saves a model, the matrices that `only` selects by `store`. Returns its values."""
    tensors, values = {}, {}
    for name, array in values_of(model).items():
        if array.ndim == 2 and only(name):
            parts, values[name] = store(array)
            module = name.removesuffix(".weight")
            tensors |= {module + suffix: part for suffix, part in parts.items()}
        else:
            tensors[name] = values[name] = array
    folder.mkdir()
    text = json.dumps(model.config.to_dict() | config, default=str)
    (folder / "config.json").write_text(text)
    save_file(
        {name: np.ascontiguousarray(part) for name, part in tensors.items()},
        folder / "model.safetensors",
    )
    return values


def plain(dtype):
    """Stores a matrix in a float type of NumPy or ml_dtypes."""

    def store(array):
        stored = array.astype(dtype)
        return {".weight": stored}, stored.astype(np.float32)

    return store


def packed_rows(codes, bits):
    """Packs the integers of each row into words of 32 bits, lowest bits first."""
    rows = codes.shape[0]
    stream = (codes[..., None] >> np.arange(bits)) & 1
    return np.packbits(stream.reshape(rows, -1).astype(np.uint8), axis=-1, bitorder="little").view(
        "<u4"
    )


def mlx_affine(bits, group):
    """Stores a pack of MLX: scale * code + bias."""

    def store(array):
        grouped = array.reshape(len(array), -1, group)
        low, high = grouped.min(-1), grouped.max(-1)
        scales = ((high - low) / (2**bits - 1)).astype(np.float16)
        biases = low.astype(np.float16)
        scale, bias = (part.astype(np.float32)[..., None] for part in (scales, biases))
        codes = np.clip(np.rint((grouped - bias) / scale), 0, 2**bits - 1).astype(np.int64)
        parts = {
            ".weight": packed_rows(codes.reshape(array.shape), bits),
            ".scales": scales,
            ".biases": biases,
        }
        return parts, (scale * codes.astype(np.float32) + bias).reshape(array.shape)

    return store


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleave(array, heads):
    """Puts the rows i and i + d/2 of each head side by side, as the converter does for llama."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def deinterleave(array, heads):
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def save_gguf(path, model, kind):
    """Saves a model by gguf-py, its matrices in that type. Returns its values."""
    import gguf

    arch = model.config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(model.config.num_hidden_layers)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(5e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    values = {}
    for name, array in values_of(model).items():
        module, _, param = name.rpartition(".")
        layer = ""
        if module.startswith("model.layers."):
            number, _, module = module.removeprefix("model.layers.").partition(".")
            layer = f"blk.{number}."
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(module)
        moved = interleave(array, heads) if heads and arch == "llama" else array
        type_ = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        stored = gguf.quantize(moved, type_)
        decoded = gguf.dequantize(stored, type_)
        values[name] = deinterleave(decoded, heads) if heads and arch == "llama" else decoded
        writer.add_tensor(f"{layer}{GGUF_NAMES[module]}.{param}", stored, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
