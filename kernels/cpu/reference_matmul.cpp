#include <cstddef>

#include "kernels/cpu/reference.h"

namespace troupe::kernels::reference {

Doubles matmul(const Doubles& x, const Doubles& w, std::int64_t m, std::int64_t n, std::int64_t k) {
  Doubles y(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < k; ++c)
        sum += x[static_cast<std::size_t>(i * k + c)] * w[static_cast<std::size_t>(j * k + c)];
      y[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return y;
}

}  // namespace troupe::kernels::reference
