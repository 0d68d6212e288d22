// Compiled with -mavx2: nothing here runs before base/hash.cpp has looked at the processor.
#include "base/hash_kernels.inl"

namespace troupe::hash_kernels {

Functions avx2() { return functions(); }

} // namespace troupe::hash_kernels
