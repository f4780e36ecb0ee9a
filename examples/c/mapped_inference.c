/* Computes a step of GPT-2 directly on the mapped file: the embedding of a token, then the first
 * layer's mlp.c_fc. No weight is copied, and only one row of the embeddings is read. All processes
 * that do this share one copy of the file, in the page cache.
 *
 *   mapped_inference FILE [TOKEN]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "safetensors/safetensors.h"

static safetensors_error error;

/* Returns the tensor's elements in place. Returns NULL if the dtype differs, or if the elements are
 * not aligned, which the format does not require. For little-endian machines only. */
static const float* floats(const safetensors_tensor* tensor) {
  if (tensor->dtype != SAFETENSORS_F32 || tensor->data == NULL) return NULL;
  if ((uintptr_t)tensor->data % sizeof(float) != 0) return NULL;
  return (const float*)tensor->data;
}

/* y = x W + b, where W is [inputs, outputs]. */
static void linear(const float* x, const float* weight, const float* bias, size_t inputs,
                   size_t outputs, float* y) {
  size_t i, o;
  for (o = 0; o < outputs; ++o) y[o] = bias[o];
  for (i = 0; i < inputs; ++i) {
    for (o = 0; o < outputs; ++o) y[o] += x[i] * weight[i * outputs + o];
  }
}

static int32_t find(const safetensors_file* file, const char* name, safetensors_tensor* tensor) {
  return safetensors_find(file, SAFETENSORS_TEXT(name), tensor, &error);
}

static int run(const safetensors_file* file, int64_t token) {
  safetensors_tensor embeddings, row, weight, bias;
  safetensors_index index = {SAFETENSORS_ONE, 0, 0, 0, 0};
  uint64_t row_shape[3];
  size_t inputs, outputs, o;
  float* y;
  index.start = token;
  if (find(file, "wte.weight", &embeddings) != SAFETENSORS_OK ||
      safetensors_slice(file, &embeddings, &index, 1, row_shape, &row, &error) != SAFETENSORS_OK ||
      find(file, "h.0.mlp.c_fc.weight", &weight) != SAFETENSORS_OK ||
      find(file, "h.0.mlp.c_fc.bias", &bias) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  /* The library has checked each tensor; the program must check that they fit together. */
  if (floats(&row) == NULL || floats(&weight) == NULL || floats(&bias) == NULL || row.rank != 1 ||
      weight.rank != 2 || bias.rank != 1 || weight.shape[0] != row.shape[0] ||
      weight.shape[1] != bias.shape[0]) {
    fprintf(stderr, "these are not the weights of a GPT-2 in F32\n");
    return 1;
  }
  inputs = (size_t)weight.shape[0];
  outputs = (size_t)weight.shape[1];
  y = malloc(outputs * sizeof *y);
  if (y == NULL) {
    fprintf(stderr, "out of memory\n");
    return 1;
  }
  linear(floats(&row), floats(&weight), floats(&bias), inputs, outputs, y);
  for (o = 0; o < outputs; ++o) printf("%.6g\n", y[o]);
  free(y);
  return 0;
}

int main(int argc, char** argv) {
  safetensors_file* file;
  int status;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: %s FILE [TOKEN]\n", argv[0]);
    return 2;
  }
  if (safetensors_open(SAFETENSORS_TEXT(argv[1]), NULL, &file, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  status = run(file, argc == 3 ? strtol(argv[2], NULL, 10) : 42);
  safetensors_close(file);
  return status;
}
