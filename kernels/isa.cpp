#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

/// The kernel gives a process the registers of AMX when it asks; refused, say, where a signal stack is too small for
/// them.
bool may_use_amx() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
}

/// cpuid leaf 7: AMX-BF16 and AMX-TILE.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;
}

bool runs(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (isa == Isa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (isa == Isa::kAvx512) return avx512;
  if (isa == Isa::kAvx512Bf16) return avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  return avx512 && __builtin_cpu_supports("avx512bf16") != 0 && has_amx() && may_use_amx();
}

const KernelTable& table_of(Isa isa) {
  const auto with = [](Isa which, const ProductTable& products) {
    KernelTable t = avx512_table();
    t.isa = which;
    t.products[static_cast<std::size_t>(Precision::kBfloat16)] = products;
    return t;
  };
  static const KernelTable kBf16 = with(Isa::kAvx512Bf16, avx512_bf16_products());
  static const KernelTable kAmx = with(Isa::kAmx, amx_products());
  switch (isa) {
    case Isa::kAvx2:
      return avx2_table();
    case Isa::kAvx512:
      return avx512_table();
    case Isa::kAvx512Bf16:
      return kBf16;
    case Isa::kAmx:
      return kAmx;
  }
  return avx2_table();
}

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

std::string_view to_string(Isa isa) {
  constexpr std::string_view kNames[] = {"AVX2+FMA", "AVX-512", "AVX-512+BF16", "AMX-BF16"};
  return kNames[static_cast<std::size_t>(isa)];
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
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
