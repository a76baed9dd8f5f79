// Reads protobuf messages into Python's objects. It computes the same as `_message` in graphkit/onnx_io/messages.py.
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

// The bytes are damaged, or unusual: the protobuf library must read them.
struct Unusual {};

constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
constexpr std::uint64_t kMaxNumber = (std::uint64_t{1} << 29) - 1;
// Most bytes of a tag or a length, and of a number.
constexpr int kMaxFrameBytes = 5, kMaxVarintBytes = 10;
constexpr int kMaxDepth = 64;

enum class Kind { kInt64, kInt32, kUint64, kEnum, kFloat, kDouble, kText, kRaw, kMessage };

nb::object valid(PyObject* made) {
    if (made == nullptr) {
        throw nb::python_error();
    }
    return nb::steal(made);
}

// A part of the bytes that are read.
struct Span {
    const unsigned char* at;
    const unsigned char* end;

    std::uint64_t varint(int most) {
        std::uint64_t value = 0;
        for (int i = 0; i < most && at < end; ++i) {
            const std::uint64_t byte = *at++;
            value |= (byte & 0x7F) << (7 * i);
            if (byte < 0x80) {
                return value;
            }
        }
        throw Unusual();
    }
    Span take(std::uint64_t size) {
        if (size > static_cast<std::uint64_t>(end - at)) {
            throw Unusual();
        }
        const Span taken{at, at + size};
        at = taken.end;
        return taken;
    }
    // Takes the value of a field.
    Span value(std::uint64_t wire) {
        switch (wire) {
            case kBytes:
                return take(varint(kMaxFrameBytes));
            case kVarint: {
                const unsigned char* const begin = at;
                varint(kMaxVarintBytes);
                return {begin, at};
            }
            case kFixed32:
                return take(4);
            case kFixed64:
                return take(8);
            default:
                throw Unusual();
        }
    }
    template <typename T>
    T number() {
        T value;
        std::memcpy(&value, take(sizeof(T)).at, sizeof(T));
        return value;
    }
};

struct Field {
    nb::object name;
    Kind kind = Kind::kRaw;
    bool repeated = false;
    bool alternative = false;  // at most one such field of a message may be set
    std::int64_t detail = 0;   // the largest value of an enum, or the index of the message

    std::uint64_t wire() const {
        switch (kind) {
            case Kind::kFloat:
                return kFixed32;
            case Kind::kDouble:
                return kFixed64;
            case Kind::kText:
            case Kind::kRaw:
            case Kind::kMessage:
                return kBytes;
            default:
                return kVarint;
        }
    }
};

// Reads a number from the beginning of `span`.
nb::object number_of(const Field& field, Span& span) {
    switch (field.kind) {
        case Kind::kFloat:
            return valid(PyFloat_FromDouble(span.number<float>()));
        case Kind::kDouble:
            return valid(PyFloat_FromDouble(span.number<double>()));
        case Kind::kUint64:
            return valid(PyLong_FromUnsignedLongLong(span.varint(kMaxVarintBytes)));
        case Kind::kInt64:
            return valid(PyLong_FromLongLong(static_cast<std::int64_t>(span.varint(kMaxVarintBytes))));
        default: {
            const auto value = static_cast<std::int32_t>(span.varint(kMaxVarintBytes));
            if (field.kind == Kind::kEnum && (value < 0 || value > field.detail)) {
                throw Unusual();  // the library drops unknown values
            }
            return valid(PyLong_FromLong(value));
        }
    }
}

// Number, name, kind, whether it is repeated, whether it is an alternative, detail.
using FieldFacts = std::tuple<std::uint64_t, nb::str, int, bool, bool, std::int64_t>;

class MessageReader {
  public:
    // messages: the class and the fields of each message. Fields without an entry make `read` return None.
    explicit MessageReader(const std::vector<std::pair<nb::object, std::vector<FieldFacts>>>& messages,
                           const std::vector<std::pair<std::size_t, std::uint64_t>>& unusual) {
        for (const auto& [cls, fields] : messages) {
            Message message{cls, {}};
            for (const auto& [number, name, kind, repeated, alternative, detail] : fields) {
                message.fields[number] = Field{name, static_cast<Kind>(kind), repeated, alternative, detail};
            }
            messages_.push_back(std::move(message));
        }
        for (const auto& [message, number] : unusual) {
            messages_.at(message).fields[number] = std::nullopt;
        }
    }

