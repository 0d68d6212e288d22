#include "actors/runtime/signals.h"

#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace troupe::actors {
namespace {

sigset_t signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, s); // SIGUSR1 ends the thread
  return set;
}

} // namespace

void block_signals() {
  const sigset_t set = signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalThread::SignalThread(std::function<void(int)> received) : received_(std::move(received)) {
  const sigset_t set = signals();
  fd_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC));
  thread_ = std::thread([this] { run(); });
}

SignalThread::~SignalThread() {
  ::pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalThread::run() {
  for (;;) {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGUSR1) return;
    received_(static_cast<int>(info.ssi_signo));
  }
}

} // namespace troupe::actors
