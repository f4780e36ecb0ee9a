// The functions of the table of schemes: each looks at one tensor, see Scheme::claim.
#pragma once

#include <string>

#include "schemes/checkpoint.hpp"

namespace safetensors::weights {

/// Weights that ComfyUI's markers describe. Is called once, before the others: modules that it
/// settles are not theirs.
void claim_comfy(Checkpoint& checkpoint);

/// Weights that AWQ (gemm) and GPTQ store transposed.
void claim_awq_gptq(const SourceTensor& qweight, Checkpoint& checkpoint);

/// Weights of bitsandbytes: NF4 and FP4 by their quant_state, INT8 by its SCB.
void claim_bnb_4bit(const SourceTensor& quant_state, Checkpoint& checkpoint);
void claim_bnb_int8(const SourceTensor& scb, Checkpoint& checkpoint);

/// Weights of torchao, by the metadata of their file.
void claim_torchao(const SourceTensor& qdata, Checkpoint& checkpoint);

/// Weights of 8-bit floats with scales: fp8 and mxfp8. The other function claims these tensors for
/// the name, if the codes are floats.
void claim_fp8(const SourceTensor& scale, Checkpoint& checkpoint);
void claim_floats(const SourceTensor& codes, const SourceTensor& scale, std::string name,
                  Checkpoint& checkpoint);
/// Weights of optimum-quanto, in 8 bits, and in 4 or 2 bits.
void claim_quanto(const SourceTensor& data, Checkpoint& checkpoint);
void claim_quanto_packed(const SourceTensor& data, Checkpoint& checkpoint);
/// MXFP4 of gpt-oss.
void claim_mxfp4(const SourceTensor& blocks, Checkpoint& checkpoint);

/// Integers in 32-bit words, as compressed-tensors packs them: ct_int.
void claim_ct_int(const SourceTensor& packed, Checkpoint& checkpoint);

/// Integers of 8 bits with scales: int8. The other function claims these tensors for the name.
void claim_int8(const SourceTensor& scale, Checkpoint& checkpoint);
void claim_integers(const SourceTensor& codes, const SourceTensor& scale, std::string name,
                    Checkpoint& checkpoint);

/// Integers of 4 bits of modelopt, and floats of 6 bits of compressed-tensors.
void claim_int4(const SourceTensor& scale, Checkpoint& checkpoint);
void claim_mxfp6(const SourceTensor& packed, Checkpoint& checkpoint);

/// 4-bit floats with scales for groups, nvfp4 and mxfp4: by their codes in compressed-tensors, by
/// the global scale in modelopt, and mxfp4 by its scales.
void claim_fp4_packed(const SourceTensor& packed, Checkpoint& checkpoint);
void claim_fp4_modelopt(const SourceTensor& global, Checkpoint& checkpoint);
void claim_fp4_mx(const SourceTensor& scale, Checkpoint& checkpoint);

/// Sparse formats of compressed-tensors.
void refuse_ct_bitmask(const SourceTensor& bitmask, Checkpoint& checkpoint);
void refuse_ct_marlin(const SourceTensor& meta, Checkpoint& checkpoint);

}  // namespace safetensors::weights
