# Defines the target OneDNN from the wheels onednn-devel-cpu-gomp (headers) and onednn-cpu-gomp (library), wherever
# the package metadata of the building Python says that they lie.

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_onednn.py"
  OUTPUT_VARIABLE found
  ERROR_VARIABLE complaint
  RESULT_VARIABLE failed
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "oneDNN was not found: ${complaint}\n"
                      "Without build isolation, first run: pip install onednn-devel-cpu-gomp==2023.2.0\n"
                      "To build without oneDNN: pip install . -C cmake.define.GRAPHKIT_ONEDNN=OFF")
endif()
list(GET found 0 onednn_include)
list(GET found 1 onednn_library)
message(STATUS "oneDNN: ${onednn_library}, headers in ${onednn_include}")

# The headers alone: the extension loads the library when it first needs it. See onednn/library.h.
add_library(OneDNN INTERFACE IMPORTED)
set_target_properties(OneDNN PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${onednn_include}")
