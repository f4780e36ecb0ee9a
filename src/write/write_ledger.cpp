#include "write/write_ledger.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "safetensors/error.hpp"
#include "safetensors/header.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kNamesInError = 5;

}  // namespace

WriteLedger::WriteLedger(LayoutPlan plan)
    : plan_(std::move(plan)), written_(plan_.places.size()), is_begun_(plan_.places.size()) {
  if (plan_.prologue.size() < kLengthSize || plan_.order.size() != plan_.places.size()) {
    fail(ErrorCode::kInvalidArgument, "the plan was not made by plan_file()");
  }
}

WriteLedger::WriteLedger(const Metadata* metadata, std::uint64_t begin)
    : added_(std::make_unique<Added>()) {
  if (metadata != nullptr) added_->metadata = *metadata;
  plan_.total_nbytes = begin;
}

std::uint64_t WriteLedger::check_add(const TensorSpec& spec) const {
  if (!added_) fail(ErrorCode::kInvalidArgument, "the plan of this file is complete");
  const std::uint64_t nbytes = plan_file({&spec, 1}).places.front().nbytes;
  const std::string name(spec.name);
  if (added_->names.contains(name)) {
    fail(ErrorCode::kWrittenTwice, quoted_tensor(name) + " was added before", {.subject = name});
  }
  if (nbytes > std::numeric_limits<std::uint64_t>::max() - plan_.total_nbytes) {
    fail(ErrorCode::kOverflow, "the tensors together exceed 2^64 bytes");
  }
  return nbytes;
}

std::size_t WriteLedger::add(const TensorSpec& spec, std::uint64_t nbytes) {
  added_->names.emplace(spec.name);
  added_->tensors.push_back(
      {std::string(spec.name), {spec.shape.begin(), spec.shape.end()}, spec.dtype});
  plan_.places.push_back({plan_.total_nbytes, nbytes});
  plan_.order.push_back(plan_.order.size());
  written_.push_back(0);
  is_begun_.push_back(false);
  plan_.total_nbytes += nbytes;
  return plan_.order.back();
}

std::string WriteLedger::prologue_of_added(std::uint64_t room) const {
  std::vector<TensorSpec> specs;
  specs.reserve(added_->tensors.size());
  for (const Added::Tensor& each : added_->tensors) {
    specs.push_back({each.name, each.shape, each.dtype});
  }
  const Metadata* const metadata = added_->metadata ? &*added_->metadata : nullptr;
  return plan_file(specs, metadata, Layout::kGiven, room).prologue;
}

const TensorPlace& WriteLedger::place(std::size_t tensor) const {
  if (tensor < plan_.places.size()) return plan_.places[tensor];
  fail(ErrorCode::kInvalidArgument, "there is no tensor " + std::to_string(tensor) + " of " +
                                        std::to_string(plan_.places.size()));
}

std::string WriteLedger::name(std::size_t tensor) const {
  if (added_) return added_->tensors[tensor].name;
  const auto place = std::ranges::find(plan_.order, tensor);
  const auto json = std::as_bytes(std::span(plan_.prologue)).subspan(kLengthSize);
  const Header header = Header::parse(json, plan_.total_nbytes - plan_.prologue.size());
  const auto at = static_cast<std::size_t>(place - plan_.order.begin());
  return std::string(header.tensors()[at].name);
}

std::size_t WriteLedger::tensor_at(std::uint64_t offset) const {
  return *std::ranges::find_if(plan_.order, [&](std::size_t i) {
    return plan_.places[i].begin + plan_.places[i].nbytes > offset;
  });
}

void WriteLedger::check_source(std::size_t tensor, std::uint64_t begin,
                               std::uint64_t source_nbytes) const {
  const std::uint64_t nbytes = place(tensor).nbytes;
  if (begin <= source_nbytes && nbytes <= source_nbytes - begin) return;
  const std::string its_name = name(tensor);
  fail(ErrorCode::kInvalidArgument,
       quoted_tensor(its_name) + ": the source has " + counted(source_nbytes, "byte") + ", the " +
           grouped(nbytes) + " at " + grouped(begin) + " reach past its end",
       {.subject = its_name});
}

