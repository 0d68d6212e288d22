#include "base/hash_kernels.inl"

namespace troupe::hash_kernels {

Functions baseline() { return functions(); }

} // namespace troupe::hash_kernels
