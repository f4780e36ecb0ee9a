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

/* Converts in place: BF16 is the upper half of an F32, rounded to nearest, ties to even. */
static void convert(unsigned char* bytes, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    const unsigned char* f = bytes + 4 * i;
    uint32_t bits =
        (uint32_t)f[0] | (uint32_t)f[1] << 8 | (uint32_t)f[2] << 16 | (uint32_t)f[3] << 24;
    if ((bits & 0x7FFFFFFF) > 0x7F800000) {
      bits |= 0x400000; /* a NaN stays one */
    } else {
      bits += 0x7FFF + (bits >> 16 & 1);
    }
    bytes[2 * i] = (unsigned char)(bits >> 16);
    bytes[2 * i + 1] = (unsigned char)(bits >> 24);
  }
}

/* Writes one tensor. Returns false after an error. */
static int write_one(safetensors_writer* writer, const safetensors_file* from,
                     const safetensors_tensor* tensor) {
  const size_t nbytes = (size_t)tensor->nbytes;
  unsigned char* bytes;
  int is_written;
  if (tensor->dtype != SAFETENSORS_F32) {
    return safetensors_writer_copy(writer, tensor->name, tensor->name_size, from, tensor, &error) ==
           SAFETENSORS_OK;
  }
  bytes = malloc(nbytes == 0 ? 1 : nbytes);
  if (bytes == NULL) {
    snprintf(error.text, sizeof error.text, "out of memory");
    return 0;
  }
  is_written = safetensors_read(from, tensor, bytes, nbytes, &error) == SAFETENSORS_OK;
  if (is_written) {
    convert(bytes, nbytes / 4);
    is_written = safetensors_writer_write(writer, tensor->name, tensor->name_size, bytes,
                                          nbytes / 2, &error) == SAFETENSORS_OK;
  }
  free(bytes);
  return is_written;
}

/* Writes all tensors. Returns false after an error. */
static int write_all(const safetensors_file* from, safetensors_tensor* specs,
                     safetensors_item* items, const char* to) {
  const size_t count = safetensors_count(from);
  const size_t item_count = safetensors_metadata_count(from);
  safetensors_writer* writer;
  safetensors_tensor tensor;
  int is_written = 1;
  size_t i;
  for (i = 0; i < count; ++i) {
    if (safetensors_at(from, i, &specs[i], &error) != SAFETENSORS_OK) return 0;
    if (specs[i].dtype == SAFETENSORS_F32) specs[i].dtype = SAFETENSORS_BF16;
  }
  for (i = 0; i < item_count; ++i) {
    if (safetensors_metadata_at(from, i, &items[i], &error) != SAFETENSORS_OK) return 0;
  }
  if (safetensors_writer_create(to, specs, count, item_count == 0 ? NULL : items, item_count, 0,
                                &writer, &error) != SAFETENSORS_OK) {
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
  safetensors_file* from;
  safetensors_tensor* specs;
  safetensors_item* items;
  int is_written = 0;
  if (argc != 3) {
    fprintf(stderr, "usage: %s FROM TO\n", argv[0]);
    return 2;
  }
  if (safetensors_open(argv[1], SAFETENSORS_PREAD, &from, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  specs = malloc((safetensors_count(from) + 1) * sizeof *specs);
  items = malloc((safetensors_metadata_count(from) + 1) * sizeof *items);
  if (specs == NULL || items == NULL) {
    fprintf(stderr, "out of memory\n");
  } else {
    is_written = write_all(from, specs, items, argv[2]);
    if (!is_written) fprintf(stderr, "%s\n", error.text);
  }
  free(specs);
  free(items);
  safetensors_close(from);
  return is_written ? 0 : 1;
}
