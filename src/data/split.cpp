#include "data/split.h"

#include "base/hash.h"

namespace troupe::data {

Split split_of(std::string_view text, double eval_fraction) {
  constexpr std::uint64_t kSalt = 0x73706C6974; // its own hash, unrelated to any other use of the text
  const double position = static_cast<double>(hash64(text, kSalt) >> 11) * 0x1p-53;
  return position < eval_fraction ? Split::kEval : Split::kTrain;
}

} // namespace troupe::data
