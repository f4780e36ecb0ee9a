safetensors_find_headers(rapidjson
  HEADER rapidjson/reader.h
  SUBFOLDER include
  GIT_REPOSITORY https://github.com/Tencent/rapidjson.git
  GIT_TAG 24b5e7a8b27f42fa16b96fc70aade9106cf7102f)
