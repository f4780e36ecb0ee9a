/* Prints the floats of one F32 tensor of GPT-2, on any machine. read_gpt2_by_hand.c does the same
 * without the library.
 *
 *   read_gpt2 FILE [NAME]    default NAME: h.4.ln_1.bias
 */
#include <stdio.h>
#include <string.h>

#include "safetensors/safetensors.h"

/* Returns float number i of an array of little-endian bytes, which need not be aligned. */
static float float_at(const void* bytes, size_t i) {
  const unsigned char* b = (const unsigned char*)bytes + 4 * i;
  const uint32_t bits =
      (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

int main(int argc, char** argv) {
  const char* name = argc == 3 ? argv[2] : "h.4.ln_1.bias";
  safetensors_error error;
  safetensors_file* file;
  safetensors_tensor tensor;
  size_t i;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: %s FILE [NAME]\n", argv[0]);
    return 2;
  }
  if (safetensors_open(SAFETENSORS_TEXT(argv[1]), NULL, &file, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  if (safetensors_find(file, SAFETENSORS_TEXT(name), &tensor, &error) != SAFETENSORS_OK ||
      tensor.dtype != SAFETENSORS_F32 || tensor.data == NULL) {
    fprintf(stderr, "%s\n", error.text[0] ? error.text : "not a mapped tensor of F32");
    safetensors_close(file);
    return 1;
  }
  for (i = 0; i < tensor.nbytes / sizeof(float); ++i) printf("%.9g\n", float_at(tensor.data, i));
  safetensors_close(file);
  return 0;
}
