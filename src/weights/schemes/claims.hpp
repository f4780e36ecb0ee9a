// The functions of the table of schemes: each looks at one tensor, see Scheme::claim.
#pragma once

#include "weights/schemes/checkpoint.hpp"

namespace safetensors::weights {

/// Weights that AWQ (gemm) and GPTQ store transposed.
void claim_awq_gptq(const SourceTensor& qweight, Checkpoint& checkpoint);

/// Weights of bitsandbytes: NF4 and FP4 by their quant_state, INT8 by its SCB.
void claim_bnb_4bit(const SourceTensor& quant_state, Checkpoint& checkpoint);
void claim_bnb_int8(const SourceTensor& scb, Checkpoint& checkpoint);

/// Weights of torchao, by the metadata of their file.
void claim_torchao(const SourceTensor& qdata, Checkpoint& checkpoint);

/// Weights of 8-bit floats with scales: fp8 and mxfp8.
void claim_fp8(const SourceTensor& scale, Checkpoint& checkpoint);
/// MXFP4 of gpt-oss.
void claim_mxfp4(const SourceTensor& blocks, Checkpoint& checkpoint);

}  // namespace safetensors::weights
