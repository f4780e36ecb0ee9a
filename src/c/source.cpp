#include "c/source.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "safetensors/error.hpp"

namespace safetensors::c {

void CallerSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    safetensors_error error{};
    const std::int64_t count = source_.read(source_.context, offset, to.data(), to.size(), &error);
    if (count < 0) fail_called(error, label_, "the source failed");
    if (count == 0) {
      fail(ErrorCode::kFileChanged,
           "the source ends after " + counted(offset, "byte") + ": it said that it has " +
               grouped(source_.nbytes),
           {.path = label_});
    }
    if (static_cast<std::uint64_t>(count) > to.size()) {
      fail(ErrorCode::kInvalidArgument,
           "the source returned " + counted(static_cast<std::uint64_t>(count), "byte") +
               " when it was asked for " + grouped(to.size()),
           {.path = label_});
    }
    offset += static_cast<std::uint64_t>(count);
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

ReadCost CallerSource::cost() const noexcept {
  ReadCost cost;
  if (source_.gap_nbytes != 0) cost.gap_nbytes = source_.gap_nbytes;
  cost.chunk_nbytes = source_.chunk_nbytes;
  cost.alignment = 1;
  cost.is_request = source_.is_request != 0;
  return cost;
}

void fail_called(const safetensors_error& error, const std::filesystem::path& label,
                 const char* otherwise) {
  if (error.code == SAFETENSORS_STOPPED) throw Stopped{error.detail};
  if (error.code == SAFETENSORS_OUT_OF_MEMORY) throw std::bad_alloc();
  const bool is_code = error.code > 0 && error.code <= static_cast<int>(kErrorCodeCount);
  const auto code = is_code ? static_cast<ErrorCode>(error.code) : ErrorCode::kIo;
  // The callback may have filled all of the text.
  const auto* const end = std::find(std::begin(error.text), std::end(error.text), '\0');
  const std::string text =
      clipped({error.text, static_cast<std::size_t>(end - std::begin(error.text))});
  if (text.empty() && error.os_error != 0) {
    fail(code, "",
         {.path = label, .os_error = error.os_error, .operation = ErrorContext::Operation::kRead});
  }
  fail(code, text.empty() ? otherwise : text, {.path = label, .os_error = error.os_error});
}

std::shared_ptr<CallerSource> source_of(const safetensors_source* source) {
  check_pointer(source, 1, "source");
  const safetensors_source copy = options_of(source, "source");
  if (copy.read == nullptr) fail(ErrorCode::kInvalidArgument, "read is NULL");
  Owned owned(copy);
  check_bool(copy.is_request, "is_request");
  return std::make_shared<CallerSource>(std::move(owned));
}

}  // namespace safetensors::c
