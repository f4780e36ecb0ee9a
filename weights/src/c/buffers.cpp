// The bytes of weights, and decoded rows.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "c/options.hpp"
#include "c/weights.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/weights/buffer.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Interrupt;
using safetensors::c::check_pointer;
using safetensors::c::text_of;
using safetensors::weights::guarded;
using safetensors::weights::WeightBuffer;

struct safetensors_buffer {
  explicit safetensors_buffer(WeightBuffer from) noexcept : buffer(std::move(from)) {}

  const WeightBuffer buffer;
  std::atomic<std::size_t> references{1};
};

namespace {

static_assert(WeightBuffer::kSections <= SAFETENSORS_SECTIONS);

Interrupt interrupt_of(const safetensors_watch* watch) {
  const safetensors::c::Watch watched(watch);
  if (watched.has_progress()) {
    fail(ErrorCode::kInvalidArgument, "watch: this function shows no progress");
  }
  return watched.interrupt();
}

/// Sets *buffer to what `get(model, interrupt)` returns.
template <typename Get>
std::int32_t give(const safetensors_weights* weights, const safetensors_watch* watch,
                  safetensors_buffer** buffer, safetensors_error* error, const Get& get) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(buffer, 1, "buffer");
    *buffer = new safetensors_buffer(get(weights->model, interrupt_of(watch)));
  });
}

/// Returns `to` as values. Throws: Error kInvalidArgument.
template <typename T>
std::span<T> values_at(void* to, std::uint64_t room) {
  if (reinterpret_cast<std::uintptr_t>(to) % alignof(T) != 0 || room % sizeof(T) != 0) {
    fail(ErrorCode::kInvalidArgument,
         "`to` or `room` is no multiple of the " + std::to_string(sizeof(T)) + " bytes of a value");
  }
  return {static_cast<T*>(to), safetensors::memory_size(room) / sizeof(T)};
}

}  // namespace

std::int32_t safetensors_buffer_bytes(const safetensors_buffer* buffer, safetensors_bytes* bytes,
                                      safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(buffer, 1, "buffer");
    check_pointer(bytes, 1, "bytes");
    const WeightBuffer& from = buffer->buffer;
    safetensors_bytes result{};
    result.data = from.bytes().data();
    result.nbytes = from.nbytes();
    for (std::size_t i = 0; i < from.sections().size(); ++i) {
      result.sections[i] = from.sections()[i];
    }
    result.is_view = from.is_view() ? 1 : 0;
    *bytes = result;
  });
}

safetensors_buffer* safetensors_buffer_share(safetensors_buffer* buffer) {
  if (buffer != nullptr) buffer->references.fetch_add(1, std::memory_order_relaxed);
  return buffer;
}

void safetensors_buffer_free(safetensors_buffer* buffer) {
  if (buffer == nullptr) return;
  if (buffer->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete buffer;
}

std::int32_t safetensors_weights_get(const safetensors_weights* weights, const char* name,
                                     std::size_t name_size, const safetensors_watch* watch,
                                     safetensors_buffer** buffer, safetensors_error* error) {
  return give(weights, watch, buffer, error, [&](const auto& model, const Interrupt& interrupt) {
    return model.get_tensor(text_of(name, name_size, "name"), interrupt);
  });
}

std::int32_t safetensors_weights_get_stored(const safetensors_weights* weights, const char* name,
                                            std::size_t name_size, const safetensors_watch* watch,
                                            safetensors_buffer** buffer, safetensors_error* error) {
  return give(weights, watch, buffer, error, [&](const auto& model, const Interrupt& interrupt) {
    return model.get_stored(text_of(name, name_size, "name"), interrupt);
  });
}

std::int32_t safetensors_weights_get_part(const safetensors_weights* weights, const char* name,
                                          std::size_t name_size, std::size_t index,
                                          const safetensors_watch* watch,
                                          safetensors_buffer** buffer, safetensors_error* error) {
  return give(weights, watch, buffer, error, [&](const auto& model, const Interrupt& interrupt) {
    const std::string_view key = text_of(name, name_size, "name");
    safetensors::c::check_index(index, model.part_count(key));
    return model.get_part(key, index, interrupt);
  });
}

std::int32_t safetensors_weights_fuse(const safetensors_weights* weights,
                                      const safetensors_text* names, std::size_t count,
                                      const safetensors_watch* watch, safetensors_buffer** buffer,
                                      safetensors_error* error) {
  return give(weights, watch, buffer, error, [&](const auto& model, const Interrupt& interrupt) {
    check_pointer(names, count, "names");
    std::vector<std::string_view> all;
    all.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(text_of(names[i].data, names[i].size, "names"));
    }
    return model.fuse_weights(all, interrupt);
  });
}

void safetensors_weights_clear_cache(safetensors_weights* weights) {
  if (weights != nullptr) weights->model.clear_cache();
}

std::int32_t safetensors_weights_decode(const safetensors_weights* weights, const char* name,
                                        std::size_t name_size, std::int64_t row, std::int64_t rows,
                                        std::int32_t dtype, void* to, std::uint64_t room,
                                        const safetensors_watch* watch, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(to, room, "to");
    const std::string_view key = text_of(name, name_size, "name");
    const Interrupt interrupt = interrupt_of(watch);
    const auto& model = weights->model;
    switch (dtype) {
      case SAFETENSORS_F32:
        return model.dequantize(key, values_at<float>(to, room), row, rows, interrupt);
      case SAFETENSORS_F16:
        return model.dequantize_f16(key, values_at<std::uint16_t>(to, room), row, rows, interrupt);
      case SAFETENSORS_BF16:
        return model.dequantize_bf16(key, values_at<std::uint16_t>(to, room), row, rows, interrupt);
      default:
        fail(ErrorCode::kUnsupportedDtype,
             "weights are decoded to F32, F16 or BF16, not to dtype " + std::to_string(dtype));
    }
  });
}
