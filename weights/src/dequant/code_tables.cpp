#include "dequant/code_tables.hpp"

#include "safetensors/to_float.hpp"

namespace safetensors::weights {
namespace {

constexpr CodeTable table_of(float (*value_of)(std::uint8_t)) noexcept {
  CodeTable table{};
  for (unsigned code = 0; code < 256; ++code) {
    table.values[code] = value_of(static_cast<std::uint8_t>(code));
  }
  return table;
}

}  // namespace

constinit const CodeTable kE4M3Values = table_of(f8_e4m3_to_float);
constinit const CodeTable kE5M2Values = table_of(f8_e5m2_to_float);
constinit const CodeTable kE4M3FnuzValues = table_of(f8_e4m3fnuz_to_float);
constinit const CodeTable kE5M2FnuzValues = table_of(f8_e5m2fnuz_to_float);
constinit const CodeTable kE8M0Values = table_of(f8_e8m0_to_float);

}  // namespace safetensors::weights
