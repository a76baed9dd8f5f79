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
    m.def("cpu_features", &cpu_features, "Instruction sets that both the processor and the operating system support.");
    m.def("has_bfloat16", &has_bfloat16,
          "Whether bfloat16 products have native kernels: oneDNN is built in, and the processor supports bfloat16.");
    m.def("isa", &isa_name, "Return the instruction set of the kernels that are made from now on.");
    m.def("use_isa", &use_isa, "name"_a,
          "Select the instruction set: 'baseline', 'avx2' or 'avx512'; '': the best one.");
    m.def("default_threads", &default_threads, "Return the number of threads of kernels made with threads=0.");
    m.def("pin_helpers", &pin_helpers, "cores"_a,
          "Pin the helpers that are started from now on: helper n (from 1) to cores[n % len(cores)].");
    m.def("share_all_work", &share_all_work, "on"_a, "Share even short loops among threads, for tests.");
    m.def("set_default_threads", &set_default_threads, "threads"_a,
          "Set the number of threads; 0: the number of allowed cores.");

    // No leak warnings: objects that still exist when the interpreter ends are not leaks. Threads may hold them until
    // the process ends, and commands leave it to the system to free memory.
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
