// All of the library.
//
//   #include "safetensors/safetensors.hpp"
//
//   auto f = safetensors::SafeOpen("model.safetensors");
//   for (std::string_view key : f.keys()) {
//     auto t = f.get_tensor(key);
//     // t.dtype, t.shape, t.bytes(), t.data<float>()
//   }
//
// Unless a declaration says otherwise:
//   - Functions may be called from many threads at once, and many threads may read one object.
//   - Arguments are used during the call only; the library keeps no reference to them.
//   - Functions throw Error or std::bad_alloc, and have no effect if they throw.
//
// Functions marked "Safe for untrusted input" may be given any bytes: they end with a result or an
// Error, in bounded memory.
#pragma once

#include "safetensors/apply_patch.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/cast.hpp"
#include "safetensors/device.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/element.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"
#include "safetensors/file_bytes.hpp"
#include "safetensors/file_id.hpp"
#include "safetensors/file_kind.hpp"
#include "safetensors/fill_page_cache.hpp"
#include "safetensors/from_float.hpp"
#include "safetensors/header.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/mapped_file.hpp"
#include "safetensors/model.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/model_writer.hpp"
#include "safetensors/parallel.hpp"
#include "safetensors/patch.hpp"
#include "safetensors/patch_change.hpp"
#include "safetensors/patch_file.hpp"
#include "safetensors/region.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/shard_index.hpp"
#include "safetensors/shard_plan.hpp"
#include "safetensors/slice.hpp"
#include "safetensors/staged_save.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/temporary.hpp"
#include "safetensors/tensor_view.hpp"
#include "safetensors/to_float.hpp"
#include "safetensors/update_file.hpp"
#include "safetensors/verify.hpp"
#include "safetensors/writer.hpp"
