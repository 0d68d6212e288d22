/// @file
/// Head <-> rollout worker: groups of samples to generate, weights to pull.
#pragma once

#include "actors/messages/environment.h"
#include "actors/messages/inspect_base.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// Where one tensor of a weight slot lies, and what it must hash to.
struct TensorEntry {
  std::string name;
  std::string dtype; ///< "F32".
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0; ///< Bytes from the start of the region.
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0; ///< XXH3 of the bytes.
};
template <class Inspector>
bool inspect(Inspector& f, TensorEntry& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("dtype", x.dtype), f.field("shape", x.shape), f.field("offset", x.offset),
                            f.field("bytes", x.bytes), f.field("checksum", x.checksum));
}

/// A lease on published weights: what to read, of which version, and until when.
struct WeightTicket {
  PolicyVersion version;
  std::uint64_t lease = 0; ///< Named when the lease is given back.
  std::uint64_t deadline_ms = 0; ///< From receipt.
  std::uint64_t slot_offset = 0; ///< Added to every tensor's offset.
  comm::RemoteRegion region;
  comm::SharedFile file;   ///< The same bytes, for readers on the same machine.
  std::vector<TensorEntry> tensors;
};
template <class Inspector>
bool inspect(Inspector& f, WeightTicket& x) {
  return f.object(x).fields(f.field("version", x.version), f.field("lease", x.lease), f.field("deadline_ms", x.deadline_ms),
                            f.field("slot_offset", x.slot_offset), f.field("region", x.region), f.field("file", x.file), f.field("tensors", x.tensors));
}

/// The turns of a sample that are over: everything between its prompt and the turn that is being sampled, which begins with the opening of
/// the assistant's next message. Empty in the first turn. Where the prompt format shows earlier turns otherwise than they were said, the ids go
/// on with the whole conversation anew: a context of its own, which does not follow the prompt.
struct SampleTurns {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> sampled;   ///< [ids] 1: by the policy; 0: by the task and the prompt format.
  std::vector<float> logprobs;         ///< [ids] 0 where not sampled.
  std::vector<PolicyVersion> versions; ///< [ids] of the weights that sampled the token or first read it.
  PolicyVersion oldest;                ///< Among them and the KV entries they were sampled from.
  std::vector<data::Message> replies;    ///< What the policy said to the task, turn by turn.
  double reward = 0;                   ///< So far.
  std::vector<std::uint32_t> starts;   ///< Positions in `ids` where a context begins, ascending.
  std::string messages;                ///< The conversation after the prompt, as JSON, for formats that show it as a whole.
  std::uint32_t errors = 0;            ///< Turns that only told the policy what was wrong with its call of a tool.
};
template <class Inspector>
bool inspect(Inspector& f, SampleTurns& x) {
  return f.object(x).fields(f.field("ids", x.ids), f.field("sampled", x.sampled), f.field("logprobs", x.logprobs), f.field("versions", x.versions),
                            f.field("oldest", x.oldest), f.field("replies", x.replies), f.field("reward", x.reward), f.field("starts", x.starts),
                            f.field("messages", x.messages), f.field("errors", x.errors));
}

/// What of a sample was done when it was interrupted: whole turns, and tokens of the turn that was being sampled.
struct SamplePrefix {
  SampleTurns turns;
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  std::vector<PolicyVersion> versions;
  PolicyVersion kv_oldest;
  [[nodiscard]] bool empty() const { return ids.empty() && turns.ids.empty(); }
};
template <class Inspector>
bool inspect(Inspector& f, SamplePrefix& x) {
  return f.object(x).fields(f.field("turns", x.turns), f.field("ids", x.ids), f.field("logprobs", x.logprobs), f.field("versions", x.versions),
                            f.field("kv_oldest", x.kv_oldest));
}
/// The oldest weights that touched it; the newest version there is when it is empty.
[[nodiscard]] PolicyVersion oldest_of(const SamplePrefix& prefix);

/// One sample to generate.
struct SampleWork {
  SampleId id;
  std::uint32_t attempt = 0;
  SamplePrefix prefix;
};
template <class Inspector>
bool inspect(Inspector& f, SampleWork& x) {
  return f.object(x).fields(f.field("id", x.id), f.field("attempt", x.attempt), f.field("prefix", x.prefix));
}

