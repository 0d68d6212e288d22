#include "generate/request.h"

namespace troupe::generate {

std::string_view to_string(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kAborted:
      return "aborted";
    case Finish::kError:
      return "error";
  }
  return "unknown";
}

Prefix prefix_of(const Completion& completion) {
  return {completion.ids, completion.logprobs, completion.versions, completion.kv_oldest};
}

}  // namespace troupe::generate
