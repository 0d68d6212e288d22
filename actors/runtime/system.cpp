#include "actors/runtime/system.h"

#include <caf/init_global_meta_objects.hpp>
#include <caf/io/middleman.hpp>
#include <caf/openssl/all.hpp>
#include <caf/scoped_actor.hpp>

#include <cstdlib>

#include "actors/messages/all.h"

namespace troupe::actors {

struct System::Config : caf::actor_system_config {
  std::string build;
  explicit Config(const SystemOptions& options) : build(options.build) {
    load<caf::io::middleman>();
    load<caf::openssl::manager>();
    const double scale = time_scale();
    const auto scaled = [scale](Duration d) { return caf::timespan{static_cast<std::int64_t>(static_cast<double>(d.count()) * scale)}; };
    set("caf.middleman.heartbeat-interval", scaled(options.heartbeat));
    set("caf.middleman.connection-timeout", scaled(options.timeout));
    set("caf.middleman.app-identifiers", std::vector<std::string>{options.build});
    set("caf.middleman.enable-automatic-connections", false);
    set("caf.scheduler.max-threads", 2);
    // CAF's TLS module drains OpenSSL's error queue only while it formats a log line of level INFO. With that level off, the error of a peer
    // that was killed stays queued, and the next call on any other connection is taken for a failure: one death cuts every link.
    set("caf.logger.file.path", "/dev/null");
    set("caf.logger.file.verbosity", "info");
    set("caf.logger.file.excluded-components", std::vector<std::string>{});
    openssl_certificate = options.credential.certificate;
    openssl_key = options.credential.key;
    openssl_cafile = options.credential.authority;
  }
};

namespace {

constexpr int kConnectAgain = 3;

void init_types_once() {
  static const bool done = [] {
    caf::init_global_meta_objects<caf::id_block::troupe_messages>();
    caf::io::middleman::init_global_meta_objects();
    caf::core::init_global_meta_objects();
    return true;
  }();
  (void)done;
}

} // namespace

System::System(const SystemOptions& options) {
  init_types_once();
  config_ = std::make_unique<Config>(options);
  system_ = std::make_unique<caf::actor_system>(*config_);
  // An actor that ever sent to a remote one is never collected by CAF: waiting for all of them would never end.
  system_->await_actors_before_shutdown(false);
}

System::~System() {
  // CAF's registry must not drop the last reference of an actor while it shuts down: end what was published first.
  caf::scoped_actor self{*system_};
  for (const caf::actor& actor : published_) {
    self->send_exit(actor, caf::exit_reason::user_shutdown);
    self->wait_for(actor);
  }
  published_.clear();
}

Result<std::uint16_t> System::publish(const caf::actor& actor, const std::string& host, std::uint16_t port) {
  auto bound = caf::openssl::publish(actor, port, host.c_str(), true);
  if (!bound)
    return fail(ErrorCode::kUnavailable, "cannot listen on " + host + ":" + std::to_string(port) + " (" + caf::to_string(bound.error()) +
                                             "); is the port in use or the address not of this machine?");
  published_.push_back(actor);
  return *bound;
}

Result<caf::actor> System::connect(const std::string& host, std::uint16_t port) {
  auto actor = caf::openssl::remote_actor(*system_, host, port);
  // On a machine that is out of breath the handshake outlasts CAF's heartbeat timeout.
  for (int again = 0; again < kConnectAgain && !actor && actor.error() == caf::sec::connection_timeout; ++again)
    actor = caf::openssl::remote_actor(*system_, host, port);
  if (!actor && actor.error() == caf::sec::incompatible_application_ids)
    return fail(ErrorCode::kUnavailable, "the head at " + host + ":" + std::to_string(port) + " is of another build than this one (" + config_->build +
                                             "); run the same build of troupe on every machine");
  if (!actor)
    return fail(ErrorCode::kUnavailable, "cannot reach the head at " + host + ":" + std::to_string(port) + " (" + caf::to_string(actor.error()) +
                                             "); is it running, of the same build, and is the credential of this run?");
  return *actor;
}

double time_scale() {
  const char* text = std::getenv("TROUPE_TIME_SCALE");
  const double scale = text != nullptr ? std::atof(text) : 1.0;
  return scale >= 1.0 ? scale : 1.0;
}

const char* build_id() { return "troupe-" TROUPE_WIRE_ID; }

} // namespace troupe::actors
