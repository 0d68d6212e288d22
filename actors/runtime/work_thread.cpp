#include "actors/runtime/work_thread.h"

#include <utility>

namespace troupe::actors {

WorkThread::WorkThread(std::size_t queue_max, std::function<bool()> idle, WorkProgress* progress)
    : queue_max_(queue_max), idle_(std::move(idle)), progress_(progress) {
  thread_ = std::thread([this] { run(); });
}

WorkThread::~WorkThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  changed_.notify_one();
  thread_.join();
}

bool WorkThread::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= queue_max_) return false;
    queue_.push_back(std::move(command));
  }
  changed_.notify_one();
  return true;
}

void WorkThread::run() {
  bool more = false;
  for (;;) {
    Command command;
    {
      std::unique_lock lock(mutex_);
      if (!more && queue_.empty() && progress_ != nullptr) progress_->end();
      if (!more) changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      if (!queue_.empty()) {
        command = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    if (progress_ != nullptr) progress_->begin();
    if (command) {
      command();
      more = static_cast<bool>(idle_); // a command may have made work
    } else {
      more = idle_();
    }
  }
}

} // namespace troupe::actors
