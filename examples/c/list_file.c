/* Lists a file: one line for each tensor, then the metadata.
 *
 *   list_file FILE
 */
#include <inttypes.h>
#include <stdio.h>

#include "safetensors/safetensors.h"

static void show_tensor(const safetensors_tensor* tensor) {
  size_t axis;
  printf("%s %s [", tensor->name, safetensors_dtype_name(tensor->dtype));
  for (axis = 0; axis < tensor->rank; ++axis) {
    printf(axis == 0 ? "%" PRIu64 : ", %" PRIu64, tensor->shape[axis]);
  }
  printf("] %" PRIu64 " bytes\n", tensor->nbytes);
}

int main(int argc, char** argv) {
  safetensors_error error;
  safetensors_file* file;
  size_t i;
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  if (safetensors_open(argv[1], SAFETENSORS_MMAP, &file, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  for (i = 0; i < safetensors_count(file); ++i) {
    safetensors_tensor tensor;
    if (safetensors_at(file, i, &tensor, NULL) == SAFETENSORS_OK) show_tensor(&tensor);
  }
  for (i = 0; i < safetensors_metadata_count(file); ++i) {
    safetensors_item item;
    if (safetensors_metadata_at(file, i, &item, NULL) == SAFETENSORS_OK) {
      printf("%s = %s\n", item.key, item.value);
    }
  }
  safetensors_close(file);
  return 0;
}
