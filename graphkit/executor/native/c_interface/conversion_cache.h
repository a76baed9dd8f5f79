// A folder of converted networks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c_interface/converter.h"
#include "c_interface/saved_program.h"

namespace graphkit {

// The place of one converted network in a cache folder. Its name is a hash of everything that the program depends on:
// the bytes of the network and of the files that it refers to, the arguments and settings of the converter, the states
// of files that arguments name, the version of graphkit, and the processor. A hash of the converter itself follows.
class ConversionCache {
  public:
    // Makes the folder if it does not exist. Throws FileError, also if other users may write into it, or if the place
    // is a folder itself. `options` has the folder. `converter` is the path of the converter, or "" if there is none:
    // then an entry of any converter is found.
    ConversionCache(const std::string& network, const ConverterOptions& options, const std::string& converter);

    // Opens the program; null if it is missing, damaged, or written for another processor.
    std::unique_ptr<SavedFile> find(int threads) const;

    // Moves a file of the same file system to the place, and removes the entries that were not used for longest, until
    // all together have at most `cache_bytes` of ConverterOptions. Other processes may do the same at the same time.
    // Leaves the file where it is if it has more bytes, or if the network or the converter has changed since the
    // constructor. Throws FileError.
    void keep(const std::string& file) const;

  private:
    std::string network_;
    std::vector<std::string> command_;
    std::string folder_;
    std::string converter_;
    std::int64_t most_bytes_;
    std::string key_;
    std::string place_;
};

}  // namespace graphkit
