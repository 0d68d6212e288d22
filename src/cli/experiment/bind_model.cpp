// [run], [model], [tokenizer], [task], [data]
#include "cli/experiment/bindings.h"

namespace troupe::experiment {

void bind_run(config::Section& s, RunSection& o) {
  s.field("name", o.name, "Name of the run; empty: the stem of the first config file.");
  s.field("dir", o.dir,
          "Folder of everything the run writes; empty: runs/<name>. A folder that holds a run is refused, not "
          "overwritten.");
  s.field("seed", o.seed, "Seed of everything random: fresh weights, order of data, problems, sampling.");
  s.field("resume", o.resume, "Continue from the newest checkpoint in the run's folder.");
}

namespace {

void bind_sizes(config::Section& s, model::DecoderSizes& o) {
  s.field("vocab_size", o.vocab_size, "Rows of the embedding; 0 = as many as the tokenizer has ids.")
      .min(0)
      .max(1 << 24);
  s.field("width", o.width, "Width of the residual stream, D.").min(0).max(1 << 20);
  s.field("layers", o.layers, "Decoder layers.").min(0).max(1 << 16);
  s.field("heads", o.heads, "Query heads, H.").min(0).max(1 << 16);
  s.field("kv_heads", o.kv_heads, "Key and value heads, K; 0 = as many as query heads.").min(0).max(1 << 16);
  s.field("head_dim", o.head_dim, "Width of a head; 0 = width / heads.").min(0).max(1 << 16);
  s.field("ffn_width", o.ffn_width, "Width of the feed-forward part.").min(0).max(1 << 24);
  s.field("context", o.context, "Longest sequence, in tokens.").min(1).max(1 << 24);
  s.field("rope_theta", o.rope_theta, "Base of the rotary frequencies.").above(0);
  s.field("norm_eps", o.norm_eps, "Added to the mean square in norms.").above(0);
  s.field("init_std", o.init_std, "Standard deviation of fresh matrices.").above(0);
  s.field("tied", o.tied, "The output head is the embedding.");
}

void bind_reward_keys(config::Section& s, rl::RewardOptions& o) {
  s.variant({"exact", "number"}, [&] {
    s.field("marker", o.marker,
            "The answer is what follows the last marker on its line; empty: the whole reply (exact), the last number "
            "(number).");
  });
  s.variant({"regex"}, [&] {
    s.field("pattern", o.pattern,
            "PCRE2; the last match counts, its first group is compared with the answer if it has one.");
  });
  s.variant({"exact", "regex"},
            [&] { s.field("ignore_case", o.ignore_case, "ASCII letters compare equal in either case."); });
  s.variant({"number"}, [&] {
    s.field("tolerance", o.tolerance, "Largest accepted difference; 0 = equal as exact numbers.").min(0);
  });
}

void bind_reward_part(config::Section& s, rl::RewardOptions& o) {
  s.choice("type", o.type, {"exact", "number", "regex", "boxed"}, "How the reply is graded.").required();
  s.variant_key("type");
  s.field("weight", o.weight, "Weight in the sum.");
  bind_reward_keys(s, o);
}

void bind_reward(config::Section& s, rl::RewardOptions& o) {
  s.choice("type", o.type, {"exact", "number", "regex", "boxed", "sum"},
           "How replies are graded; sum adds up weighted parts.");
  s.variant_key("type");
  bind_reward_keys(s, o);
  s.variant({"sum"}, [&] { s.list("part", o.parts, bind_reward_part, "The parts of the sum."); });
}

void bind_arithmetic(config::Section& s, data::ArithmeticOptions& o) {
  s.choice("kind", o.kind, {"sums", "word_problems"}, "An expression such as 23+45, or a little story.");
  s.field("operand_min", o.operand_min, "sums: least operand.").min(0);
  s.field("operand_max", o.operand_max, "sums: greatest operand.").min(0);
  s.field("operators", o.operators, "sums: which of + - * occur. Differences are never negative.");
  s.field("question", o.question, "sums: the question; {expr} stands for the expression.");
  s.field("steps_min", o.steps_min, "word_problems: fewest things that happen in the story.").min(1);
  s.field("steps_max", o.steps_max, "word_problems: most things that happen in the story.").min(1);
  s.field("number_max", o.number_max, "word_problems: no number in the story is greater.").min(1);
  s.field("eval_fraction", o.eval_fraction,
          "Part of all problems that belongs to the evaluation split, by hash of the question.")
      .above(0)
      .below(1);
}

void bind_task_file(config::Section& s, data::TaskFileOptions& o) {
  s.field("path", o.path, "The .jsonl file: a prompt and the right answer per line.");
  s.field("prompt_field", o.prompt_field, "The field with the prompt: a string, or a list of {role, content}.");
  s.field("answer_field", o.answer_field, "The field with the answer: a string or a number.");
  s.field("eval_fraction", o.eval_fraction, "Part held out for evaluation, by hash of the prompt.").above(0).below(1);
}

void bind_program(config::Section& s, rl::ProgramTaskOptions& o) {
  s.field("command", o.command, "Program and arguments, started without a shell; it speaks JSON lines.");
  s.field("folder", o.folder, "Its working folder; empty: the environment runner's.");
  s.field("start_deadline", o.start_deadline, "Until it has answered hello.").above(0);
  s.field("restarts", o.restarts, "Failures in a row that are answered with a new process; one more gives up.").min(0);
  s.field("output_limit", o.output_limit, "Longest answer; a longer one kills the program.").min(1024);
  s.field("stderr_tail", o.stderr_tail, "How much of its last stderr goes into error messages and logs.");
}

}  // namespace

void bind_model(config::Section& s, ModelSection& o) {
  s.field("path", o.path, "Hugging Face folder or .gguf file. A config.json: fresh weights of what it describes, of any family. Empty: fresh "
          "weights of the family and sizes below.");
  s.choice("family", o.family, {"llama", "qwen3"}, "Family of a fresh model.");
  bind_sizes(s, o.sizes);
  s.choice("dtype", o.dtype, {"float32", "bfloat16"},
           "What the operands of matrix products and of grouped-query attention are rounded to, in training and generation alike. "
           "Sums, parameters, residual stream, norms, softmax, recurrences and optimizer are float32 either way.");
}

void bind_kernels(config::Section& s, KernelsSection& o) {
  using tensor::Backend;
  using Name = std::pair<std::string_view, Backend>;
  constexpr Name kCpu{"cpu", Backend::kCpu}, kCheck{"check", Backend::kCheck}, kCuda{"cuda", Backend::kCuda},
      kCheckCuda{"check:cuda", Backend::kCheckCuda};
  for (const tensor::BackendRow& row : tensor::kBackendRows) {
    Backend& member = o.*row.member;
    if (row.other == Backend::kCpu)
      s.choice(row.key, member, {kCpu, kCuda, kCheckCuda}, row.what);
    else
      s.choice(row.key, member, {kCpu, {row.other == Backend::kAten ? "aten" : "chunked", row.other}, kCheck, kCuda, kCheckCuda}, row.what);
  }
}

void bind_tokenizer(config::Section& s, TokenizerSection& o) {
  s.choice("type", o.type, {"model", "file", "bpe", "bytes", "characters"},
           "Where the vocabulary comes from: with the model, from a file, or made from scratch (learned merges, the "
           "256 bytes, an alphabet).");
  s.variant_key("type");
  s.choice("format", o.format, {"auto", "template", "chatml", "plain"}, "How conversations become tokens; auto: by the model's own chat template, else chatml where the tokenizer has its tokens, else plain.");
  s.variant({"file"}, [&] {
    s.field("path", o.file.path,
            "A folder with tokenizer.json, a tokenizer.json, a .gguf file, or a .tiktoken rank file.");
    s.field("pattern", o.file.pattern, "Rank files: name of the splitting pattern; empty: from the file's name.");
  });
  s.variant({"bpe"}, [&] {
    s.field("vocab_size", o.vocabulary.size, "Ids below the added tokens.").min(256).max(1 << 20);
    s.field("frequency_min", o.vocabulary.frequency_min, "Pairs seen less often are not merged.").min(1);
    s.field("corpus", o.corpus, "Text files to learn from; empty: problems of the task.");
    s.field("corpus_problems", o.corpus_problems, "How many problems, when there are no files.").min(1).max(1 << 24);
  });
  s.variant({"bpe", "bytes"}, [&] { s.field("pattern", o.vocabulary.pattern, "Name of the splitting pattern."); });
  s.variant({"characters"}, [&] {
    s.field("alphabet", o.vocabulary.alphabet, "Every character that gets an id, in this order.");
    s.field("words", o.vocabulary.words, "Words that are one token each, matched longest first.");
  });
  s.variant({"bpe", "bytes", "characters"}, [&] {
    s.field("added", o.vocabulary.added, "Control tokens, in id order after everything else.");
    s.field("eos", o.vocabulary.eos, "Name of the end-of-text token; one of `added`.");
    s.field("pad", o.vocabulary.pad, "Name of the padding token; one of `added`, or empty.");
  });
}

void bind_task(config::Section& s, rl::TaskOptions& o) {
  s.choice("type", o.type, {"arithmetic", "jsonl", "program"},
           "Problems made by rule, from a file, or from a program of the user's.");
  s.variant_key("type");
  s.field("system_prompt", o.system_prompt, "Put before every problem's messages; empty: none.");
  s.field("deadline", o.deadline, "For one reset or step of the environment.").above(0);
  s.field("reward_min", o.reward_min, "A reward below is an error of the task.");
  s.field("reward_max", o.reward_max, "A reward above is an error of the task.");
  s.variant({"arithmetic"}, [&] { bind_arithmetic(s, o.arithmetic); });
  s.variant({"jsonl"}, [&] { bind_task_file(s, o.jsonl); });
  s.variant({"program"}, [&] { bind_program(s, o.program); });
  s.variant({"arithmetic", "jsonl"}, [&] { s.section("reward", o.reward, bind_reward, "How replies are graded."); });
}

void bind_data(config::Section& s, DataSection& o) {
  data::DatasetOptions& d = o.dataset;
  s.field("path", d.path,
          "A .jsonl file with text, prompt and completion, or messages per line; empty (sft): problems of the task "
          "with their answers.");
  s.field("task_examples", o.task_examples, "How many problems of the task, when path is empty.").min(1).max(1 << 24);
  s.field("eval_fraction", d.eval_fraction, "Part of the documents that is held out, by hash of their text.")
      .min(0)
      .below(1);
  s.field("shuffle", d.shuffle, "Shuffle anew each epoch; off keeps the order of the file.");
  s.field("tokens_per_batch", d.tokens_per_batch,
          "Tokens of one packed batch at most. Documents are never cut to fill it.")
      .min(1);
  s.field("context_tokens", d.context_tokens, "Tokens of one document at most.").min(2);
  s.choice("too_long", d.too_long, {{"error", data::TooLong::kError}, {"truncate", data::TooLong::kTruncate}},
           "What happens to a longer document.");
}

}  // namespace troupe::experiment
