# make wheel: the Python package as a wheel, with the library, the preload library and the command in it.
# make test-python: its tests on the host device, in a virtual environment of their own.
# Packages come from PyPI; a machine without access to it says "skipped: why".

PYTHON ?= python3
PYTHON_DIR := $(TARGET)/python
PYTHON_BIN := $(PYTHON_DIR)/venv/bin

.PHONY: wheel test-python

wheel: build
	@mkdir -p $(PYTHON_DIR)
	@test -x $(PYTHON_DIR)/build/bin/pip || $(PYTHON) -m venv $(PYTHON_DIR)/build
	GPUMEM_PREBUILT='$(abspath $(RELEASE))' $(PYTHON_DIR)/build/bin/pip wheel --quiet --no-deps --wheel-dir $(PYTHON_DIR) ./bindings/python
	@ls -l $(PYTHON_DIR)/*.whl

test-python: build
	@PYTHON='$(PYTHON)' GPUMEM_PREBUILT='$(abspath $(RELEASE))' sh bindings/python/test.sh '$(PYTHON_DIR)'
