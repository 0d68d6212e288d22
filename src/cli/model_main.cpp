#include "cli/model_main.h"

#include <cstdio>

namespace troupe::cli {

void add_model_arguments(CLI::App& app, ModelArguments& a) {
  app.add_option("model", a.path, "Hugging Face folder or .gguf file")->type_name("DIR|FILE")->required();
  app.add_option("--format", a.format, "How conversations are written: auto (the model's own template, else chatml, else plain), template, chatml, plain")
      ->check(CLI::IsMember({"auto", "template", "chatml", "plain"}))
      ->capture_default_str();
  app.add_option("--dtype", a.dtype, "Of the operands of matrix products")->check(CLI::IsMember({"float32", "bfloat16"}))->capture_default_str();
  app.add_option("--threads", a.threads, "Of the arithmetic; 0: as many as there are")->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_option("--kv-cache", a.kv_cache, "Memory of the KV cache")->type_name("BYTES")->capture_default_str();
  app.add_option("--context", a.context, "Tokens of prompt and reply at most; 0: what the model was made for")->check(CLI::Range(0, 1 << 24))->capture_default_str();
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

Result<serve::ServedModel> load(const ModelArguments& a) {
  TROUPE_TRY(auto model, serve::load_served_model(a.path, a.format));
  if (a.dtype == "bfloat16") model.model.set_precision(kernels::Precision::kBfloat16);
  std::fprintf(stderr, "troupe: conversations are written in %s\n", model.origin.c_str());
  return model;
}

int report(const Error& error, int code) {
  std::fprintf(stderr, "troupe: error: %s\n", error.to_string().c_str());
  return code;
}

Status resolve(ModelArguments& a) {
  auto bytes = parse_bytes(a.kv_cache);
  if (!bytes) return fail(ErrorCode::kInvalidArgument, bytes.error().message, "--kv-cache");
  a.engine.kv_memory = *bytes;
  a.engine.context_tokens = a.context;
  a.engine.reuse_prefixes = true; // conversations go on from their last turn
  return {};
}

} // namespace troupe::cli
