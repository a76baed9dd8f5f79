// The Python module graphkit._native.
#include "runtime/bindings.h"
#include "runtime/cpu_info.h"
#include "runtime/isa.h"
#include "runtime/not_finite.h"

NB_MODULE(_native, m) {
    using namespace graphkit;
    m.doc() = "graphkit's native kernels.";
    m.attr("version") = GRAPHKIT_VERSION;
    m.def("compiler", &compiler, "Name and version of the compiler that built this module.");
    m.def("cpu_features", &cpu_features, "Instruction sets that processor and operating system offer.");
    m.def("has_bfloat16", &has_bfloat16,
          "Whether matrices of bfloat16 are multiplied: oneDNN is built in, and the processor has what it needs.");
    m.def("isa", &isa_name, "The instruction set of kernels made from now on.");
    m.def("use_isa", &use_isa, "name"_a, "Choose it: 'baseline', 'avx2' or 'avx512'; '' for the processor's best.");
    m.def("default_threads", &default_threads, "Threads of kernels made with threads=0.");
    m.def("pin_helpers", &pin_helpers, "cores"_a,
          "Keep each helper that is started from now on on a core: number n on the n-th, and round again.");
    m.def("share_all_work", &share_all_work, "on"_a, "Share among threads what is not worth it as well, for tests.");
    m.def("set_default_threads", &set_default_threads, "threads"_a, "0: the cores allowed.");

    // What is there when the interpreter ends is no leak: threads that it ends hold theirs, and a command lets the
    // system take back what it has.
    nb::set_leak_warnings(false);

    const nb::exception<NativeError> error(m, "Error", PyExc_RuntimeError);
    nb::exception<NotFinite>(m, "NotFinite", error);
    nb::exception<Unsupported>(m, "Unsupported", error);  // after its base, so that it is tried first

#ifdef GRAPHKIT_ONEDNN
    m.def("has_onednn", [] { return true; });
#else
    m.def("has_onednn", [] { return false; });
#endif
    bind_all(m);
}
