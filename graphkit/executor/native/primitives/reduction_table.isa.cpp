// The table of reductions for the instruction set of this translation unit.
#include "primitives/reduction_table.h"

#include "primitives/reduction_loops.h"

namespace graphkit {
namespace {

constexpr ReductionTable make_reduction_table() {
    ReductionTable table{};
    set_reductions<float>(table.f32);
    set_reductions<double>(table.f64);
    set_reductions<Float16>(table.f16);
    set_reductions<BFloat16>(table.bf16);
    set_reductions<std::int8_t>(table.i8);
    set_reductions<std::uint8_t>(table.u8);
    set_reductions<std::int32_t>(table.i32);
    set_reductions<std::uint32_t>(table.u32);
    set_reductions<std::int64_t>(table.i64);
    set_reductions<std::uint64_t>(table.u64);
    return table;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(ReductionTable, reduction_table) = make_reduction_table();

}  // namespace graphkit
