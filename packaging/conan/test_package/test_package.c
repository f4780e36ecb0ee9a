/* Opens the file that test_package wrote. */
#include <safetensors/safetensors.h>
#include <stdio.h>

int main(int argc, char** argv) {
  safetensors_error error;
  safetensors_file* file;
  (void)argc;
  if (safetensors_open(SAFETENSORS_TEXT(argv[1]), NULL, &file, &error) != SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  printf("C: %d tensor\n", (int)safetensors_count(file));
  safetensors_close(file);
  return 0;
}
