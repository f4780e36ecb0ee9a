/* Lists a model, which is a file, an index or a folder: one line for each tensor, then the metadata
 * of each file.
 *
 *   list_file PATH
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
  safetensors_file_info info;
  uint32_t number;
  size_t i;
  if (argc != 2) {
    fprintf(stderr, "usage: %s PATH\n", argv[0]);
    return 2;
  }
  if (safetensors_open_model(SAFETENSORS_TEXT(argv[1]), NULL, &file, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  for (i = 0; i < safetensors_count(file); ++i) {
    safetensors_tensor tensor;
    if (safetensors_at(file, i, &tensor, &error) != SAFETENSORS_OK) break;
    show_tensor(&tensor);
  }
  for (number = 0; error.code == SAFETENSORS_OK && number < safetensors_file_count(file);
       ++number) {
    if (safetensors_file_at(file, number, &info, &error) != SAFETENSORS_OK) break;
    for (i = 0; i < info.metadata_count; ++i) {
      safetensors_item item;
      if (safetensors_metadata_at(file, number, i, &item, &error) != SAFETENSORS_OK) break;
      printf("%s = %s\n", item.key, item.value);
    }
  }
  if (error.code != SAFETENSORS_OK) fprintf(stderr, "%s\n", error.text);
  safetensors_close(file);
  return error.code != SAFETENSORS_OK;
}
