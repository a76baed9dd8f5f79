// A folder of converted networks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "c_interface/saved_program.h"

namespace graphkit {

// The place of one converted network in a cache folder. Its name is a hash of everything that the program depends on:
// the bytes of the network and of the files that it refers to, the arguments and settings of the converter, the states
// of files that arguments name, the version of graphkit, and the processor.
class ConversionCache {
  public:
    // Makes the folder if it does not exist. Throws FileError, also if other users may write into it.
    // `program` and `arguments` are those of ConverterOptions.
    ConversionCache(const std::string& folder, const std::string& network, const std::string& program,
                    const std::vector<std::string>& arguments);

    // Opens the program; null if it is missing, damaged, or written for another processor.
    std::unique_ptr<SavedFile> find(int threads) const;

    // Moves a file of the same file system to the place, unless the network has changed since the constructor.
    // Throws FileError.
    void keep(const std::string& file) const;

  private:
    std::string network_;
    std::vector<std::string> command_;
    std::string folder_;
    std::string key_;
    std::string place_;
};

}  // namespace graphkit
