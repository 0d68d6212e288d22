/// @file
/// What a worker's work thread is doing, in a page of memory that its node agent reads: no message has to get through, and nobody is asked.
#pragma once

#include <cstdint>
#include <memory>

#include "base/file.h"
#include "base/result.h"

namespace troupe::actors {

struct WorkReading {
  std::uint64_t moves = 0; ///< Counts up while there is work.
  bool busy = false;       ///< The thread is in the middle of something.
};

/// One page: one thread writes, another process reads. Lock-free.
class WorkProgress {
 public:
  /// A memory file for one page, of a size that nobody can change. Errors: as system_error.
  [[nodiscard]] static Result<FileDescriptor> create_file();
  /// Maps such a file; the descriptor may be closed then. Errors: as system_error; kCorrupt for another kind of file.
  [[nodiscard]] static Result<WorkProgress> map(int descriptor);

  void begin(); ///< Something to do.
  void move();  ///< A part of it is done.
  void end();   ///< Nothing to do.
  [[nodiscard]] WorkReading read() const;

 private:
  struct Page;
  struct Unmap {
    void operator()(Page* page) const;
  };
  explicit WorkProgress(Page* page) : page_(page) {}
  std::unique_ptr<Page, Unmap> page_;
};

} // namespace troupe::actors
