#include "actors/supervisor/observer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "actors/runtime/names.h"
#include "base/file.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

double unix_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

Status write_at(const std::filesystem::path& path, std::uint64_t offset, const std::string& text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid() || ::lseek(file.get(), static_cast<off_t>(offset), SEEK_SET) < 0) return tl::unexpected(system_error("write", path, errno));
  return write_all(file.get(), std::as_bytes(std::span(text)), path);
}

} // namespace

Result<std::unique_ptr<Observer>> Observer::open(const SupervisorOptions& options) {
  TROUPE_TRY(auto metrics, observe::JsonlWriter::open(options.folder / "metrics.jsonl"));
  TROUPE_TRY(auto samples, observe::JsonlWriter::open(options.folder / "samples.jsonl"));
  TROUPE_TRY(auto events, observe::JsonlWriter::open(options.folder / "events.jsonl"));
  Sinks sinks{std::move(metrics), std::move(samples), std::move(events), std::nullopt};
  if (options.tensorboard) {
    TROUPE_TRY(auto writer, observe::TensorboardWriter::create(options.folder / "tb", unix_seconds()));
    sinks.tensorboard.emplace(std::move(writer));
  }
  return std::unique_ptr<Observer>(new Observer(options, std::move(sinks)));
}

Observer::Observer(const SupervisorOptions& options, Sinks sinks)
    : folder_(options.folder),
      sinks_(std::move(sinks)),
      line_(STDERR_FILENO, observe::ProgressLine::terminal_columns(STDERR_FILENO) > 0, observe::ProgressLine::terminal_columns(STDERR_FILENO),
            options.progress_interval),
      thread_(std::make_unique<WorkThread>(4096, nullptr)) {}

void Observer::post(WorkThread::Command command) {
  if (!thread_->post(std::move(command))) ++dropped_;
}

void Observer::complain(const Status& status) {
  if (status || complained_.exchange(true)) return;
  log_error(status.error().to_string() + "; the run goes on without this record");
}

void Observer::step(observe::MetricBatch batch, observe::Progress progress) {
  if (const auto dropped = dropped_.exchange(0); dropped > 0) batch.metrics.push_back({"observe/records_dropped", static_cast<double>(dropped)});
  std::sort(batch.metrics.begin(), batch.metrics.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  complain(sinks_.metrics.write(observe::metrics_line(batch)));
  post([this, batch = std::move(batch), progress = std::move(progress)] {
    if (sinks_.tensorboard) complain(sinks_.tensorboard->write(batch, unix_seconds()));
    line_.update(progress, std::chrono::steady_clock::now());
  });
}

std::uint64_t Observer::last_step() const {
  const auto line = sinks_.metrics.last_line();
  const auto parsed = nlohmann::json::parse(line.value_or(""), nullptr, false);
  return parsed.is_object() ? parsed.value("step", std::uint64_t{0}) : 0;
}

void Observer::progress(observe::Progress progress) {
  post([this, progress = std::move(progress)] { line_.update(progress, std::chrono::steady_clock::now()); });
}

void Observer::samples(std::vector<observe::SampleRecord> records) {
  post([this, records = std::move(records)] {
    for (const auto& record : records) complain(sinks_.samples.write(observe::sample_line(record)));
  });
}

void Observer::event(std::string event, std::string actor, nlohmann::json fields) {
  post([this, event = std::move(event), actor = std::move(actor), fields = std::move(fields)] {
    complain(sinks_.events.write(observe::event_line(static_cast<std::int64_t>(unix_seconds() * 1e3), event, actor, fields)));
  });
}

void Observer::say(std::string line) {
  post([this, line = std::move(line)] { line_.print(line); });
}

void Observer::sample_memory(std::vector<pid_t> pids) {
  post([this, pids = std::move(pids)] { memory_.sample(pids); });
}

void Observer::log(protocol::WorkerId worker, std::uint64_t offset, std::string text) {
  post([this, worker, offset, text = std::move(text)] { complain(write_at(folder_ / "logs" / log_name(worker), offset, text)); });
}

double Observer::seconds_since_start() const { return seconds(std::chrono::steady_clock::now() - start_); }

void Observer::close(observe::Summary summary) {
  auto done = std::make_shared<std::promise<void>>();
  auto written = done->get_future();
  const WorkThread::Command last = [this, done, summary]() mutable {
    summary.wall_s = seconds_since_start();
    summary.rss_peak_mib = static_cast<double>(memory_.peak_bytes()) / (1 << 20);
    line_.finish();
    complain(observe::write_summary(folder_ / "summary.json", summary));
    const std::string table = observe::summary_table(summary);
    [[maybe_unused]] const auto n = ::write(STDERR_FILENO, table.data(), table.size());
    done->set_value();
  };
  while (!thread_->post(last)) std::this_thread::sleep_for(std::chrono::milliseconds(10)); // a full queue drains
  written.wait();
}

} // namespace troupe::actors
