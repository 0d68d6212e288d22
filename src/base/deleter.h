/// @file
/// Objects of C libraries in std::unique_ptr.
#pragma once

namespace troupe {

/// Calls the library's own function: `std::unique_ptr<addrinfo, Deleter<::freeaddrinfo>>`.
template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

} // namespace troupe