    nb::object read(const nb::bytes& data) const {
        const auto* const begin = reinterpret_cast<const unsigned char*>(data.c_str());
        try {
            return message(0, data, begin, {begin, begin + data.size()}, 0);
        } catch (const Unusual&) {
            return nb::none();
        }
    }

  private:
    struct Message {
        nb::object cls;
        std::map<std::uint64_t, std::optional<Field>> fields;
    };

    nb::object message(std::size_t index, const nb::bytes& data, const unsigned char* begin, Span span,
                       int depth) const {
        if (depth > kMaxDepth) {
            throw Unusual();
        }
        const Message& kind = messages_.at(index);
        nb::object made = kind.cls();
        const nb::object dict = valid(PyObject_GenericGetDict(made.ptr(), nullptr));
        const nb::object place = valid(Py_BuildValue("(Onn)", data.ptr(), static_cast<Py_ssize_t>(span.at - begin),
                                                     static_cast<Py_ssize_t>(span.end - begin)));
        set(dict, nb::str(""), place);
        bool chosen = false;
        while (span.at < span.end) {
            const std::uint64_t tag = span.varint(kMaxFrameBytes);
            Span value = span.value(tag & 7);
            if (tag >> 3 == 0 || tag >> 3 > kMaxNumber) {
                throw Unusual();
            }
            const auto found = kind.fields.find(tag >> 3);
            if (found == kind.fields.end()) {
                continue;
            }
            if (!found->second.has_value()) {
                throw Unusual();
            }
            const Field& field = *found->second;
            if (field.repeated) {
                append(field, list(dict, field), tag & 7, value, data, begin, depth);
                continue;
            }
            if (field.wire() != (tag & 7) || (field.alternative && chosen) || get(dict, field) != nullptr) {
                throw Unusual();  // the library merges repeated fields
            }
            chosen = chosen || field.alternative;
            set(dict, field.name, read_value(field, value, data, begin, depth));
        }
        return made;
    }

    static void set(const nb::object& dict, const nb::object& name, const nb::object& value) {
        if (PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr()) != 0) {
            throw nb::python_error();
        }
    }
    // Returns a borrowed reference to the field's value, or null.
    static PyObject* get(const nb::object& dict, const Field& field) {
        PyObject* const found = PyDict_GetItemWithError(dict.ptr(), field.name.ptr());
        if (found == nullptr && PyErr_Occurred() != nullptr) {
            throw nb::python_error();
        }
        return found;
    }
    static nb::list list(const nb::object& dict, const Field& field) {
        if (PyObject* const found = get(dict, field)) {
            return nb::borrow<nb::list>(found);
        }
        nb::list made;
        set(dict, field.name, made);
        return made;
    }

    void append(const Field& field, nb::list values, std::uint64_t wire, Span value, const nb::bytes& data,
                const unsigned char* begin, int depth) const {
        if (wire == field.wire()) {
            values.append(read_value(field, value, data, begin, depth));
            return;
        }
        if (wire != kBytes) {
            throw Unusual();
        }
        while (value.at < value.end) {  // packed numbers
            values.append(number_of(field, value));
        }
    }

    nb::object read_value(const Field& field, Span value, const nb::bytes& data, const unsigned char* begin,
                          int depth) const {
        const auto* const text = reinterpret_cast<const char*>(value.at);
        const Py_ssize_t size = value.end - value.at;
        switch (field.kind) {
            case Kind::kMessage:
                return message(static_cast<std::size_t>(field.detail), data, begin, value, depth + 1);
            case Kind::kRaw:
                return valid(PyBytes_FromStringAndSize(text, size));
            case Kind::kText: {
                PyObject* const made = PyUnicode_DecodeUTF8(text, size, nullptr);
                if (made == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
                    PyErr_Clear();
                    throw Unusual();
                }
                return valid(made);
            }
            default:
                return number_of(field, value);
        }
    }

    std::vector<Message> messages_;
};

}  // namespace

GRAPHKIT_BINDINGS(messages) {
    nb::class_<MessageReader>(m, "MessageReader", "Reads the messages of graphkit.onnx_io.messages.")
        .def(nb::init<const std::vector<std::pair<nb::object, std::vector<FieldFacts>>>&,
                      const std::vector<std::pair<std::size_t, std::uint64_t>>&>(),
             "messages"_a, "unusual"_a)
        .def("read", &MessageReader::read, "data"_a, "Return the first message; None if the bytes are unusual.");
}

}  // namespace graphkit
