#include "actors/runtime/credentials.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstring>

#include "actors/runtime/openssl_handles.h"
#include "base/file.h"

namespace troupe::actors {
namespace {

tl::unexpected<Error> openssl_error(const char* action) {
  char text[256] = "unknown error";
  if (const auto code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return fail(ErrorCode::kInternal, std::string("OpenSSL could not ") + action + ": " + text);
}

bool add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  if (extension == nullptr) return false;
  const bool added = X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// Signs a certificate for `key`; the issuer is itself when `issuer` is null.
Result<Certificate> sign(EVP_PKEY* key, const std::string& name, X509* issuer, EVP_PKEY* issuer_key, long valid_seconds) {
  Certificate certificate(X509_new());
  std::uint64_t serial = 0;
  if (!certificate || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1) return openssl_error("make a certificate");
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -300); // clocks of machines differ by minutes
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_seconds);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.data()), static_cast<int>(name.size()), -1, 0);
  X509* signer = issuer != nullptr ? issuer : certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer));
  const bool is_authority = issuer == nullptr;
  if (!add_extension(certificate.get(), signer, NID_basic_constraints, is_authority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") ||
      !add_extension(certificate.get(), signer, NID_key_usage, is_authority ? "critical,keyCertSign" : "critical,digitalSignature"))
    return openssl_error("extend a certificate");
  if (X509_sign(certificate.get(), issuer_key, EVP_sha256()) == 0) return openssl_error("sign a certificate");
  return certificate;
}

template <class Write>
Status write_pem(const std::filesystem::path& path, Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || write(bio.get()) != 1) return openssl_error("encode a credential");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return write_file_atomic(path, {data, static_cast<std::size_t>(size)}, 0600);
}

Credential files_in(const std::filesystem::path& folder) { return {folder / "node.crt", folder / "node.key", folder / "authority.crt"}; }

} // namespace

Result<Credential> make_credential(const std::filesystem::path& folder, const std::string& run_id, long valid_seconds) {
  TROUPE_TRY_STATUS(make_folders(folder));
  if (::chmod(folder.c_str(), 0700) != 0) return tl::unexpected(system_error("protect", folder, errno));
  const Key authority_key(EVP_EC_gen("P-256")), node_key(EVP_EC_gen("P-256"));
  if (!authority_key || !node_key) return openssl_error("make a key");
  TROUPE_TRY(const Certificate authority, sign(authority_key.get(), "troupe run " + run_id, nullptr, authority_key.get(), kCredentialSeconds));
  TROUPE_TRY(const Certificate node, sign(node_key.get(), "troupe node of " + run_id, authority.get(), authority_key.get(), valid_seconds));
  const Credential credential = files_in(folder);
  TROUPE_TRY_STATUS(write_pem(credential.authority, [&](BIO* bio) { return PEM_write_bio_X509(bio, authority.get()); }));
  TROUPE_TRY_STATUS(write_pem(credential.certificate, [&](BIO* bio) { return PEM_write_bio_X509(bio, node.get()); }));
  TROUPE_TRY_STATUS(write_pem(credential.key, [&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, node_key.get(), nullptr, nullptr, 0, nullptr, nullptr); }));
  TROUPE_TRY_STATUS(write_pem(join_file(folder), [&](BIO* bio) {
    return PEM_write_bio_X509(bio, node.get()) == 1 && PEM_write_bio_PrivateKey(bio, node_key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1
               ? PEM_write_bio_X509(bio, authority.get())
               : 0;
  }));
  return credential;
}

std::filesystem::path join_file(const std::filesystem::path& folder) { return folder / "join.pem"; }

Result<Credential> open_credential(const std::filesystem::path& folder, const std::string& run_id) {
  const Credential credential = files_in(folder);
  for (const std::string& file : {credential.certificate, credential.key, credential.authority, join_file(folder).string()})
    if (!std::filesystem::exists(file)) return make_credential(folder, run_id);
  return credential;
}

} // namespace troupe::actors
