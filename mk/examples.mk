# make examples: every program of examples/c and examples/cpp, in target/examples/, ready to run.

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
# The cargo profile to build the library with.
CARGO_PROFILE ?= release
EXAMPLES_DIR := $(TARGET)/examples
EXAMPLES_LIB := $(abspath $(TARGET))/$(if $(filter dev,$(CARGO_PROFILE)),debug,$(CARGO_PROFILE))/libgpumem.so
EXAMPLES_C := $(patsubst examples/c/%.c,$(EXAMPLES_DIR)/%,$(wildcard examples/c/*.c))
EXAMPLES_CPP := $(patsubst examples/cpp/%.cpp,$(EXAMPLES_DIR)/%,$(wildcard examples/cpp/*.cpp))
# The programs look for the library next to themselves, under the name that programs record.
EXAMPLES_LINK := -L$(EXAMPLES_DIR) -lgpumem -Wl,-rpath,'$$ORIGIN'

.PHONY: examples examples-library

examples: $(EXAMPLES_C) $(EXAMPLES_CPP)

examples-library: need-cargo need-cc
	$(CARGO) build $(PACKAGES) --profile $(CARGO_PROFILE)
	mkdir -p $(EXAMPLES_DIR)
	ln -sf '$(EXAMPLES_LIB)' $(EXAMPLES_DIR)/libgpumem.so.0
	ln -sf libgpumem.so.0 $(EXAMPLES_DIR)/libgpumem.so

$(EXAMPLES_DIR)/%: examples/c/%.c include/gpumem.h $(wildcard include/gpumem/*.h) | examples-library
	$(CC) -std=c99 -D_POSIX_C_SOURCE=200809L -O2 -g -Wall -Wextra -pedantic $(CFLAGS) -Iinclude $< $(EXAMPLES_LINK) -o $@

$(EXAMPLES_DIR)/%: examples/cpp/%.cpp include/gpumem.h include/gpumem.hpp $(wildcard include/gpumem/*) | examples-library
	$(CXX) -std=c++17 -O2 -Wall -Wextra -pedantic $(CXXFLAGS) -Iinclude $< $(EXAMPLES_LINK) -o $@
