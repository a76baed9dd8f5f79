// How functions of graphkit.h report errors: exceptions become statuses, and their texts the error of the thread.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "../../include/graphkit.h"
#include "c_interface/converter.h"
#include "c_interface/saved_program.h"
#include "onednn/missing_library.h"

namespace graphkit {

inline thread_local std::string latest_error;

inline gk_status failed(gk_status status, const char* text) {
    try {
        latest_error = text;
    } catch (const std::bad_alloc&) {
        latest_error.clear();
    }
    return status;
}

inline gk_status status_of(ConversionError::Kind kind) {
    switch (kind) {
        case ConversionError::Kind::kArguments:
            return GK_ERROR_ARGUMENT;
        case ConversionError::Kind::kUnsupported:
            return GK_ERROR_UNSUPPORTED;
        case ConversionError::Kind::kBadNetwork:
            return GK_ERROR_FORMAT;
        case ConversionError::Kind::kTimeOut:
            return GK_ERROR_LIMIT;
        default:
            return GK_ERROR_CONVERTER;
    }
}

// Calls a function that returns a status. Exceptions become statuses.
template <typename Body>
gk_status guarded(const Body& body) noexcept {
    try {
        return body();
    } catch (const ConversionError& error) {
        return failed(status_of(error.kind), error.what());
    } catch (const FileError& error) {
        return failed(GK_ERROR_FILE, error.what());
    } catch (const BadFile& error) {
        return failed(GK_ERROR_FORMAT, error.what());
    } catch (const OtherVersion& error) {
        return failed(GK_ERROR_VERSION, error.what());
    } catch (const OtherProcessor& error) {
        return failed(GK_ERROR_PROCESSOR, error.what());
    } catch (const MissingLibrary& error) {
        return failed(GK_ERROR_LIBRARY, error.what());
    } catch (const LimitReached& error) {
        return failed(GK_ERROR_LIMIT, error.text_for_c.c_str());
    } catch (const NoMemory& error) {
        return failed(GK_ERROR_MEMORY, error.what());
    } catch (const NativeError& error) {
        return failed(GK_ERROR_RUN, error.what());
    } catch (const std::bad_alloc&) {
        return failed(GK_ERROR_MEMORY, "there is not enough memory");
    } catch (const std::exception& error) {
        return failed(GK_ERROR_INTERNAL, error.what());
    } catch (...) {
        return failed(GK_ERROR_INTERNAL, "unknown error");
    }
}

}  // namespace graphkit
