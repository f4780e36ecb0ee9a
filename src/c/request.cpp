#include "c/request.hpp"

#include <utility>

#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/slice.hpp"

namespace safetensors::c {

void select(const safetensors_file& file, const safetensors_request& request, bool is_bulk,
            Selected& selected) {
  check_reserved(request.reserved);
  check_pointer(request.to, request.room, "to");
  if (request.index_count == 0) {
    selected.info = bytes_of(file, request.tensor);  // of a part that is contiguous, too
  } else {
    selected.info = entry_of(file, request.tensor);
    Taken taken =
        take(file, request.tensor->file, selected.info, request.indices, request.index_count);
    if (is_bulk && taken.is_contiguous()) {
      const ByteRuns& only = taken.runs.all().front();
      selected.info.begin += only.first;
      selected.info.end = selected.info.begin + only.run_nbytes;
    } else {
      selected.runs = std::move(taken.runs);
    }
  }
  selected.file = request.tensor->file;
  selected.from = &file.file(selected.file);
}

void LoadList::add(const SafeOpen& from, std::uint32_t file, const TensorInfo& info,
                   std::span<const ByteRuns> runs, std::uint64_t nbytes, std::uint64_t to) {
  const auto [found, is_new] = sources_.emplace(file, static_cast<std::uint32_t>(files_.size()));
  if (is_new) files_.push_back(from);
  tensors_.push_back({.name = info.name,
                      .source = found->second,
                      .offset = from.position(info),
                      .nbytes = nbytes,
                      .to = to,
                      .runs = {runs.begin(), runs.end()}});
}

std::vector<std::shared_ptr<const ByteSource>> LoadList::sources() const {
  std::vector<std::shared_ptr<const ByteSource>> sources;
  sources.reserve(files_.size());
  for (const SafeOpen& file : files_) sources.push_back(file.source());
  return sources;
}

}  // namespace safetensors::c
