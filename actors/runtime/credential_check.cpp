// What is wrong with a credential, in words: before CAF is asked, which can only say that it did not work.
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <cstring>
#include <memory>

#include "actors/runtime/credentials.h"
#include "actors/runtime/openssl_handles.h"
#include "base/file.h"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

using Context = std::unique_ptr<SSL_CTX, Deleter<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Deleter<SSL_free>>;

// OpenSSL writes without MSG_NOSIGNAL: a peer that hangs up would end this process. Whatever the rest of it wants of the signal stays.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec none{};
    while (::sigtimedwait(&pipe_, nullptr, &none) == SIGPIPE) {}
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
};

std::string day_of(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string last_error() {
  const auto code = ERR_peek_last_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  ERR_clear_error();
  return reason != nullptr ? reason : "the connection was closed";
}

Status check_dates(const X509* certificate, const std::string& file) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
    return fail(ErrorCode::kUnavailable, "the credential " + file + " expired on " + day_of(X509_get0_notAfter(certificate)) +
                                             "; a new one comes with a new run folder on the head node");
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    return fail(ErrorCode::kUnavailable, "the credential " + file + " is valid from " + day_of(X509_get0_notBefore(certificate)) +
                                             " on: is the clock of this machine right?");
  return {};
}

Result<FileDescriptor> open_socket(const Endpoint& head, Duration deadline) {
  TROUPE_TRY(FileDescriptor socket, connect_to(head, deadline));
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(deadline).count();
  const timeval limit{micros / 1000000, micros % 1000000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return socket;
}

Status judge(SSL* ssl, int result, int error, const Endpoint& head) {
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
    return fail(ErrorCode::kTimeout, to_string(head) + " accepts connections but does not answer; is it a troupe head?");
  if (result == 1) return {};
  if (const long verdict = SSL_get_verify_result(ssl); verdict != X509_V_OK)
    return fail(ErrorCode::kUnavailable, "the head at " + to_string(head) + " belongs to another run than this credential (" +
                                             X509_verify_cert_error_string(verdict) + "); use the file that its join line names");
  return fail(ErrorCode::kUnavailable, "the head at " + to_string(head) + " refused this credential (" + last_error() + "); use the file that its join line names");
}

} // namespace

Result<Credential> read_credential(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0)
    return fail(ErrorCode::kNotFound, "there is no credential " + file.string() + "; copy it from the head node, where `troupe supervise` names it");
  if ((info.st_mode & 077) != 0)
    return fail(ErrorCode::kInvalidArgument, "others may read the credential " + file.string() + "; protect it with: chmod 600 " + file.string());
  TROUPE_TRY(const auto text, read_file(file, 1 << 20));
  const auto blocks = [&] { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); };
  const Bio certificates = blocks(), keys = blocks();
  const Certificate node(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr));
  const Certificate authority(node ? PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr) : nullptr);
  const Key key(PEM_read_bio_PrivateKey(keys.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (!node || !authority || !key)
    return fail(ErrorCode::kInvalidArgument, file.string() + " is not a credential: it must hold a certificate, its key and the authority as PEM blocks");
  TROUPE_TRY_STATUS(check_dates(node.get(), file.string()));
  const bool belongs = X509_check_private_key(node.get(), key.get()) == 1 && X509_verify(node.get(), X509_get0_pubkey(authority.get())) == 1;
  ERR_clear_error();
  if (!belongs) return fail(ErrorCode::kInvalidArgument, "certificate, key and authority in " + file.string() + " do not belong together");
  return Credential{fs::absolute(file), fs::absolute(file), fs::absolute(file)};
}

Status try_credential(const Credential& credential, const Endpoint& head, Duration deadline) {
  const NoPipeSignal guard;
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (!context || SSL_CTX_use_certificate_chain_file(context.get(), credential.certificate.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), credential.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_load_verify_locations(context.get(), credential.authority.c_str(), nullptr) != 1)
    return fail(ErrorCode::kInvalidArgument, "the credential " + credential.certificate + " cannot be used: " + last_error());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  TROUPE_TRY(const FileDescriptor socket, open_socket(head, deadline));
  const Connection ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), socket.get());
  int result = SSL_connect(ssl.get());
  TROUPE_TRY_STATUS(judge(ssl.get(), result, SSL_get_error(ssl.get(), result), head));
  // With TLS 1.3 the server judges our certificate after the handshake: its first bytes, or its refusal, are the answer.
  char byte = 0;
  result = SSL_read(ssl.get(), &byte, 1);
  const Status answer = judge(ssl.get(), result > 0 ? 1 : 0, SSL_get_error(ssl.get(), result), head);
  if (answer) SSL_shutdown(ssl.get());
  ERR_clear_error();
  return answer;
}

} // namespace troupe::actors
