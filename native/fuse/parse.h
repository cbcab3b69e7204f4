// From the objects of the typed face to the engine's own data.
#pragma once

#include <napi.h>

#include <memory>
#include <string>
#include <vector>

#include "fuse/server.h"

namespace cortexfs {

// Each returns false with `fault` set when the object is not acceptable.
bool parse_options(const Napi::Object& from, Options* out, std::string* fault);
bool parse_zones(const Napi::Array& from, std::vector<Zone>* out, std::string* fault);
bool parse_tree(const Napi::Array& from, Server* server, Tree* out, std::string* fault);

}  // namespace cortexfs
