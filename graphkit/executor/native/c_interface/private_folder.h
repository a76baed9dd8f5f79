// A temporary folder that only this user can read.
#pragma once

#include <string>

namespace graphkit {

class PrivateFolder {
  public:
    // Makes a folder in `parent`. Throws FileError; `setting` is the setting that chooses `parent`.
    PrivateFolder(const std::string& parent, const std::string& setting);
    // Removes the folder and its files.
    ~PrivateFolder();
    PrivateFolder(const PrivateFolder&) = delete;
    PrivateFolder& operator=(const PrivateFolder&) = delete;

    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

// Returns the folder for temporary files: TMPDIR, or else /tmp.
std::string temporary_folder();

}  // namespace graphkit
