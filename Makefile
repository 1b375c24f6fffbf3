# Everything this repository does starts here; `make` alone lists it.
# CARGO, CC, CXX, PREFIX and CARGO_TARGET_DIR can be set on the command line or in the environment. The first three may
# have flags: CC='ccache gcc', CARGO='cargo +stable'.

CARGO ?= $(or $(shell command -v cargo 2>/dev/null),$(wildcard $(HOME)/.cargo/bin/cargo),cargo)
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
GPUMEM := $(RELEASE)/gpumem
# What is built together: cargo builds the library again where it is asked for other packages with it, as they make
# libraries that it shares with them have more in them.
PACKAGES := -p gpumem -p gpumem-cli -p gpumem-preload
export CARGO

.DEFAULT_GOAL := help
.PHONY: help build demo test memcheck check fuzz soak test-gpu bench bench-gpu lint loom doc clean need-cargo need-cc

help:
	@echo 'make demo       build the library, run the quickstart and replay a trace on whatever device there is'
	@echo 'make test       every test that runs without a GPU; the last line counts them'
	@echo 'make memcheck   the C programs of the tests under valgrind, in 3 minutes'
	@echo 'make check      what an edit needs, within a minute: format, lints, the unit tests and the rules'
	@echo 'make fuzz       random programs against the C ABI: SECONDS=60 THREADS=1 SEED= ; a failure becomes a short C program'
	@echo 'make soak       the same work for MINUTES=60, a line each; fails when mapped or host memory drifts'
	@echo 'make loom       models of what threads share, under every order of their steps (minutes to build)'
	@echo 'make lint       formatting and lints, warnings are errors'
	@echo 'make test-gpu   the same contract tests, the C tests and more on a real GPU'
	@echo 'make bench      benchmarks on the host device;  make bench-gpu: beside its peers on a real GPU'
	@echo 'make examples   every example, into $(TARGET)/examples/'
	@echo 'make test-lean, make test-julia, make test-python   the packages in bindings/'
	@echo 'make julia      fetches a Julia where there is none, and says where it is;  make bench-julia: benchmarks of the package'
	@echo 'make wheel      the Python package as a wheel, into $(TARGET)/python/'
	@echo 'make install    library, headers, pkg-config and CMake files into PREFIX (default /usr/local);  make uninstall: away again'
	@echo 'make package    builds what make install needs, for one that runs as a user without Rust'
	@echo 'make build      the release library and the gpumem command, into $(RELEASE)/'
	@echo 'make doc        the documentation of the Rust sources, into $(TARGET)/doc/'
	@echo 'make clean      removes all that was built'

need-cargo:
	@command -v '$(firstword $(CARGO))' >/dev/null 2>&1 || { \
	  echo 'cargo is missing; install Rust 1.88 or newer from https://rustup.rs and open a new shell' >&2; \
	  exit 1; }

# Rust links with the C compiler too.
need-cc:
	@command -v '$(firstword $(CC))' >/dev/null 2>&1 || { \
	  echo 'a C compiler ($(CC)) is missing; install one: apt install gcc libc6-dev, or set CC' >&2; exit 1; }

build: need-cargo need-cc
	$(CARGO) build --release $(PACKAGES)
# The name that programs linked to the library look for when they start.
	@ln -sfn libgpumem.so $(RELEASE)/libgpumem.so.0

demo: build
	@mkdir -p $(TARGET)/examples
	$(CC) -std=c99 -O2 -Wall -Iinclude examples/c/quickstart.c -o $(TARGET)/examples/quickstart \
	  -L$(RELEASE) -lgpumem -Wl,-rpath,'$(abspath $(RELEASE))'
	@echo; echo '== quickstart'
	$(TARGET)/examples/quickstart
	@echo; echo '== a training trace, replayed (utilisation: peak live bytes / peak mapped bytes)'
	$(GPUMEM) replay examples/traces/training.csv.gz

test: need-cargo need-cc
	@sh scripts/test.sh

memcheck: need-cargo need-cc
	@GPUMEM_TEST_MEMCHECK=1 sh scripts/test.sh --workspace --exclude gpumem-bench --test capi c_abi::

check: need-cargo need-cc
	@sh scripts/check.sh

# On the library as users get it; LIBRARY names another.
FUZZ_LIBRARY = $(or $(LIBRARY),$(RELEASE)/libgpumem.so)
fuzz: need-cargo need-cc
	$(if $(LIBRARY),,$(CARGO) build --release $(PACKAGES))
	$(CARGO) run --quiet -p gpumem-fuzz --bin gpumem-fuzz -- --library '$(FUZZ_LIBRARY)' --out '$(TARGET)/fuzz' \
	  --seconds $(or $(SECONDS),60) --threads $(or $(THREADS),1) $(if $(SEED),--seed $(SEED)) $(FUZZ_FLAGS)

soak: need-cargo need-cc
	$(if $(LIBRARY),,$(CARGO) build --release $(PACKAGES))
	$(CARGO) run --quiet -p gpumem-fuzz --bin gpumem-soak -- --library '$(FUZZ_LIBRARY)' \
	  --minutes $(or $(MINUTES),60) --threads $(or $(THREADS),4)

lint: need-cargo
	@sh scripts/lint.sh

loom: need-cargo need-cc
	@sh scripts/loom.sh

test-gpu:
	@sh scripts/gpu.sh test

bench: need-cargo need-cc
	@sh scripts/bench.sh

bench-gpu:
	@sh scripts/gpu.sh bench

doc: need-cargo
	$(CARGO) doc --workspace --no-deps

clean: need-cargo
	$(CARGO) clean

# examples, install and what belongs to them.
-include mk/*.mk
