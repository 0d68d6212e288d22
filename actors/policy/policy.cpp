#include "actors/policy/policy.h"

#include "data/chat_source.h"
#include "kernels/device_memory.h"
#include "model/kv_cache.h"
#include "model/load.h"
#include "model/spec.h"

namespace troupe::actors {
namespace {

Result<model::ModelSpec> spec_of(const PolicyOptions& options, const data::Tokenizer& tokenizer, const data::PromptFormat& format) {
  if (!options.model_path.empty()) {
    TROUPE_TRY(auto spec, model::load_spec(options.model_path));
    if (model::is_description(options.model_path)) spec.eos_ids.assign(format.stop_ids().begin(), format.stop_ids().end());
    return spec;
  }
  model::DecoderSizes sizes = options.sizes;
  if (sizes.vocab_size == 0) sizes.vocab_size = tokenizer.vocab_size();
  TROUPE_TRY(auto spec, model::spec_from_sizes(options.family, sizes));
  spec.eos_ids.assign(format.stop_ids().begin(), format.stop_ids().end()); // an export says where its replies end
  return spec;
}

Result<model::Model> model_of(const PolicyOptions& options, const data::Tokenizer& tokenizer, const data::PromptFormat& format, bool weights) {
  if (weights && !options.model_path.empty() && !model::is_description(options.model_path)) return model::load_model(options.model_path);
  TROUPE_TRY(const auto spec, spec_of(options, tokenizer, format));
  return weights ? model::Model::create(spec, options.seed) : model::Model::zeros(spec);
}

// What the release says ends a reply, beside its template.
Result<std::vector<std::int32_t>> end_ids(const PolicyOptions& options) {
  if (options.model_path.empty() || model::is_description(options.model_path)) return std::vector<std::int32_t>{}; // fresh: the format says
  TROUPE_TRY(const auto spec, model::configured_spec(options.model_path));
  return std::vector<std::int32_t>(spec.eos_ids.begin(), spec.eos_ids.end());
}

// A GPU that is asked for must be there before anything is loaded, not in the middle of a step.
Status check_device(const tensor::Backends& backends) {
  const tensor::BackendRow* row = tensor::first_on_cuda(backends);
  if (row == nullptr) return {};
  const auto& gpu = kernels::device();
  if (gpu) return {};
  const char* value = backends.*row->member == tensor::Backend::kCuda ? "cuda" : "check:cuda";
  return fail(gpu.error().code, std::string("kernels.") + row->key + " = \"" + value + "\" needs a GPU that this machine does not have: " +
                                    gpu.error().message + "; hint: use \"cpu\"");
}

} // namespace

Result<Policy> load_policy(const PolicyOptions& options, bool weights) {
  TROUPE_TRY_STATUS(check_device(options.backends));
  TROUPE_TRY(auto tokenizer, data::Tokenizer::load(options.tokenizer_folder));
  TROUPE_TRY(auto source, data::find_chat_template(options.tokenizer_folder, ""));
  data::FormatSource from{options.format, std::move(source.jinja), {}};
  TROUPE_TRY(from.end_ids, end_ids(options));
  TROUPE_TRY(auto format, data::PromptFormat::create(from, tokenizer));
  TROUPE_TRY(auto model, model_of(options, tokenizer, format, weights));
  if (options.drafts && !model::can_guess(model.spec()))
    return fail(ErrorCode::kInvalidArgument, "rollout.draft_tokens needs a model with a block for further tokens (MTP); " +
                                                 (options.model_path.empty() ? "one of the family " + options.family : options.model_path) + " has none");
  model.set_precision(options.precision);
  model.set_backends(options.backends);
  TROUPE_TRY_STATUS(model::check_vocabulary(model.spec(), tokenizer.vocab_size(), options.tokenizer_folder));
  return Policy{std::move(tokenizer), std::move(format), std::move(model)};
}

} // namespace troupe::actors
