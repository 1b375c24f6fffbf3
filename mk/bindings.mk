# make test-lean, make test-julia: the tests of the packages in bindings/, on the host device unless GPUMEM_BACKEND says otherwise.
# make julia fetches a Julia for that where there is none.

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
BINDINGS_LIB := $(abspath $(TARGET))/release/libgpumem.so
BINDINGS_ENV := GPUMEM_BACKEND=$(or $(GPUMEM_BACKEND),host) GPUMEM_ARENA_DEBUG=check GPUMEM_LIBRARY='$(BINDINGS_LIB)'

.PHONY: test-lean test-julia julia bench-julia bindings-library

bindings-library: build

test-lean: bindings-library
	@if command -v lake >/dev/null 2>&1; then \
	  cd bindings/lean && $(BINDINGS_ENV) GPUMEM_LOG=0 lake exe gpumemTest && $(BINDINGS_ENV) lake exe trainingLoop; \
	else echo 'skipped: no Lean (lake is not on the PATH)'; fi

# The path of a Julia: the one on the PATH, else the one that a script unpacks from Debian's mirror.
julia:
	@command -v julia || sh bindings/julia/fetch-julia.sh '$(TARGET)/julia'

test-julia: bindings-library
	@julia=$$(command -v julia || sh bindings/julia/fetch-julia.sh '$(TARGET)/julia') || { echo 'skipped: no Julia'; exit 0; }; \
	$(BINDINGS_ENV) "$$julia" --startup-file=no -t 4 --project=bindings/julia/Gpumem.jl bindings/julia/Gpumem.jl/test/runtests.jl

bench-julia: bindings-library
	@julia=$$(command -v julia || sh bindings/julia/fetch-julia.sh '$(TARGET)/julia') || { echo 'skipped: no Julia'; exit 0; }; \
	CC='$(CC)' JULIA="$$julia" LIBRARY='$(BINDINGS_LIB)' sh bindings/bench.sh
