#include "safetensors/error.hpp"

namespace safetensors {

Error::~Error() = default;

void fail(ErrorCode code, const std::string& message, int os_error) {
  throw Error(code, message, os_error);
}

}  // namespace safetensors