/// Head -> rollout: generate these samples of one prompt (protocol::rollout::Work). Evaluation work is one greedy sample.
struct GroupWork {
  std::uint64_t number = 0; ///< Of the dispatch; echoed in a refusal.
  bool eval = false;
  std::uint32_t evaluation = 0; ///< Which evaluation, when `eval`.
  std::uint32_t epoch = 0;
  std::int32_t stage = 0;   ///< Index of the stage whose sampling options apply.
  std::uint64_t prompt = 0; ///< Identity, and the index of the problem in its split.
  std::vector<SampleWork> samples;
};
template <class Inspector>
bool inspect(Inspector& f, GroupWork& x) {
  return f.object(x).fields(f.field("number", x.number), f.field("eval", x.eval), f.field("evaluation", x.evaluation), f.field("epoch", x.epoch),
                            f.field("stage", x.stage), f.field("prompt", x.prompt), f.field("samples", x.samples));
}

/// What names a sample on its way: training samples by id, evaluation samples by (evaluation, problem).
struct WireName {
  bool eval = false;
  std::uint32_t evaluation = 0;
  SampleId id;
};
template <class Inspector>
bool inspect(Inspector& f, WireName& x) {
  return f.object(x).fields(f.field("eval", x.eval), f.field("evaluation", x.evaluation), f.field("id", x.id));
}

/// Head -> rollout: stop these samples and answer nothing. `all`: everything.
struct CancelWork {
  bool all = false;
  std::vector<WireName> names;
};
template <class Inspector>
bool inspect(Inspector& f, CancelWork& x) {
  return f.object(x).fields(f.field("all", x.all), f.field("names", x.names));
}

/// Head -> rollout: take these weights between two decode steps. Answered by WeightsPulled.
struct PullWeights {
  WeightTicket ticket;
};
template <class Inspector>
bool inspect(Inspector& f, PullWeights& x) {
  return f.object(x).fields(f.field("ticket", x.ticket));
}

/// Head -> rollout: take no new work, finish within the deadline, hand back the rest. Answered by Drained.
struct DrainRollout {
  std::uint64_t deadline_ms = 0;
};
template <class Inspector>
bool inspect(Inspector& f, DrainRollout& x) {
  return f.object(x).fields(f.field("deadline_ms", x.deadline_ms));
}

/// A sample that was generated and scored.
struct SampleResult {
  SampleId id;
  std::uint32_t attempt = 0;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> sampled; ///< [ids] 1 where the policy sampled the token; empty: everywhere.
  std::vector<std::uint32_t> starts; ///< Positions in `ids` where a context of its own begins (SampleTurns).
  std::vector<float> logprobs;
  std::vector<PolicyVersion> versions;
  PolicyVersion oldest;         ///< Among tokens and KV entries.
  std::uint8_t finish = 0;      ///< generate::Finish
  double reward = 0;
  std::string text;
};
template <class Inspector>
bool inspect(Inspector& f, SampleResult& x) {
  return f.object(x).fields(f.field("id", x.id), f.field("attempt", x.attempt), f.field("ids", x.ids), f.field("sampled", x.sampled), f.field("starts", x.starts), f.field("logprobs", x.logprobs),
                            f.field("versions", x.versions), f.field("oldest", x.oldest), f.field("finish", x.finish), f.field("reward", x.reward), f.field("text", x.text));
}

/// Rollout -> head: some samples of one prompt are done.
struct SamplesDone {
  std::string worker;
  std::uint32_t incarnation = 0;
  bool eval = false;
  std::uint32_t evaluation = 0;
  std::uint32_t epoch = 0;
  std::uint64_t prompt = 0;
  std::vector<std::int32_t> prompt_ids;
  std::string prompt_text;
  std::vector<SampleResult> samples;
};
template <class Inspector>
bool inspect(Inspector& f, SamplesDone& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("eval", x.eval),
                            f.field("evaluation", x.evaluation), f.field("epoch", x.epoch), f.field("prompt", x.prompt),
                            f.field("prompt_ids", x.prompt_ids), f.field("prompt_text", x.prompt_text), f.field("samples", x.samples));
}

