// Each REFUSED case must fail to compile: the result would outlive its owner. 0 must compile.
#include <string_view>
#include <vector>

#include "safetensors/safetensors.hpp"

using safetensors::SafeOpen;

std::size_t use(const SafeOpen& file);

std::size_t use(const SafeOpen& file) {
#if REFUSED == 0
  const auto view = file.get_tensor("a");
  return view.bytes().size() + view.writable_bytes().size() + view.data<float>().size() +
         file.keys().size() + file.header().size() + file.at("a").shape.size() +
         (file.find("a") != nullptr ? 1U : 0U) + file.path().native().size() +
         file.metadata().size() + file.get_slice("a", {}).nbytes() +
         file.get_tensor("a").slice({})->nbytes() + file.get_tensor("a").nbytes();
#elif REFUSED == 1
  return file.get_tensor("a").bytes().size();
#elif REFUSED == 2
  return file.get_tensor("a").data<float>().size();
#elif REFUSED == 3
  return file.get_tensor("a").writable_bytes().size();
#elif REFUSED == 4
  return SafeOpen("f").keys().size();
#elif REFUSED == 5
  return SafeOpen("f").header().size();
#elif REFUSED == 6
  return SafeOpen("f").at("a").shape.size();
#elif REFUSED == 7
  return SafeOpen("f").find("a")->shape.size();
#elif REFUSED == 8
  return SafeOpen("f").path().native().size();
#elif REFUSED == 9
  return SafeOpen("f").metadata().size();
#elif REFUSED == 10
  return file.get_slice("a", {}).data<float>().size();
#elif REFUSED == 11
  return safetensors::open_model("f").at("a").info->nbytes();
#elif REFUSED == 12
  const auto views = [&] { return file.get_tensors(); };
  return static_cast<safetensors::TensorView&&>(views().front()).bytes().size();
#endif
}
