#include "kernels/isa.h"

#include <atomic>

#include "base/check.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

bool runs(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

const KernelTable& table_of(Isa isa) { return isa == Isa::kAvx512 ? avx512_table() : avx2_table(); }

const KernelTable& best_table() {
  const Status cpu = check_cpu();
  TROUPE_CHECK(cpu.has_value(), cpu.error().message);
  return table_of(supported_isas().back());
}

/// The table in use; set_isa replaces it.
std::atomic<const KernelTable*>& active() {
  static std::atomic<const KernelTable*> current{&best_table()};
  return current;
}

}  // namespace

std::string_view to_string(Isa isa) { return isa == Isa::kAvx512 ? "AVX-512" : "AVX2+FMA"; }

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (runs(isa)) isas.push_back(isa);
  }
  return isas;
}

Status check_cpu() {
  if (!supported_isas().empty()) return {};
  return fail(ErrorCode::kUnavailable,
              "this CPU has no AVX2 with FMA, which troupe's kernels need: run on an x86-64 CPU of 2013 or later");
}

Isa active_isa() { return table().isa; }

void set_isa(Isa isa) {
  TROUPE_CHECK(runs(isa), "set_isa: this CPU does not run that variant");
  active().store(&table_of(isa), std::memory_order_release);
}

const KernelTable& table() { return *active().load(std::memory_order_acquire); }

}  // namespace troupe::kernels
