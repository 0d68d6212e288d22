#include "kernels/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace troupe::kernels {
namespace {

constexpr const char* kFileName = "libtroupe_cuda.so";
constexpr const char* kPathVariable = "TROUPE_CUDA_LIBRARY";

std::string folder_of_this_executable() {
  std::array<char, 4096> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return ".";
  const std::string file(path.data(), static_cast<std::size_t>(length));
  return file.substr(0, file.rfind('/'));
}

template <class F>
bool find(void* handle, const char* name, F** entry) {
  *entry = reinterpret_cast<F*>(dlsym(handle, name));
  return *entry != nullptr;
}

std::string loader_text() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

}  // namespace

Result<CudaLibrary> open_cuda_library(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: CUDA does not survive it
  if (handle == nullptr) return fail(ErrorCode::kUnavailable, "the GPU kernels could not be loaded: " + loader_text());
  CudaLibrary library;
  library.path = path;
  bool complete = find(handle, "troupe_cuda_abi_version", &library.abi_version) &&
                  find(handle, "troupe_cuda_device_count", &library.device_count) &&
                  find(handle, "troupe_cuda_nccl_version", &library.nccl_version) &&
                  find(handle, "troupe_cuda_torch_devices", &library.torch_devices);
#define TROUPE_ENTRY(name, Args) complete = complete && find(handle, "troupe_cuda_" #name, &library.name);
  TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
  TROUPE_CUDA_CALLS(TROUPE_ENTRY)
  TROUPE_CUDA_MEMORY(TROUPE_ENTRY)
#undef TROUPE_ENTRY
  if (!complete || library.abi_version() != kCudaAbiVersion) {
    return fail(ErrorCode::kCorrupt, path + " belongs to another build of troupe: build troupe_cuda again");
  }
  return library;
}

const Result<CudaLibrary>& cuda_library() {
  static const Result<CudaLibrary> library = []() -> Result<CudaLibrary> {
    if (const char* named = std::getenv(kPathVariable); named != nullptr && *named != '\0') return open_cuda_library(named);
    const std::string path = folder_of_this_executable() + "/" + kFileName;
    if (access(path.c_str(), R_OK) != 0) {
      return fail(ErrorCode::kNotFound,
                  "this build has no GPU kernels: " + path +
                      " does not exist; configure with -DTROUPE_CUDA=ON where nvcc 13 is installed");
    }
    return open_cuda_library(path);
  }();
  return library;
}

}  // namespace troupe::kernels
