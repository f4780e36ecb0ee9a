/* The weight layer's C interface as a user has it: opens the file that main.c saves, and decodes
 * it. */
#include <safetensors/weights.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static safetensors_error error;

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "failed: %s (%s)\n", what, error.text);
  exit(1);
}

int main(int argc, char** argv) {
  safetensors_weights* model = NULL;
  safetensors_weights_info info;
  safetensors_weight weight;
  safetensors_buffer* buffer = NULL;
  safetensors_bytes bytes;
  safetensors_value value;
  float row[3];
  check(argc == 2, "usage: consumer_c_weights FILE");
  check(safetensors_weights_open(SAFETENSORS_TEXT(argv[1]), NULL, &model, &error) == SAFETENSORS_OK,
        "weights_open");
  check(safetensors_weights_look(model, &info, &error) == SAFETENSORS_OK &&
            info.format == SAFETENSORS_FORMAT_HF,
        "weights_look");
  check(safetensors_weights_find(model, SAFETENSORS_TEXT("weight"), &weight, &error) ==
                SAFETENSORS_OK &&
            weight.rank == 2 && strcmp(weight.type_name, "F32") == 0,
        "weights_find");
  check(safetensors_weights_decode(model, weight.name, weight.name_size, 1, SAFETENSORS_ALL_ROWS,
                                   SAFETENSORS_F32, row, sizeof row, NULL,
                                   &error) == SAFETENSORS_OK &&
            row[0] == 4.0F && row[2] == 6.0F,
        "weights_decode");
  check(safetensors_weights_metadata(model, SAFETENSORS_TEXT("format"), &value, &error) ==
                SAFETENSORS_OK &&
            value.kind == SAFETENSORS_VALUE_STRING && strcmp(value.string, "pt") == 0,
        "weights_metadata");
  check(safetensors_weights_get(model, weight.name, weight.name_size, NULL, &buffer, &error) ==
            SAFETENSORS_OK,
        "weights_get");
  safetensors_weights_close(model);
  check(safetensors_buffer_bytes(buffer, &bytes, &error) == SAFETENSORS_OK &&
            bytes.nbytes == 6 * sizeof(float) && ((const float*)bytes.data)[5] == 6.0F,
        "a buffer that outlives its model");
  safetensors_buffer_free(buffer);
  puts("consumer: the C interface of the weight layer works");
  return 0;
}
