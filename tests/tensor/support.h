/// @file
/// Compares our operations with LibTorch's own in float64, value and gradients.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tensor/autograd.h"

namespace troupe::tensor::test {

using Inputs = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Inputs&)>;

/// max |a - b| / max |b|.
inline double relative(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.detach().to(at::kDouble);
  return (wide - b.detach()).abs().max().item<double>() / std::max(b.detach().abs().max().item<double>(), 1e-12);
}

inline Inputs leaves(const Inputs& inputs, at::ScalarType type) {
  Inputs result;
  for (const at::Tensor& x : inputs) result.push_back(x.detach().to(type).clone().set_requires_grad(true));
  return result;
}

/// `ours` in float32 against `reference` in float64, for the same inputs and the same random output gradient.
inline void expect_same(const Inputs& inputs, const Function& ours, const Function& reference,
                        double tolerance = 2e-5) {
  const Inputs narrow = leaves(inputs, at::kFloat);
  const Inputs wide = leaves(inputs, at::kDouble);
  const at::Tensor y = ours(narrow);
  const at::Tensor right = reference(wide);
  ASSERT_EQ(y.sizes(), right.sizes());
  EXPECT_LT(relative(y, right), tolerance);
  const at::Tensor seed = at::randn(y.sizes());
  backward(std::array{y}, std::array{seed});
  backward(std::array{right}, std::array{seed.to(at::kDouble)});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(narrow[i].grad().defined()) << "input " << i;
    EXPECT_LT(relative(narrow[i].grad(), wide[i].grad()), tolerance) << "input " << i;
  }
  const NoGrad no_grad;  // what is not recorded has the same bits
  Inputs copies;
  for (const at::Tensor& x : narrow) copies.push_back(x.detach().clone());
  EXPECT_TRUE(at::equal(ours(copies), y));
}

}  // namespace troupe::tensor::test
