/// @file
/// Runs `troupe serve` and `troupe chat` as programs on a model folder of their own.
#pragma once

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "serve/folder.h"

namespace troupe::serve::test {

namespace fs = std::filesystem;

class Programs : public testing::Test {
 protected:
  void SetUp() override { write_model_folder(folder); }
  void TearDown() override {
    if (child > 0) ::kill(child, SIGKILL), ::waitpid(child, nullptr, 0);
    fs::remove_all(folder);
  }
  // Starts `troupe serve` and returns the port that it names.
  int serve(const std::string& more = "") {
    const std::string program = std::string(TROUPE_BINARY_DIR) + "/bin/troupe", log = (folder / "log").string();
    child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", ("exec " + program + " serve " + folder.string() + "/model --port 0 " + more + " 2>" + log).c_str(), nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 600; ++i) {
      const std::string text = said();
      if (const auto at = text.find("http://127.0.0.1:"); at != std::string::npos && text.find('\n', at) != std::string::npos) return std::stoi(text.substr(at + 17));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ADD_FAILURE() << said();
    return 0;
  }
  std::string said() const {
    std::ifstream in(folder / "log");
    return {std::istreambuf_iterator<char>(in), {}};
  }
  int end() {
    ::kill(child, SIGTERM);
    int status = 0;
    ::waitpid(std::exchange(child, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  struct Output {
    int code;
    std::string text;
  };
  Output run(const std::string& arguments, const std::string& input = "") const {
    std::ofstream(folder / "input") << input;
    FILE* pipe = ::popen((std::string(TROUPE_BINARY_DIR) + "/bin/troupe " + arguments + " < " + (folder / "input").string() + " 2>" + (folder / "errors").string()).c_str(), "r");
    Output out{0, {}};
    char buffer[4096];
    for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.text.append(buffer, n);
    out.code = WEXITSTATUS(::pclose(pipe));
    return out;
  }
  std::string errors() const {
    std::ifstream in(folder / "errors");
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path folder = fs::path(testing::TempDir()) / ("serve-" + std::to_string(::getpid()));
  pid_t child = -1;
};

} // namespace troupe::serve::test
