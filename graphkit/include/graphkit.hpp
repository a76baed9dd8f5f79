/* graphkit.hpp - graphkit.h for C++17: a class that closes its session, arrays that know their types, exceptions.
 *
 *     gk::Program program("net.gkp");
 *     std::vector<gk::Array> inputs = program.make_inputs();
 *     inputs[0].values<float>()[0] = 1.0f;
 *     std::vector<gk::Array> outputs = program.run(inputs);
 *
 * Threads may share a Program, and call all of its const functions at the same time. If the rows of a batch are
 * independent, run_shapes takes batches of any size:
 *
 *     std::vector<gk::Array> outputs = program.run_shapes(program.make_inputs(45));
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
    std::int32_t batch_axis = -1; /* the axis that has the rows of a batch; -1: none */

    /* Returns the port for another shape of the same rank. */
    Port with_shape(const std::vector<std::int64_t>& sizes) const {
        Port found = *this;
        found.shape = sizes;
        found.bytes = gk_type_size(type);
        for (std::int64_t size : sizes) {
            const auto count = static_cast<std::size_t>(size);
            if (size < 0 || (count > 0 && found.bytes > SIZE_MAX / count)) {
                throw std::invalid_argument("'" + name + "' has an impossible shape");
            }
            found.bytes *= count;
        }
        return found;
    }

    /* Returns the port for another number of rows; the same one if it has no batch axis. */
    Port with_rows(std::int64_t rows) const {
        std::vector<std::int64_t> sizes = shape;
        if (batch_axis >= 0) sizes[static_cast<std::size_t>(batch_axis)] = rows;
        return with_shape(sizes);
    }
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

/* A program that is ready to run. */
class Program {
   public:
    /* Opens a saved program, or a network that gk_open converts. The arguments after the path are the first fields of
     * gk_options. */
    explicit Program(const std::string& path, int threads = 0, std::int64_t max_iterations = 0, double timeout = 0)
        : Program(path, limits(threads, max_iterations, timeout)) {}

    /* The same with all options, such as a converter. */
    Program(const std::string& path, const gk_options& options) {
        gk_session* opened = nullptr;
        check(gk_open(path.c_str(), &options, &opened));
        *this = Program(std::shared_ptr<gk_session>(opened, gk_close), opened);
    }

    /* Opens a saved program from the contents of a .gkp file, which are copied. */
    static Program from_memory(const void* data, std::size_t size, const gk_options& options = {}) {
        gk_session* opened = nullptr;
        check(gk_open_memory(data, size, &options, &opened));
        return Program(std::shared_ptr<gk_session>(opened, gk_close), opened);
    }

    /* Returns the program of the same file for inputs of these shapes. */
    Program find(const std::vector<std::vector<std::int64_t>>& shapes) const {
        gk_session* found = nullptr;
        const std::vector<const std::int64_t*> dims = dims_of(shapes);
        check(gk_find_program(session_, dims.data(), dims.size(), &found));
        return Program(file_, found);
    }

    const std::vector<Port>& inputs() const noexcept { return inputs_; }
    const std::vector<Port>& outputs() const noexcept { return outputs_; }
    std::vector<Array> make_inputs() const { return {inputs_.begin(), inputs_.end()}; }
    /* Inputs for a batch of this size. */
    std::vector<Array> make_inputs(std::int64_t rows) const {
        std::vector<Array> made;
        for (const Port& port : inputs_) made.emplace_back(port.with_rows(rows));
        return made;
    }
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
        check(gk_run(session_, given.data(), given.size(), made.data(), made.size()));
    }

    /* Runs inputs with the shapes of their ports: see gk_run_shapes. */
    std::vector<Array> run_shapes(const std::vector<Array>& inputs) const {
        std::vector<std::vector<std::int64_t>> shapes;
        std::vector<const void*> given;
        for (const Array& array : inputs) {
            shapes.push_back(array.port().shape);
            given.push_back(array.data());
        }
        const std::vector<const std::int64_t*> dims = dims_of(shapes);
        std::vector<Array> outputs;
        std::vector<void*> made;
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            std::vector<std::int64_t> sizes(outputs_[i].shape.size() + 1);  // not empty, so that data() is not null
            check(gk_find_output_dims(session_, dims.data(), dims.size(), i, sizes.data()));
            sizes.pop_back();
            outputs.emplace_back(outputs_[i].with_shape(sizes));
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (inputs[i].port().type == inputs_[i].type) continue;
            throw std::invalid_argument("the array of '" + inputs_[i].name + "' has another type");
        }
        for (Array& array : outputs) made.push_back(array.data());
        check(gk_run_shapes(session_, given.data(), dims.data(), given.size(), made.data(), made.size()));
        return outputs;
    }

   private:
    Program(std::shared_ptr<gk_session> file, gk_session* session) : file_(std::move(file)), session_(session) {
        for (std::size_t i = 0; i < gk_input_count(session); ++i) {
            const std::int64_t* dims = gk_input_dims(session, i);
            inputs_.push_back({gk_input_name(session, i), gk_input_type(session, i),
                               {dims, dims + gk_input_rank(session, i)}, gk_input_bytes(session, i),
                               gk_input_batch_axis(session, i)});
        }
        for (std::size_t i = 0; i < gk_output_count(session); ++i) {
            const std::int64_t* dims = gk_output_dims(session, i);
            outputs_.push_back({gk_output_name(session, i), gk_output_type(session, i),
                                {dims, dims + gk_output_rank(session, i)}, gk_output_bytes(session, i),
                                gk_output_batch_axis(session, i)});
        }
    }

    static gk_options limits(int threads, std::int64_t max_iterations, double timeout) {
        gk_options options{};
        options.threads = threads;
        options.max_iterations = max_iterations;
        options.timeout = timeout;
        return options;
    }

    /* The library cannot know the lengths of shapes. */
    std::vector<const std::int64_t*> dims_of(const std::vector<std::vector<std::int64_t>>& shapes) const {
        std::vector<const std::int64_t*> dims;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            if (i < inputs_.size() && shapes[i].size() != inputs_[i].shape.size()) {
                throw std::invalid_argument("the shape of '" + inputs_[i].name + "' has another rank");
            }
            dims.push_back(shapes[i].data());
        }
        return dims;
    }

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

    std::shared_ptr<gk_session> file_; /* closes the file with the last of its programs */
    gk_session* session_ = nullptr;
    std::vector<Port> inputs_, outputs_;
};

}  // namespace gk

#endif
