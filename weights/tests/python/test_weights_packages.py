"""Compares decoded weights with those of the packages that write them.

The packages are not among the tests' requirements: install comfy-kitchen, nvidia-modelopt,
optimum-quanto, auto-round, compressed-tensors or torchao to run the tests of each.
"""

import copy
import json
import warnings

import numpy as np
import pytest

from safetensors.weights import open_weights

torch = pytest.importorskip("torch")
st = pytest.importorskip("safetensors.torch")

M = "model.layers.0.mlp.up_proj."
SHAPES = [(16, 64), (128, 64), (130, 80), (256, 256), (48, 512), (300, 320), (1, 32)]


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def marker(**fields):
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def decoded(folder, parts, config=None):
    """Saves the tensors of a module, and returns its decoded weight."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {M + role: tensor.detach().contiguous() for role, tensor in parts.items()}
    st.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | (config or {})))
    with open_weights(folder) as w:
        assert w.warnings == []
        return w["layers.0.ffn.up.weight"].numpy()


def close(found, wanted, within=0.0):
    """Checks that values differ by at most that part of the maximum; not at all by default."""
    wanted = wanted.detach().float().numpy()
    if found.shape != wanted.shape:  # padded with zeros
        assert not found[wanted.shape[0] :].any()
        assert not found[:, wanted.shape[1] :].any()
        found = found[: wanted.shape[0], : wanted.shape[1]]
    if within == 0:
        np.testing.assert_array_equal(found, wanted)
    most = np.abs(wanted).max()
    np.testing.assert_allclose(found / most, wanted / most, rtol=0, atol=within)


def matrix(n, k):
    w = torch.randn(n, k) * 0.05
    w[0, 0] = 3
    return w


@pytest.fixture
def kitchen():
    comfy = pytest.importorskip("comfy_kitchen")
    import comfy_kitchen.tensor as layouts

    with comfy.use_backend("eager"):
        yield layouts


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_comfy_floats(n, k, kitchen, tmp_path):
    w = matrix(n, k)
    for dtype, name in ((torch.float8_e4m3fn, "float8_e4m3fn"), (torch.float8_e5m2, "float8_e5m2")):
        layout = kitchen.TensorCoreFP8Layout
        q, p = layout.quantize(w, dtype=dtype)
        parts = {"weight": q, "weight_scale": p.scale, "comfy_quant": marker(format=name)}
        close(decoded(tmp_path / name, parts), layout.dequantize(q, p))
    layout = kitchen.TensorCoreNVFP4Layout
    q, p = layout.quantize(w)
    parts = {"weight": q, "weight_scale": p.block_scale, "weight_scale_2": p.scale}
    parts["comfy_quant"] = marker(format="nvfp4")
    close(decoded(tmp_path / "nvfp4", parts), layout.dequantize(q, p))
    close(decoded(tmp_path / "bias", parts | {"bias": torch.zeros(n)}), w, within=0.2)
    layout = kitchen.TensorCoreMXFP8Layout
    q, p = layout.quantize(w)
    parts = {"weight": q, "weight_scale": p.scale, "comfy_quant": marker(format="mxfp8")}
    close(decoded(tmp_path / "mxfp8", parts), layout.dequantize(q, p))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_comfy_integers(n, k, kitchen, tmp_path):
    w = matrix(n, k)
    layout = kitchen.TensorWiseINT8Layout
    for rows in (False, True):
        q, p = layout.quantize(w, per_channel=rows)
        parts = {
            "weight": q,
            "weight_scale": p.scale,
            "comfy_quant": marker(format="int8_tensorwise"),
        }
        close(decoded(tmp_path / f"rows{rows}", parts), layout.dequantize(q, p))
    for size in (4, 16, 64, 256):
        if k % size:
            continue
        q, p = layout.quantize(w, per_channel=True, convrot=True, convrot_groupsize=size)
        fields = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": size}
        parts = {"weight": q, "weight_scale": p.scale, "comfy_quant": marker(**fields)}
        # A product of matrices in F32 has other sums.
        close(decoded(tmp_path / f"rotated{size}", parts), layout.dequantize(q, p), within=2e-6)
        if k % 64:
            continue
        four = kitchen.TensorCoreConvRotW4A4Layout
        q, p = four.quantize(w, convrot_groupsize=size)
        fields = {"format": "convrot_w4a4", "convrot_groupsize": size}
        parts = {"weight": q, "weight_scale": p.scale, "comfy_quant": marker(**fields)}
        close(decoded(tmp_path / f"w4a4{size}", parts), four.dequantize(q, p), within=2e-6)


W4A8 = [
    {},
    {"codebook": False},
    {"bits": 6},
    {"group_size": 32},
    {"scale_dtype": torch.float32},
]


@pytest.mark.parametrize("how", W4A8, ids=str)
@pytest.mark.parametrize(("n", "k"), [(256, 256), (48, 512)])
def test_comfy_w4a8(n, k, how, kitchen, tmp_path):
    layout = kitchen.AsymW4A8Int8Layout
    q, p = layout.quantize(matrix(n, k), **how)
    fields = {"group_size": p.group_size, "convrot_groupsize": p.convrot_groupsize}
    parts = {"weight": q, "weight_s_rel": p.scale, "weight_s_channel": p.s_channel}
    if p.codebook is not None:
        parts["weight_codebook"] = p.codebook
    parts["comfy_quant"] = marker(format="asym_w4a8_int8", **fields)
    close(decoded(tmp_path, parts), layout.dequantize(q, p), within=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_comfy_awq(dtype, kitchen, tmp_path):
    layout = kitchen.TensorCoreAWQW4A16Layout
    for n, k in ((16, 64), (300, 320)):
        q = torch.randint(-128, 128, (n, k // 2), dtype=torch.int8)
        scale, zeros = torch.rand(k // 64, n).to(dtype), torch.randn(k // 64, n).to(dtype)
        p = layout.Params(
            scale=scale, zeros=zeros, orig_dtype=torch.float32, orig_shape=(n, k), group_size=64
        )
        parts = {"weight": q, "weight_scale": scale, "weight_zeros": zeros}
        parts["comfy_quant"] = marker(format="awq_w4a16")
        close(decoded(tmp_path / str(n), parts), layout.dequantize(q, p))


QUANTO = ["qint8", "qfloat8_e4m3fn", "qfloat8_e5m2", "qfloat8_e4m3fnuz"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", QUANTO)
def test_quanto(kind, dtype, tmp_path):
    quanto = pytest.importorskip("optimum.quanto")
    for n, k in ((64, 128), (33, 256), (5, 96)):
        model = torch.nn.Sequential(torch.nn.Linear(k, n).to(dtype))
        quanto.quantize(model, weights=getattr(quanto, kind))
        quanto.freeze(model)
        parts = {name.removeprefix("0."): part for name, part in model.state_dict().items()}
        found = torch.from_numpy(decoded(tmp_path / f"{n}", parts)).to(dtype).float().numpy()
        close(found, model[0].weight.dequantize())


@pytest.mark.parametrize("kind", ["qint4", "qint2"])
def test_quanto_in_fewer_bits(kind, tmp_path):
    quanto = pytest.importorskip("optimum.quanto")
    for n, k in ((64, 128), (33, 256), (5, 96), (7, 64), (9, 384)):
        for i, optimizer in enumerate([None, quanto.HqqOptimizer()]):
            model = torch.nn.Sequential(torch.nn.Linear(k, n))
            more = {} if optimizer is None else {"optimizer": optimizer}
            quanto.quantize(model, weights=getattr(quanto, kind), **more)
            quanto.freeze(model)
            parts = {name.removeprefix("0."): part for name, part in model.state_dict().items()}
            close(decoded(tmp_path / f"{n}-{i}", parts), model[0].weight.dequantize())


MODELOPT = {
    "INT8_SMOOTHQUANT_CFG": (96, 64),
    "INT8_WEIGHT_ONLY_CFG": (96, 64),
    "INT4_AWQ_CFG": (256, 64),
    "W4A8_AWQ_BETA_CFG": (256, 64),
    "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG": (256, 512),
    "FP8_PER_CHANNEL_PER_TOKEN_CFG": (96, 64),
    "MXFP8_DEFAULT_CFG": (96, 64),
    "NVFP4_DEFAULT_CFG": (96, 64),
}


@pytest.mark.parametrize("name", MODELOPT)
def test_modelopt(name, tmp_path):
    """The product of inputs and the decoded weight is that of the quantised layer."""
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export.unified_export_hf import _export_quantized_weight

    if not hasattr(mtq, name):
        pytest.skip("this version of modelopt lacks the configuration")
    if name.startswith(("NVFP4", "MXFP8")) and not torch.cuda.is_available():
        pytest.skip("modelopt quantises to NVFP4 and MXFP8 with CUDA only")
    k, n = MODELOPT[name]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(k, n, bias=False)

        def forward(self, x):
            return self.up(x)

    x = torch.randn(64, k) * torch.linspace(0.2, 6, k)
    layer = mtq.quantize(Net(), copy.deepcopy(getattr(mtq, name)), lambda model: model(x)).up
    fake = layer.weight_quantizer(layer.weight).float()
    pre = getattr(layer.input_quantizer, "_pre_quant_scale", None)
    pre = torch.ones(k) if pre is None else pre.float().squeeze().clone()
    _export_quantized_weight(layer, torch.float32)
    parts = {key: part for key, part in layer.state_dict().items() if "quantizer" not in key}
    if not (pre == 1).all():
        parts["pre_quant_scale"] = pre
    weight = torch.from_numpy(decoded(tmp_path, parts))
    assert weight.shape == (n, k)
    wanted = (x * pre) @ fake.T
    # W4A8 rounds its values to E4M3 once more.
    within = 0.1 if name.startswith("W4A8") else 2e-6
    assert ((x @ weight.T - wanted).abs().max() / wanted.abs().max()) <= within


def test_six_bit_floats(tmp_path):
    pytest.importorskip("compressed_tensors")
    base = pytest.importorskip("compressed_tensors.compressors.mxfp6.base")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(
        num_bits=6,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype=torch.uint8,
        zp_dtype=torch.uint8,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    for n, k in ((1, 32), (7, 96), (64, 256)):
        w = (torch.randn(n, k) * torch.exp2(torch.randint(-9, 4, (n, 1)).float())).bfloat16()
        most = w.float().reshape(n, -1, 32).abs().amax(-1)
        scale = torch.exp2(torch.floor(torch.log2(most / 7.5)) + 1).bfloat16()
        packer = base.MXFP6PackedCompressor
        parts = packer.compress({"weight": w, "weight_scale": scale}, scheme)
        close(decoded(tmp_path / str(n), parts), packer.decompress(dict(parts), scheme)["weight"])


@pytest.mark.parametrize("packing", ["auto_round", "auto_round:auto_gptq", "auto_round:auto_awq"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_auto_round(symmetric, bits, packing, tmp_path):
    pytest.importorskip("auto_round")
    if packing == "auto_round:auto_awq" and bits != 4:
        return
    n, k, group = 64, 256, 128
    q = torch.randint(0, 2**bits, (n, k))
    s = (torch.rand(n, k // group) * 0.02 + 1e-3).half().float()
    middle = 2 ** (bits - 1)
    z = torch.full(s.shape, middle) if symmetric else torch.randint(0, 2**bits, s.shape)
    if packing == "auto_round:auto_gptq":
        z = z.clamp(min=1)  # the zero point 0 cannot be stored
    w = (q - z.repeat_interleave(group, 1)).float() * s.repeat_interleave(group, 1)
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = w
    if packing == "auto_round:auto_awq":
        from auto_round.export.export_to_awq.utils import WQLinear_GEMM

        zeros = z.t().contiguous().int()
        packed = WQLinear_GEMM.from_linear(
            linear, bits, group, False, s.t().contiguous(), zeros, "cpu"
        )
    else:
        from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

        module = qlinear_torch if packing == "auto_round" else qlinear_torch_zp
        packed = module.QuantLinear(bits, group, k, n, False)
        packed.device = "cpu"
        packed.pack(linear, s, middle if symmetric else z.float(), None, "cpu")
    state = packed.state_dict()
    parts = {role: state[role] for role in ("qweight", "qzeros", "scales")}
    quant = {"quant_method": "auto-round", "bits": bits, "group_size": group, "sym": symmetric}
    quant["packing_format"] = packing
    close(decoded(tmp_path, parts, {"quantization_config": quant}), w)


TORCHAO = {
    "Float8WeightOnlyConfig": {},
    "Int8WeightOnlyConfig": {},
    "Int8DynamicActivationInt8WeightConfig": {},
    "Int8DynamicActivationIntxWeightConfig": {"weight_dtype": torch.int3},
    "IntxWeightOnlyConfig": {"weight_dtype": torch.int5},
    "NVFP4WeightOnlyConfig": {},
    "MXDynamicActivationMXWeightConfig": {},
}


@pytest.mark.parametrize("name", TORCHAO)
@pytest.mark.parametrize("n", [128, 144])
def test_torchao_configurations(n, name, tmp_path):
    """Those that CPUs can apply; the result is rounded to the type of the layer."""
    quantization = pytest.importorskip("torchao.quantization")
    formats = pytest.importorskip("torchao.prototype.mx_formats")
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    config = getattr(quantization, name, None) or getattr(formats, name)
    layer = torch.nn.Sequential(torch.nn.Linear(320, n, bias=False)).bfloat16()
    quantization.quantize_(layer, config(**TORCHAO[name]))
    weight = layer[0].weight
    tensors, metadata = flatten_tensor_state_dict({M + "weight": weight})
    st.save_file(tensors, tmp_path / "model.safetensors", metadata)
    with open_weights(tmp_path / "model.safetensors") as w:
        found = torch.from_numpy(w["layers.0.ffn.up.weight"].numpy())
    close(found.bfloat16().float().numpy(), weight.dequantize())


@pytest.mark.parametrize("element", ["float8_e5m2", "float4_e2m1fn_x2"])
@pytest.mark.parametrize("in_tiles", [False, True])
def test_torchao_elements(in_tiles, element, tmp_path):
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    for n, k in ((48, 96), (144, 320)):
        data, kind = matrix(n, k).bfloat16(), getattr(torch, element)
        weight = MXTensor.to_mx(data, kind, is_swizzled_scales=in_tiles)
        tensors, metadata = flatten_tensor_state_dict({M + "weight": weight})
        path = tmp_path / f"{n}.safetensors"
        st.save_file(tensors, path, metadata)
        with open_weights(path) as w:
            found = torch.from_numpy(w["layers.0.ffn.up.weight"].numpy())
        close(found.bfloat16().float().numpy(), weight.dequantize())


def test_torchao_scale_of_the_inputs(tmp_path):
    """The product of inputs and the decoded weight is that of the quantised tensor."""
    pytest.importorskip("torchao")
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int8Tensor
    from torchao.quantization.granularity import PerRow

    n, k = 48, 96
    weight = Int8Tensor.from_hp(torch.randn(n, k), PerRow())
    weight.act_pre_scale = torch.rand(k) + 0.5
    tensors, metadata = flatten_tensor_state_dict({M + "weight": weight})
    st.save_file(tensors, tmp_path / "model.safetensors", metadata)
    x = torch.randn(16, k)
    with open_weights(tmp_path / "model.safetensors") as w:
        found = torch.from_numpy(w["layers.0.ffn.up.weight"].numpy())
    wanted = torch.nn.functional.linear(x, weight)
    np.testing.assert_allclose((x @ found.T).numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
