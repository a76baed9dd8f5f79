/* graphkit.hpp - graphkit.h for C++17: a class that closes its session, arrays that know their types, exceptions.
 *
 *     gk::Program program("net.gkp");
 *     std::vector<gk::Array> inputs = program.make_inputs();
 *     inputs[0].values<float>()[0] = 1.0f;
 *     std::vector<gk::Array> outputs = program.run(inputs);
 *
 * Threads may share a Program, and call all of its const functions at the same time.
 */
#ifndef GRAPHKIT_HPP
#define GRAPHKIT_HPP

#include <graphkit.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gk {

/* What a function of graphkit.h reported. */
class Error : public std::runtime_error {
   public:
    Error(gk_status status, const std::string& text) : std::runtime_error(text), status_(status) {}

    gk_status status() const noexcept { return status_; }

   private:
    gk_status status_;
};

/* The type whose elements are stored as T. Elements of float16 and bfloat16 are their bits, as std::uint16_t. */
template <typename T>
inline constexpr gk_type type_of = GK_TYPE_NONE;
template <> inline constexpr gk_type type_of<float> = GK_FLOAT32;
template <> inline constexpr gk_type type_of<double> = GK_FLOAT64;
template <> inline constexpr gk_type type_of<std::int8_t> = GK_INT8;
template <> inline constexpr gk_type type_of<std::int16_t> = GK_INT16;
template <> inline constexpr gk_type type_of<std::int32_t> = GK_INT32;
template <> inline constexpr gk_type type_of<std::int64_t> = GK_INT64;
template <> inline constexpr gk_type type_of<std::uint8_t> = GK_UINT8;
template <> inline constexpr gk_type type_of<std::uint16_t> = GK_UINT16;
template <> inline constexpr gk_type type_of<std::uint32_t> = GK_UINT32;
template <> inline constexpr gk_type type_of<std::uint64_t> = GK_UINT64;
template <> inline constexpr gk_type type_of<bool> = GK_BOOL;

/* Describes an input or an output. */
struct Port {
    std::string name;
    gk_type type;
    std::vector<std::int64_t> shape;
    std::size_t bytes;
};

/* An array of zeros of the type and shape of a port, row-major. */
class Array {
   public:
    explicit Array(Port port) : port_(std::move(port)), data_(port_.bytes) {}

    const Port& port() const noexcept { return port_; }
    void* data() noexcept { return data_.data(); }
    const void* data() const noexcept { return data_.data(); }


    /* The elements, as many as size<T>(). Throws std::invalid_argument if they are not stored as T. */
    template <typename T>
    T* values() {
        return const_cast<T*>(std::as_const(*this).template values<T>());
    }
    template <typename T>
    const T* values() const {
        const bool bits = type_of<T> == GK_UINT16 && (port_.type == GK_FLOAT16 || port_.type == GK_BFLOAT16);
        if (type_of<T> != port_.type && !bits) throw std::invalid_argument("'" + port_.name + "' has another type");
        return static_cast<const T*>(data());
    }
    template <typename T>
    std::size_t size() const noexcept { return data_.size() / sizeof(T); }

   private:
    Port port_;
    std::vector<std::byte> data_;
};

/* A saved program. */
class Program {
   public:
    /* threads: most threads of a run; 0: as many as when the program was written, at most one for each core. */
    explicit Program(const std::string& path, int threads = 0) {
        gk_options options{};
        options.threads = threads;
        gk_session* opened = nullptr;
        check(gk_open(path.c_str(), &options, &opened));
        session_.reset(opened);
        for (std::size_t i = 0; i < gk_input_count(opened); ++i) {
            const std::int64_t* dims = gk_input_dims(opened, i);
            inputs_.push_back({gk_input_name(opened, i), gk_input_type(opened, i),
                               {dims, dims + gk_input_rank(opened, i)}, gk_input_bytes(opened, i)});
        }
        for (std::size_t i = 0; i < gk_output_count(opened); ++i) {
            const std::int64_t* dims = gk_output_dims(opened, i);
            outputs_.push_back({gk_output_name(opened, i), gk_output_type(opened, i),
                                {dims, dims + gk_output_rank(opened, i)}, gk_output_bytes(opened, i)});
        }
    }

    const std::vector<Port>& inputs() const noexcept { return inputs_; }
    const std::vector<Port>& outputs() const noexcept { return outputs_; }
    std::vector<Array> make_inputs() const { return {inputs_.begin(), inputs_.end()}; }
    std::vector<Array> make_outputs() const { return {outputs_.begin(), outputs_.end()}; }
    std::vector<Array> run(const std::vector<Array>& inputs) const {
        std::vector<Array> outputs = make_outputs();
        run(inputs, outputs);
        return outputs;
    }

    /* Writes into arrays that make_outputs returned. */
    void run(const std::vector<Array>& inputs, std::vector<Array>& outputs) const {
        std::vector<const void*> given;
        std::vector<void*> made;
        for (const Array& array : inputs) given.push_back(array.data());
        for (Array& array : outputs) made.push_back(array.data());
        check_sizes(inputs, inputs_);
        check_sizes(outputs, outputs_);
        check(gk_run(session_.get(), given.data(), given.size(), made.data(), made.size()));
    }

   private:
    /* gk_run compares the numbers of arrays, but cannot know their sizes. */
    static void check_sizes(const std::vector<Array>& arrays, const std::vector<Port>& ports) {
        for (std::size_t i = 0; i < arrays.size() && i < ports.size(); ++i) {
            if (arrays[i].size<std::byte>() == ports[i].bytes) continue;
            throw std::invalid_argument("the array of '" + ports[i].name + "' has another size");
        }
    }

    static void check(gk_status status) {
        if (status != GK_OK) throw Error(status, gk_error());
    }

    std::unique_ptr<gk_session, decltype(&gk_close)> session_{nullptr, gk_close};
    std::vector<Port> inputs_, outputs_;
};

}  // namespace gk

#endif
