// A changed record is refused, or applied as a reference that reads one unit at a time applies it.
// A record that is refused, or whose base is another tensor, leaves the tensor as it was.
#include "fuzz_input.hpp"
#include "patch_oracle.hpp"
#include "safetensors/error.hpp"
#include "support.hpp"

namespace {

using safetensors::Dtype;
using safetensors::PatchRecord;
using safetensors::PatchState;
using test::NaivePatch;
using test::PatchBytes;

constexpr auto kAlgorithm = safetensors::DigestAlgorithm::kXxh3_128;

/// A tensor's dtype and shape, of one dimension, or two for sub-byte types.
struct Kind {
  Dtype dtype;
  std::vector<std::uint64_t> shape;
  std::size_t nbytes = 0;

  [[nodiscard]] std::size_t unit() const {
    return std::max<std::size_t>(1, safetensors::bit_size(dtype) / 8);
  }
  /// The dtype of the values in a file.
  [[nodiscard]] Dtype stored() const {
    return safetensors::bit_size(dtype) < 8 ? Dtype::kU8 : dtype;
  }
};

Kind kind_of(fuzz::Input& input) {
  Kind kind{input.dtype(), {}};
  // Most are short, which takes less time; some have a second block.
  std::uint64_t units = input.below(200);
  if (input.below(8) == 0) units += 65536 - 100;
  kind.shape = {units};
  if (safetensors::bit_size(kind.dtype) < 8) kind.shape.push_back(4);
  std::uint64_t nbits = safetensors::bit_size(kind.dtype);
  for (const std::uint64_t dim : kind.shape) nbits *= dim;
  kind.nbytes = static_cast<std::size_t>(nbits / 8);
  return kind;
}

PatchBytes base_of(const Kind& kind, std::uint64_t state) {
  PatchBytes bytes(kind.nbytes);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

/// Changes some units by a little or by much, alone or in runs.
void change(const Kind& kind, PatchBytes& tensor, fuzz::Input& input) {
  const std::size_t unit = kind.unit();
  const std::size_t units = kind.nbytes / unit;
  if (units == 0) return;
  for (unsigned i = input.below(24) + 1; i != 0; --i) {
    const std::size_t first =
        static_cast<std::size_t>(input.byte() << 8 | input.byte()) * 3 % units;
    const std::size_t stride = 1 + input.below(4) % 2 * input.byte();
    const std::size_t count = input.below(4) == 0 ? 20U * input.byte() : 1;
    const std::uint64_t step =
        input.below(3) == 0 ? input.word() : std::uint64_t{input.byte()} - 128;
    for (std::size_t at = first, j = 0; j < count && at < units; at += stride, ++j) {
      test::put_number(tensor, at * unit, unit, test::number_at(tensor, at * unit, unit) + step);
    }
  }
}

/// Overwrites, removes and inserts bytes.
void mutate(PatchBytes& bytes, fuzz::Input& input) {
  const std::size_t at = bytes.empty() ? 0 : static_cast<std::size_t>(input.word() % bytes.size());
  const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  switch (input.below(6)) {
    case 0:
      if (!bytes.empty()) bytes.erase(place);
      return;
    case 1:
      bytes.insert(place, static_cast<std::byte>(input.byte()));
      return;
    case 2:
      bytes.resize(at);
      return;
    case 3:
      for (unsigned i = input.below(40); i != 0; --i) {
        bytes.push_back(static_cast<std::byte>(input.byte()));
      }
      return;
    default:
      if (!bytes.empty()) bytes[at] = static_cast<std::byte>(input.byte());
  }
}

/// The same among the head, the shape and the first rows, where most bytes mean something.
void mutate_head(PatchBytes& record, fuzz::Input& input) {
  const std::size_t at = 8 + input.below(140);
  if (at < record.size()) record[at] = static_cast<std::byte>(input.byte());
}

/// Applies a record, and compares what happens with the reference.
void check_applying(const PatchBytes& record, const PatchBytes& values, const Kind& kind,
                    const PatchBytes& base) {
  const NaivePatch naive(record, values, kind.stored());
  const PatchRecord patch(record, values, kind.stored(), kAlgorithm, "w");
  PatchBytes tensor = base;
  const std::string outcome = test::outcome_of([&] { patch.apply(tensor); });
  const bool fits = naive.units() * naive.unit() == base.size();
  if (!fits || !naive.is_base(base)) {
    fuzz::require(outcome == "kWrongBase" || outcome == "kPatchApplied", "refused: " + outcome);
    fuzz::require(tensor == base, "a refused tensor is as it was");
    return;
  }
  fuzz::require(outcome == "ok", "a valid patch of this base is applied: " + outcome);
  fuzz::require(tensor == naive.applied(base), "applied as by the reference");

  std::vector<std::int64_t> positions(static_cast<std::size_t>(patch.changed()));
  patch.positions(positions);
  PatchBytes units(positions.size() * patch.unit());
  patch.new_units(base, units);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    fuzz::require(positions[i] >= 0 && (i == 0 || positions[i] > positions[i - 1]), "ascending");
    fuzz::require(test::number_at(units, i * patch.unit(), patch.unit()) ==
                      naive.unit_at(tensor, static_cast<std::uint64_t>(positions[i])),
                  "the new units");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const Kind kind = kind_of(input);
  const bool set_values = input.below(2) == 0;
  const PatchBytes base = base_of(kind, input.word());
  PatchBytes target = base;
  change(kind, target, input);
  const safetensors::EncodedPatch encoded = safetensors::encode_patch(
      kind.dtype, kind.shape, base, target, {.set_values = set_values, .base = {}, .target = {}});
  fuzz::require((encoded.changed == 0) == (base == target), "equal tensors have no record");
  if (encoded.changed == 0) return 0;
  const NaivePatch first(encoded.record, encoded.values, kind.stored());
  fuzz::require(first.is_valid() && first.is_base(base), "the reference reads the record");
  fuzz::require(first.applied(base) == target, "the record makes the target of the base");
  check_applying(encoded.record, encoded.values, kind, base);
  const PatchRecord whole(encoded.record, encoded.values, kind.stored(), kAlgorithm);
  fuzz::require(whole.check(target) == PatchState::kApplied, "a second application is noticed");

  PatchBytes record = encoded.record;
  PatchBytes values = encoded.values;
  for (unsigned i = input.below(4) + 1; i != 0; --i) {
    switch (input.below(4)) {
      case 0:
        mutate(values, input);
        break;
      case 1:
        mutate_head(record, input);
        break;
      default:
        mutate(record, input);
    }
  }
  record.shrink_to_fit();  // so that a sanitizer sees what lies behind
  values.shrink_to_fit();
  test::seal(record, values);
  const std::string outcome =
      test::outcome_of([&] { (void)PatchRecord(record, values, kind.stored(), kAlgorithm); });
  const NaivePatch naive(record, values, kind.stored());
  if (record.size() >= 96 && record[8] != std::byte{2}) return 0;  // not of blocks any more
  fuzz::require(outcome == (naive.is_valid() ? "ok" : "kInvalidPatch"),
                "valid by the reference, too: " + outcome);
  if (!naive.is_valid()) return 0;
  check_applying(record, values, kind, base);
  if (naive.units() * naive.unit() != base.size()) return 0;
  check_applying(naive.rebased(base), values, kind, base);
  return 0;
}
