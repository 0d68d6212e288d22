// The client that people use: PyPI `openai`, against `troupe serve` on loopback.
#include "serve/program.h"

namespace troupe::serve {
namespace {

class OpenAiClient : public test::Programs {};

TEST_F(OpenAiClient, UnderstandsEverything) {
  const std::string site = std::string(TROUPE_SOURCE_DIR) + "/.deps/oracle/site";
  if (!std::filesystem::exists(site + "/openai")) GTEST_SKIP() << "the openai client is not there: scripts/setup.sh --slow brings it";
  const std::string key = (folder / "key").string();
  std::ofstream(key) << "sk-local\n";
  const int port = serve("--name letters --threads 1 --api-key-file " + key);
  const std::string command = "PYTHONPATH='" + site + "' python3 '" + TROUPE_SOURCE_DIR + "/tests/serve/openai_client.py' " + std::to_string(port) + " sk-local 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << output;
  EXPECT_THAT(output, testing::HasSubstr("all checks passed"));
  EXPECT_EQ(end(), 0);
}

} // namespace
} // namespace troupe::serve
