// The whole weight layer: models of MLX, Hugging Face and GGUF behind one interface.
//
//   #include "safetensors/weights/weights.hpp"
//
//   auto model = safetensors::weights::WeightProvider::open("model_dir_or_file");
//   for (const auto& tensor : model.tensors()) {
//     auto buffer = model.get_tensor(tensor.name);
//     // tensor.shape, tensor.code, tensor.quant, buffer.bytes(), buffer.sections()
//   }
#pragma once

#include "safetensors/weights/buffer.hpp"
#include "safetensors/weights/config.hpp"
#include "safetensors/weights/config_fields.hpp"
#include "safetensors/weights/error.hpp"
#include "safetensors/weights/json.hpp"
#include "safetensors/weights/limits.hpp"
#include "safetensors/weights/metadata.hpp"
#include "safetensors/weights/options.hpp"
#include "safetensors/weights/provider.hpp"
#include "safetensors/weights/types.hpp"
