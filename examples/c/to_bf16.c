/* Rewrites a file with its F32 tensors as BF16. One tensor at a time is in memory; the others are
 * copied from file to file.
 *
 *   to_bf16 FROM TO
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors/safetensors.h"

static safetensors_error error;

/* Writes one tensor. Returns false after an error. */
static int write_one(safetensors_writer* writer, const safetensors_file* from,
                     const safetensors_tensor* tensor) {
  safetensors_request request;
  int is_written;
  if (tensor->dtype != SAFETENSORS_F32) {
    return safetensors_writer_copy(writer, tensor->name, tensor->name_size, from, tensor, &error) ==
           SAFETENSORS_OK;
  }
  memset(&request, 0, sizeof request);
  request.tensor = tensor;
  request.dtype = SAFETENSORS_BF16;
  request.room = tensor->nbytes / 2;
  request.to = malloc(request.room == 0 ? 1 : (size_t)request.room);
  if (request.to == NULL) {
    snprintf(error.text, sizeof error.text, "out of memory");
    return 0;
  }
  is_written = safetensors_read(from, &request, 1, NULL, &error) == SAFETENSORS_OK &&
               safetensors_writer_write(writer, tensor->name, tensor->name_size, 0, request.to,
                                        request.room, &error) == SAFETENSORS_OK;
  free(request.to);
  return is_written;
}

/* Writes all tensors. Returns false after an error. */
static int write_all(const safetensors_file* from, safetensors_tensor* specs,
                     safetensors_item* items, size_t item_count, const char* to) {
  const size_t count = safetensors_count(from);
  safetensors_save_options options;
  safetensors_writer* writer;
  safetensors_tensor tensor;
  int is_written = 1;
  size_t i;
  for (i = 0; i < count; ++i) {
    if (safetensors_at(from, i, &specs[i], &error) != SAFETENSORS_OK) return 0;
    if (specs[i].dtype == SAFETENSORS_F32) specs[i].dtype = SAFETENSORS_BF16;
  }
  for (i = 0; i < item_count; ++i) {
    if (safetensors_metadata_at(from, 0, i, &items[i], &error) != SAFETENSORS_OK) return 0;
  }
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.metadata = item_count == 0 ? NULL : items;
  options.metadata_count = item_count;
  if (safetensors_writer_create(SAFETENSORS_TEXT(to), specs, count, &options, &writer, &error) !=
      SAFETENSORS_OK) {
    return 0;
  }
  for (i = 0; i < count && is_written; ++i) {
    is_written = safetensors_at(from, i, &tensor, &error) == SAFETENSORS_OK &&
                 write_one(writer, from, &tensor);
  }
  is_written = is_written && safetensors_writer_commit(writer, &error) == SAFETENSORS_OK;
  safetensors_writer_free(writer); /* before a commit, removes what was written */
  return is_written;
}

int main(int argc, char** argv) {
  safetensors_options options;
  safetensors_file* from;
  safetensors_file_info info;
  safetensors_tensor* specs;
  safetensors_item* items;
  int is_written = 0;
  if (argc != 3) {
    fprintf(stderr, "usage: %s FROM TO\n", argv[0]);
    return 2;
  }
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.backend = SAFETENSORS_PREAD;
  if (safetensors_open(SAFETENSORS_TEXT(argv[1]), &options, &from, &error) != SAFETENSORS_OK ||
      safetensors_file_at(from, 0, &info, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  specs = malloc((safetensors_count(from) + 1) * sizeof *specs);
  items = malloc((info.metadata_count + 1) * sizeof *items);
  if (specs == NULL || items == NULL) {
    fprintf(stderr, "out of memory\n");
  } else {
    is_written = write_all(from, specs, items, info.metadata_count, argv[2]);
    if (!is_written) fprintf(stderr, "%s\n", error.text);
  }
  free(specs);
  free(items);
  safetensors_close(from);
  return is_written ? 0 : 1;
}
