// Symbol visibility: a shared library exports only what SAFETENSORS_API marks.
#pragma once

#if defined(SAFETENSORS_STATIC)
#define SAFETENSORS_API
#elif defined(_WIN32)
#if defined(SAFETENSORS_BUILDING)
#define SAFETENSORS_API __declspec(dllexport)
#else
#define SAFETENSORS_API __declspec(dllimport)
#endif
#else
#define SAFETENSORS_API __attribute__((visibility("default")))
#endif
