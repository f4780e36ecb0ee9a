"""transformers loads converted models, and computes the logits of the original checkpoint."""

import json

import numpy as np
import pytest

import safetensors
from safetensors.numpy import save_file
from safetensors.weights import convert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import safetensors.torch  # noqa: E402

# No two sizes are equal, and a head is not hidden_size / heads.
SIZES = {
    "vocab_size": 77,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
IDS = torch.tensor([[1, 5, 70, 3, 3, 42, 8]])
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Returns a model of Llama with random weights, and its folder."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return model, folder


def logits_of(model):
    with torch.no_grad():
        return model(IDS).logits


def loaded(folder):
    found = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, info = found
    assert not any(info.values()), info
    return model.eval()


def weights_of(model):
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def with_weights(weights):
    """Returns a model with these weights."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    model.load_state_dict({name: torch.from_numpy(each) for name, each in weights.items()})
    return model


def gguf_name(name):
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return GGUF_NAMES[name] + ".weight"
    number, module = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{number}.{GGUF_NAMES[module]}.weight"


def interleaved(values, heads):
    """Reorders the rows of q or k as the conversion to GGUF does."""
    rows = values.reshape(heads, 2, len(values) // heads // 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(rows.reshape(values.shape))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_gguf(checkpoint, tmp_path, kind):
    """The logits are those of the weights that the file stores, bit for bit."""
    gguf = pytest.importorskip("gguf")
    model, folder = checkpoint
    stored = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(32)
    writer.add_embedding_length(96)
    rounded = weights_of(model)
    for name, values in list(rounded.items()):
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if values.ndim == 2:
            data = gguf.quants.quantize(values, stored)
            rounded[name] = gguf.quants.dequantize(data, stored)
            given = interleaved(values, heads) if heads else values
            data = gguf.quants.quantize(given, stored)
            writer.add_tensor(gguf_name(name), data, raw_dtype=stored)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert(tmp_path / "m.gguf", f"{tmp_path}/out/", dtype="f32", verify=True)
    (tmp_path / "out" / "config.json").write_bytes((folder / "config.json").read_bytes())
    found = logits_of(loaded(tmp_path / "out"))
    assert torch.equal(found, logits_of(with_weights(rounded)))
    original = logits_of(model)
    assert torch.equal(found, original) == (kind == "F32")
    assert (found - original).abs().max() < {"F32": 1e-9, "Q8_0": 0.01, "Q4_0": 0.2}[kind]


def packed(values, bits, group):
    """Returns the words, scales and biases of an MLX pack, and its values."""
    groups = values.reshape(len(values), -1, group)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scales = ((high - low) / (2**bits - 1)).astype(np.float16)
    biases = low.astype(np.float16)
    wide, offset = scales.astype(np.float32), biases.astype(np.float32)
    codes = np.clip(np.rint((groups - offset) / wide), 0, 2**bits - 1).astype(np.uint32)
    decoded = (wide * codes.astype(np.float32) + offset).reshape(values.shape)
    places = np.arange(0, 32, bits, dtype=np.uint32)
    words = (codes.reshape(len(values), -1, 32 // bits) << places).sum(-1, dtype=np.uint32)
    return words, scales[..., 0], biases[..., 0], decoded


@pytest.mark.parametrize("bits", [4, 8])
def test_mlx(checkpoint, tmp_path, bits):
    model, _ = checkpoint
    config = transformers.LlamaConfig(**SIZES)
    config.quantization = {"group_size": 32, "bits": bits}
    config.save_pretrained(tmp_path / "in")
    tensors, rounded = {}, weights_of(model)
    for name, values in list(rounded.items()):
        if values.ndim == 1:
            tensors[name] = values
            continue
        module = name.removesuffix(".weight")
        words, scales, biases, rounded[name] = packed(values, bits, 32)
        tensors |= {name: words, f"{module}.scales": scales, f"{module}.biases": biases}
    save_file(tensors, tmp_path / "in" / "model.safetensors", metadata={"format": "mlx"})
    convert(tmp_path / "in", tmp_path / "out", dtype="f32", max_shard_size="100kB", verify=True)
    found = logits_of(loaded(tmp_path / "out"))
    assert torch.equal(found, logits_of(with_weights(rounded)))
    assert (found - logits_of(model)).abs().max() < {4: 0.2, 8: 0.01}[bits]


@pytest.mark.parametrize("dtype", ["keep", "f32"])
def test_gpt_oss(tmp_path, dtype):
    """The experts get transformers' layout, with the values of its own dequantiser."""
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=77,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=3,
        num_experts_per_tok=2,
        max_position_embeddings=131072,
    )
    model = transformers.GptOssForCausalLM(config).eval()
    weights = {name: each.bfloat16() for name, each in model.state_dict().items()}
    stored = {}
    for name, values in list(weights.items()):
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = values
            continue
        experts, rows, columns = values.shape[0], values.shape[2], values.shape[1]
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16)).to(torch.uint8)
        scales = torch.randint(115, 122, (experts, rows, columns // 32)).to(torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        weights[name] = mxfp4.convert_moe_packed_tensors(blocks, scales)
    model.load_state_dict(weights)
    (tmp_path / "in").mkdir()
    safetensors.torch.save_file(stored, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    table = {**config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "in" / "config.json").write_text(json.dumps(table))
    convert(tmp_path / "in", f"{tmp_path}/out/", dtype=dtype, verify=True)
    found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, values in weights.items():
        assert found[name].dtype == (torch.bfloat16 if dtype == "keep" else torch.float32)
        assert torch.equal(found[name].to(torch.bfloat16), values), name
    kind = transformers.GptOssForCausalLM
    again = kind.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert torch.equal(logits_of(again), logits_of(model))
