// What _PatchRecord and _PatchChange have in common: both have a PatchRecord.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fast_def.hpp"
#include "gil.hpp"

namespace safetensors::python {

[[nodiscard]] inline std::vector<std::uint64_t> dims_of(py::handle shape) {
  std::vector<std::uint64_t> dims;
  for (const py::handle each : py::iter(shape)) dims.push_back(size_of(each, "shape"));
  return dims;
}

[[nodiscard]] inline DigestAlgorithm algorithm_of(std::string_view text) {
  for (const DigestAlgorithm each : {DigestAlgorithm::kXxh3_128, DigestAlgorithm::kSha256}) {
    if (text == name(each)) return each;
  }
  fail(ErrorCode::kInvalidArgument,
       "algorithm " + std::string(text) + " is not xxh3-128 or sha256");
}

[[nodiscard]] inline std::string_view state_name(PatchState state) noexcept {
  return state == PatchState::kBase ? "base" : "applied";
}

[[nodiscard]] inline py::object to_text(const std::optional<Digest>& digest) {
  return digest ? py::object(to_str(digest->text())) : py::none();
}

[[nodiscard]] inline py::dict codes_of(const PatchCodes& codes) {
  py::dict dict;
  const auto add = [&](const char* code, std::uint64_t count) {
    if (count != 0) dict[code] = to_int(count);
  };
  add("same", codes.same);
  add("gap8", codes.gap8);
  add("pos16", codes.pos16);
  add("bitmap", codes.bitmap);
  add("runs", codes.runs);
  add("set", codes.set);
  add("add8", codes.add8);
  return dict;
}

inline void write_positions(const PatchRecord& record, py::handle out) {
  const WritableBuffer view(out);
  const std::span<std::int64_t> to = view.values<std::int64_t>();
  const GilRelease release;
  record.positions(to);
}

inline void write_new_values(const PatchRecord& record, py::handle base, py::handle out) {
  const WritableBuffer view(out);
  std::optional<BufferView> bytes;
  if (!base.is_none()) bytes.emplace(base, "base");
  const std::span<const std::byte> old_bytes =
      bytes ? bytes->bytes() : std::span<const std::byte>();
  const GilRelease release;
  record.new_units(old_bytes, view.bytes());
}

/// Adds what a record says to a class whose objects have one.
template <typename Type>
void add_record(Class<Type>& type) {
  type.property("kind", [](const Type& self) { return to_str(name(self.record().kind())); })
      .property("unit", [](const Type& self) { return self.record().unit(); })
      .property("base", [](const Type& self) { return to_text(self.record().base()); })
      .property("target", [](const Type& self) { return to_text(self.record().target()); })
      .property("codes", [](const Type& self) { return codes_of(self.record().codes()); })
      .method(
          "positions",
          [](const Type& self, py::handle out) { write_positions(self.record(), out); },
          py::arg("out"), "positions(out)\n--\n\nWrites the numbers of the changed units as int64.")
      .method(
          "new_values",
          [](const Type& self, py::handle base, py::handle out) {
            write_new_values(self.record(), base, out);
          },
          py::arg("base"), py::arg("out"),
          "new_values(base, out)\n--\n\nWrites the new units at these positions.");
}

}  // namespace safetensors::python