/// Rollout -> head: these samples could not be done; they are re-issued, or their group is cancelled with the reason.
struct SamplesFailed {
  std::string worker;
  std::uint32_t incarnation = 0;
  bool eval = false;
  std::uint32_t evaluation = 0;
  std::uint32_t epoch = 0;
  std::uint64_t prompt = 0;
  std::vector<SampleWork> samples;
  Error error;
};
template <class Inspector>
bool inspect(Inspector& f, SamplesFailed& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("eval", x.eval),
                            f.field("evaluation", x.evaluation), f.field("epoch", x.epoch), f.field("prompt", x.prompt),
                            f.field("samples", x.samples), f.field("error", x.error));
}

/// Rollout -> head: the answer to work that reached a draining worker.
struct WorkRefused {
  std::string worker;
  std::uint32_t incarnation = 0;
  bool draining = false; ///< Otherwise: full.
  GroupWork work;
};
template <class Inspector>
bool inspect(Inspector& f, WorkRefused& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("draining", x.draining),
                            f.field("work", x.work));
}

/// Rollout -> head: the weights are in (and their checksums right), or why not.
struct WeightsPulled {
  std::string worker;
  std::uint32_t incarnation = 0;
  PolicyVersion version;
  std::uint64_t lease = 0;
  bool ok = false;
  Error error;
  std::uint64_t bytes = 0;
  double seconds = 0;
};
template <class Inspector>
bool inspect(Inspector& f, WeightsPulled& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("version", x.version), f.field("lease", x.lease), f.field("ok", x.ok),
                            f.field("error", x.error), f.field("bytes", x.bytes), f.field("seconds", x.seconds));
}

/// Rollout -> head: nothing is left here; unfinished samples come back with what they had.
struct Drained {
  std::string worker;
  std::uint32_t incarnation = 0;
  std::vector<GroupWork> handed_back;
};
template <class Inspector>
bool inspect(Inspector& f, Drained& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("handed_back", x.handed_back));
}

/// Rollout -> head, at most once a second: how the engine does.
struct RolloutGauges {
  std::string worker;
  std::uint32_t incarnation = 0;
  std::vector<WireName> holding; ///< The samples it computes or has in its queue; those not named get no credit from the watchdog.
  std::uint64_t tokens = 0; ///< Generated since the last report.
  double seconds = 0;       ///< The interval they were generated in.
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  double kv_used = 0; ///< Share of the KV pages in use.
  std::uint64_t preemptions = 0;
  std::uint64_t drafts = 0;          ///< Tokens guessed ahead and checked, since the last report.
  std::uint64_t drafts_accepted = 0; ///< Of them: were right.
};
template <class Inspector>
bool inspect(Inspector& f, RolloutGauges& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("holding", x.holding), f.field("tokens", x.tokens), f.field("seconds", x.seconds), f.field("running", x.running),
                            f.field("waiting", x.waiting), f.field("kv_used", x.kv_used), f.field("preemptions", x.preemptions), f.field("drafts", x.drafts),
                            f.field("drafts_accepted", x.drafts_accepted));
}

/// A sequence that trainer and rollouts score at one version (invariant 3).
struct ProbeSequence {
  std::vector<std::int32_t> ids;
  std::int32_t prompt_length = 0;
};
template <class Inspector>
bool inspect(Inspector& f, ProbeSequence& x) {
  return f.object(x).fields(f.field("ids", x.ids), f.field("prompt_length", x.prompt_length));
}

/// Head -> rank and rollouts: score these ids under the weights of `version`.
struct ScoreProbe {
  std::uint64_t id = 0; ///< Of the sequences; an answer carries it.
  PolicyVersion version;
  std::int32_t stage = 0;
  std::vector<ProbeSequence> sequences;
};
template <class Inspector>
bool inspect(Inspector& f, ScoreProbe& x) {
  return f.object(x).fields(f.field("id", x.id), f.field("version", x.version), f.field("stage", x.stage), f.field("sequences", x.sequences));
}

/// The answer: log-probs of the completion tokens, by the prefill and the decode path (the rank has one path: `decode` stays empty).
struct ProbeScored {
  std::string worker;
  std::uint64_t probe = 0; ///< The order that this answers: only scores of the same sequences are compared.
  PolicyVersion version;
  std::vector<std::vector<float>> prefill;
  std::vector<std::vector<float>> decode;
};
template <class Inspector>
bool inspect(Inspector& f, ProbeScored& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("probe", x.probe), f.field("version", x.version), f.field("prefill", x.prefill), f.field("decode", x.decode));
}

} // namespace troupe::actors
