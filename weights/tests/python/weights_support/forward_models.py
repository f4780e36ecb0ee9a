"""Small models for examples/cpp/forward.cpp: each weight is stored in some way, and decoded here.

No two sizes are equal, and the heads are not hidden / heads long. A `store` function takes a matrix
and returns the tensors that take the place of its `.weight`, and the values that these stand for.
"""

import json
import re
import warnings

import numpy as np

from safetensors.numpy import save_file

HIDDEN, FFN, VOCABULARY = 96, 160, 83
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 32
EXPERTS, EXPERTS_USED, EXPERT_FFN = 5, 2, 64
WINDOW = 6  # of Gemma 3, whose text is longer
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
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERT_SIZES = {"num_experts_per_tok": EXPERTS_USED, "tie_word_embeddings": False}
#: What a kind has beside SIZES.
CHANGES = {
    "Mixtral": {**EXPERT_SIZES, "num_local_experts": EXPERTS, "intermediate_size": EXPERT_FFN},
    "Qwen3Moe": {
        **EXPERT_SIZES,
        "num_experts": EXPERTS,
        "moe_intermediate_size": EXPERT_FFN,
        "norm_topk_prob": True,
    },
    "Gemma3": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def random_model(kind, tied, layers=1, **changes):
    """Returns a model of transformers whose norms and biases also have random values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        settings = SIZES | {"tie_word_embeddings": tied} | CHANGES.get(kind, {}) | changes
        settings["num_hidden_layers"] = len(settings.get("layer_types", range(layers)))
        config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(**settings)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    torch.manual_seed(20261123)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 0.0 if kind == "Gemma3" else 1.0  # Gemma adds 1 itself
            # Matrices of this size make texts in which one token does not follow itself for ever.
            std = 0.3 if ".layers." in name and parameter.ndim > 1 else 0.1
            parameter.normal_(mean=offset if "norm" in name else 0.0, std=std)
    return model


#: The names of an expert's matrices and of the router in checkpoints of Mixtral.
MIXTRAL_NAMES = {
    "mlp.gate.": "block_sparse_moe.gate.",
    "mlp.experts.": "block_sparse_moe.experts.",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
}


def values_of(model):
    """Returns the tensors of a checkpoint as arrays: those of the model, without the output tensor
    if it is the embedding, and with tensors of each expert.
    """
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    values = {}
    for name, array in state.items():
        prefix, _, which = name.partition("mlp.experts.")
        if which:
            parts = np.split(array, 2, axis=1) if which == "gate_up_proj" else [array]
            for part, stack in zip(which.removesuffix("_proj").split("_"), parts, strict=True):
                for i, matrix in enumerate(stack):
                    values[f"{prefix}mlp.experts.{i}.{part}_proj.weight"] = matrix
        else:
            values[name] = array
    if model.config.model_type == "mixtral":
        for ours, theirs in MIXTRAL_NAMES.items():
            values = {name.replace(ours, theirs): array for name, array in values.items()}
    return values


def load_values(model, values):
    """Gives a model of transformers these values, which have the names of a checkpoint."""
    import torch

    if model.config.model_type == "mixtral":
        for ours, theirs in MIXTRAL_NAMES.items():
            values = {name.replace(theirs, ours): array for name, array in values.items()}
    state = {}
    for name, array in values.items():
        if not re.search(r"\.experts\.\d", name):
            state[name] = array
    for name in values:
        if name.endswith("experts.0.gate_proj.weight"):
            prefix = name.removesuffix("0.gate_proj.weight")
            gate, up, down = (
                np.stack([values[f"{prefix}{i}.{part}_proj.weight"] for i in range(EXPERTS)])
                for part in ("gate", "up", "down")
            )
            state[f"{prefix}gate_up_proj"] = np.concatenate([gate, up], axis=1)
            state[f"{prefix}down_proj"] = down
    state = {name: torch.from_numpy(array.copy()) for name, array in state.items()}
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}  # tied


def generated(model, tokens, count):
    """Returns the tokens that transformers appends, and the logits of all tokens but the last."""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
            max_new_tokens=count,
            do_sample=False,
        )[0]
        return found[len(tokens) :].tolist(), model(found[None, :-1]).logits[0].numpy()


def save_hf(folder, model, store, only=lambda name: True, shards=1, **config):
    """Saves a model, the matrices that `only` selects by `store`. Returns its values."""
    tensors, values = {}, {}
    for name, array in values_of(model).items():
        if array.ndim == 2 and only(name) and not name.endswith(".gate.weight"):  # a router
            parts, values[name] = store(array)
            module = name.removesuffix(".weight")
            tensors |= {module + suffix: part for suffix, part in parts.items()}
        else:
            tensors[name] = values[name] = array
    folder.mkdir()
    text = json.dumps(model.config.to_dict() | config, default=str)
    (folder / "config.json").write_text(text)
    names = sorted(tensors)
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    if shards == 1:
        files = ["model.safetensors"]
    for i, file in enumerate(files):
        some = {name: np.ascontiguousarray(tensors[name]) for name in names[i::shards]}
        save_file(some, folder / file)
    if shards > 1:
        index = {name: files[i % shards] for i, name in enumerate(names)}
        text = json.dumps({"metadata": {}, "weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
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
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
GGUF_NAMES_OF_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GGUF_EXPERTS = {"w1": "gate", "w2": "down", "w3": "up"} | {
    f"{part}_proj": part for part in ("gate", "up", "down")
}
GGUF_ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


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

    arch = GGUF_ARCHITECTURES.get(model.config.model_type, model.config.model_type)
    is_gemma = arch == "gemma3"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(model.config.num_hidden_layers)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(5e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_eos_token_id(2)
    if is_gemma:
        writer.add_sliding_window(WINDOW)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
    if getattr(model.config, "num_experts_per_tok", None):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(EXPERTS_USED)
        writer.add_expert_feed_forward_length(EXPERT_FFN)
    values = {}

    def add(name, array, heads=None, offset=0):
        """Adds a tensor, and returns the values that it has in a checkpoint."""
        moved = interleave(array, heads) if heads and arch == "llama" else array + offset
        type_ = gguf.GGMLQuantizationType[kind if array.ndim > 1 and "_inp" not in name else "F32"]
        stored = gguf.quantize(moved.astype(np.float32), type_)
        writer.add_tensor(name, stored, raw_dtype=type_)
        decoded = gguf.dequantize(stored, type_)
        return deinterleave(decoded, heads) if heads and arch == "llama" else decoded - offset

    experts = {}
    for name, array in values_of(model).items():
        module, _, param = name.rpartition(".")
        layer = ""
        if module.startswith("model.layers."):
            number, _, module = module.removeprefix("model.layers.").partition(".")
            layer = f"blk.{number}."
        if found := re.fullmatch(r".*\.experts\.\d+\.(\w+)", module):
            stack = f"{layer}ffn_{GGUF_EXPERTS[found[1]]}_exps.weight"
            experts.setdefault(stack, {})[name] = array
            continue
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(module)
        names = GGUF_NAMES | GGUF_NAMES_OF_GEMMA if is_gemma else GGUF_NAMES
        offset = np.float32(is_gemma and "norm" in module)
        values[name] = add(f"{layer}{names[module]}.{param}", array, heads, offset)
    for stack, matrices in experts.items():
        decoded = add(stack, np.stack(list(matrices.values())))
        values |= dict(zip(matrices, decoded, strict=True))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
