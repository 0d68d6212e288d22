// All that the template engine of .deps/jinja asks of ggml: a check that ends the program.
#pragma once
#include <cstdlib>
#define GGML_ASSERT(x) ((x) ? void() : std::abort())