std::vector<WriteLedger::Run> WriteLedger::runs_of(std::span<const TensorCopy> tensors) const {
  std::vector<Run> runs;
  for (const TensorCopy& each : tensors) {
    const TensorPlace& its = place(each.tensor);
    if (!runs.empty() && runs.back().from + runs.back().nbytes == each.begin &&
        runs.back().to + runs.back().nbytes == its.begin) {
      runs.back().nbytes += its.nbytes;
    } else if (its.nbytes != 0) {
      runs.push_back({each.begin, its.nbytes, its.begin});
    }
  }
  return runs;
}

void WriteLedger::check_free(std::size_t tensor, std::uint64_t nbytes, bool is_whole) const {
  const bool is_free = !is_whole || !is_begun_[tensor];
  if (is_free && nbytes <= plan_.places[tensor].nbytes - written_[tensor]) return;
  const std::string its_name = name(tensor);
  const std::string text =
      is_whole ? quoted_tensor(its_name) + " was written before"
               : "the parts written of " + quoted_tensor(its_name) + " have more bytes than it";
  fail(ErrorCode::kWrittenTwice, text, {.subject = its_name});
}

void WriteLedger::mark(std::size_t tensor, std::uint64_t nbytes) {
  // Also after an empty tensor was written whole, but not after an empty part of another one.
  if (nbytes != 0 || plan_.places[tensor].nbytes == 0) is_begun_[tensor] = true;
  written_[tensor] += nbytes;
  nbytes_written_ += nbytes;
}

void WriteLedger::mark_all(std::span<const std::size_t> tensors) {
  std::size_t count = 0;
  try {
    for (; count < tensors.size(); ++count) {
      const std::uint64_t nbytes = plan_.places[tensors[count]].nbytes;
      check_free(tensors[count], nbytes, true);
      mark(tensors[count], nbytes);
    }
  } catch (...) {
    for (const std::size_t i : tensors.first(count)) {
      nbytes_written_ -= written_[i];
      written_[i] = 0;
      is_begun_[i] = false;
    }
    throw;
  }
}

std::vector<std::size_t> WriteLedger::missing() const {
  std::vector<std::size_t> result;
  for (const std::size_t i : plan_.order) {
    if (written_[i] != plan_.places[i].nbytes) result.push_back(i);
  }
  return result;
}

void WriteLedger::fail_missing(std::span<const std::size_t> missing) const {
  std::string text = std::to_string(missing.size()) + " of " +
                     counted(plan_.places.size(), "tensor") +
                     (missing.size() == 1 ? " was not written: " : " were not written: ");
  for (const std::size_t i : missing.first(std::min(missing.size(), kNamesInError))) {
    text += (i == missing.front() ? "`" : ", `") + clipped(name(i)) + "`";
    if (written_[i] == 0) continue;
    text += " (" + grouped(written_[i]) + " of " + counted(plan_.places[i].nbytes, "byte") + ")";
  }
  if (missing.size() > kNamesInError) text += ", ...";
  fail(ErrorCode::kMissingTensors, text, {.subject = name(missing.front())});
}

void WriteLedger::fail_overlap(std::uint64_t offset) const {
  const std::size_t tensor = tensor_at(offset);
  const std::string its_name = name(tensor);
  fail(ErrorCode::kMissingTensors,
       "the parts written of " + quoted_tensor(its_name) + " overlap: its byte " +
           grouped(offset - plan_.places[tensor].begin) + " is missing",
       {.subject = its_name});
}

std::string quoted_tensor(const std::string& name) { return "tensor `" + clipped(name) + "`"; }

std::uint64_t header_room(std::uint64_t nbytes) {
  const auto limited = std::clamp<std::uint64_t>(nbytes, 1, 2 * kMaxHeaderSize);
  const std::uint64_t room = (limited + kBlockSize - 1) / kBlockSize * kBlockSize;
  if (room - kLengthSize <= kMaxHeaderSize) return room;
  fail(ErrorCode::kHeaderTooLarge, "room for a header of " + counted(nbytes, "byte") +
                                       ", in whole blocks, exceeds the limit of " +
                                       grouped(kMaxHeaderSize));
}

}  // namespace safetensors
