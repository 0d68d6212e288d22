#include "protocol/worker_pool.h"

namespace troupe::protocol {

std::string_view to_string(WorkerState state) {
  switch (state) {
    case WorkerState::kJoining: return "joining";
    case WorkerState::kServing: return "serving";
    case WorkerState::kDraining: return "draining";
  }
  return "unknown";
}

PoolWorker* WorkerPool::add(WorkerId id) {
  if (workers_.size() >= workers_max_) return nullptr;
  for (const auto& [known, worker] : workers_) {
    if (known.role == id.role && known.index == id.index && known.incarnation > id.incarnation) return nullptr;
  }
  PoolWorker& worker = workers_[id];
  worker.id = id;
  return &worker;
}

PoolWorker* WorkerPool::find(WorkerId id) {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

const PoolWorker* WorkerPool::find(WorkerId id) const {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

bool WorkerPool::fit(const PoolWorker& worker) {
  return worker.state == WorkerState::kServing && !worker.suspect && !worker.unfit;
}

bool WorkerPool::routable(const PoolWorker& worker, std::optional<PolicyVersion> served) {
  return fit(worker) && !worker.spare && served && worker.holds == served;
}

PoolWorker* WorkerPool::pick(std::optional<PolicyVersion> served, std::uint32_t samples, std::uint32_t samples_max,
                             std::optional<WorkerId> avoid, TimePoint now) {
  PoolWorker* best = nullptr;
  PoolWorker* avoided = nullptr;
  for (auto& [id, worker] : workers_) {
    if (!routable(worker, served) || worker.full_until > now) continue;
    if (worker.load != 0 && worker.load + samples > samples_max) continue;
    if (avoid && id == *avoid) {
      avoided = &worker;
    } else if (best == nullptr || worker.load < best->load) {
      best = &worker;
    }
  }
  return best != nullptr ? best : avoided;
}

} // namespace troupe::protocol
