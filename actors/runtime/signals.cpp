#include "actors/runtime/signals.h"

#include <caf/send.hpp>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "actors/messages/all.h"

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

SignalThread::SignalThread(caf::actor to) : to_(std::move(to)) {
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
    caf::anon_send(to_, StopRun{info.ssi_signo == SIGINT ? "interrupted" : "terminated", info.ssi_signo == SIGTERM});
  }
}

} // namespace troupe::actors
