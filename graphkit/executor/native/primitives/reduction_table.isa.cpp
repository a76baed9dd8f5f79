// The table of reductions for the instruction set that this is compiled for.
#include "primitives/reduction_table.h"

#include "primitives/reduction_loops.h"

namespace graphkit {
namespace {

constexpr FoldTable make_fold_table() {
    FoldTable table{};
    set_folds<float>(table.f32);
    set_folds<double>(table.f64);
    set_folds<Float16>(table.f16);
    set_folds<BFloat16>(table.bf16);
    set_folds<std::int8_t>(table.i8);
    set_folds<std::uint8_t>(table.u8);
    set_folds<std::int32_t>(table.i32);
    set_folds<std::uint32_t>(table.u32);
    set_folds<std::int64_t>(table.i64);
    set_folds<std::uint64_t>(table.u64);
    return table;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(FoldTable, fold_table) = make_fold_table();

}  // namespace graphkit
