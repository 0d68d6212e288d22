/// @file
/// Vocabularies made from scratch: byte-level BPE learned from a corpus, plain bytes, or a given alphabet.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "data/options.h"
#include "data/tokenizer.h"

namespace troupe::data {

/// Makes the tokenizer that `options` describe. `corpus` is used by kind "bpe" only.
/// Determinism: a function of the options and the corpus as a multiset; equal counts are decided by the bytes of the
/// pair. Cost ("bpe"): about one pass over the distinct words per hundred merges. Errors:
/// kInvalidArgument naming the field.
[[nodiscard]] Result<Tokenizer> make_vocabulary(const VocabularyOptions& options,
                                                std::span<const std::string> corpus = {});

} // namespace troupe::data
