# make install PREFIX=/usr/local [DESTDIR=/staging] [LIBDIR=...] [INCLUDEDIR=...] [BINDIR=...] [DATADIR=...]: the library,
# the one that gpumem run puts in front of programs, headers, the command with its manual, a pkg-config file, a CMake
# package, the documents and examples, licences, and suppressions for valgrind and ThreadSanitizer. make uninstall takes the same variables.
# gpumem run finds its library in lib, lib64 and lib/x86_64-linux-gnu (or aarch64-) beside BINDIR; for another LIBDIR it needs --library.
#
# The installed library is linked here, from a static one: its symbols carry the version GPUMEM_0, and rustc's own link
# of a shared library cannot be given one (it passes a version script that no second one can be combined with).

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share
CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
INSTALL ?= install
# The cargo profile to build with; the tests use dev, which links in seconds.
CARGO_PROFILE ?= release
# Set to nothing to keep debug information in what is installed, which is then seven times as large.
STRIP ?= strip --strip-debug

GPUMEM_VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
GPUMEM_SOVERSION := 0
PACKAGE_DIR := $(TARGET)/package
PACKAGE_BUILT := $(TARGET)/$(if $(filter dev,$(CARGO_PROFILE)),debug,$(CARGO_PROFILE))
PACKAGE_LIB := $(PACKAGE_DIR)/libgpumem.so.$(GPUMEM_VERSION)
PACKAGE_PRELOAD := $(PACKAGE_BUILT)/libgpumem_preload.so
# The command has the library inside, so it needs no other file.
PACKAGE_COMMAND := $(PACKAGE_BUILT)/gpumem

# The linker that comes with Rust, where it does: GNU ld would export the name of the version as a symbol of its own.
RUST_LLD = $(shell d="$$(rustc --print sysroot 2>/dev/null)/lib/rustlib/$$(rustc -vV 2>/dev/null | sed -n 's/^host: //p')/bin/gcc-ld"; \
	test -x "$$d/ld.lld" && echo "-fuse-ld=lld -B$$d")

# Installs a program or library without debug information: $(call program,from,to)
define program
	$(INSTALL) -m 755 $(1) '$(DESTDIR)$(2)'
	$(if $(STRIP),$(STRIP) '$(DESTDIR)$(2)')
endef
comma := ,

# The documents, what they show, and the examples that they name.
PACKAGE_DOCUMENTS := README.md CHANGELOG.md $(wildcard docs/*.md docs/spec/*.md docs/adr/*.md)
PACKAGE_BESIDE := LICENSE-MIT LICENSE-APACHE $(wildcard docs/*.svg docs/images/* examples/*/*.*)
DOCDIR = $(DATADIR)/doc/gpumem
# Links to what is in the sources only become words.
ONLY_IN_SOURCES := CONTRIBUTING\.md|bindings/[^)]*|bench/[^)]*|src/[^)]*

.PHONY: package install uninstall

# The Makefile has that, install.mk alone has not.
NEED_CC := $(if $(filter Makefile,$(MAKEFILE_LIST)),need-cc)
ifneq ($(shell command -v '$(firstword $(CARGO))' 2>/dev/null),)
package: $(NEED_CC)
	$(CARGO) build -p gpumem-static -p gpumem-cli -p gpumem-preload --profile $(CARGO_PROFILE)
	mkdir -p $(PACKAGE_DIR)
	$(CC) $(RUST_LLD) -shared -o $(PACKAGE_LIB) -Wl,-soname,libgpumem.so.$(GPUMEM_SOVERSION) \
		-Wl,--version-script=mk/gpumem.map -Wl,-z,nodelete,-z,relro,-z,now,-z,noexecstack \
		-Wl,--no-undefined -Wl,--gc-sections -Wl,--as-needed $(if $(STRIP),-Wl$(comma)--strip-debug) \
		-Wl,--whole-archive $(PACKAGE_BUILT)/libgpumem_static.a -Wl,--no-whole-archive \
		-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
	rm -rf $(PACKAGE_DIR)/man && mkdir -p $(PACKAGE_DIR)/man
	$(PACKAGE_COMMAND) man $(PACKAGE_DIR)/man
else
# As under sudo, where another user has Rust: what that user has packaged is installed.
PACKAGE_MADE := $(PACKAGE_LIB) $(PACKAGE_PRELOAD) $(PACKAGE_COMMAND) $(PACKAGE_DIR)/man/gpumem.1
package:
	@for f in $(PACKAGE_MADE); do test -e $$f || { \
	  echo "cargo is missing, and so is $$f; run make package as a user who has Rust, then this again" >&2; exit 1; }; done
	@echo 'cargo is missing; using what make package has made'
endif

# A file with @NAMES@ filled in: $(call fill,template,to)
define fill
	sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' \
		-e 's|@VERSION@|$(GPUMEM_VERSION)|g' -e 's|@SOVERSION@|$(GPUMEM_SOVERSION)|g' \
		-e "s|@INCLUDEDIR_FROM_LIBDIR@|$$(realpath -m --relative-to='$(LIBDIR)' '$(INCLUDEDIR)')|g" \
		$(1) > $(PACKAGE_DIR)/$(notdir $(1:.in=))
	$(INSTALL) -m 644 $(PACKAGE_DIR)/$(notdir $(1:.in=)) '$(DESTDIR)$(2)'
endef

install: package
	$(INSTALL) -d '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(LIBDIR)/cmake/gpumem' '$(DESTDIR)$(INCLUDEDIR)'
	$(INSTALL) -m 755 $(PACKAGE_LIB) '$(DESTDIR)$(LIBDIR)/libgpumem.so.$(GPUMEM_VERSION)'
# In front of programs only, by gpumem run: nothing is linked to it, so it has no version.
	$(call program,$(PACKAGE_PRELOAD),$(LIBDIR)/libgpumem_preload.so)
	ln -sf libgpumem.so.$(GPUMEM_VERSION) '$(DESTDIR)$(LIBDIR)/libgpumem.so.$(GPUMEM_SOVERSION)'
	ln -sf libgpumem.so.$(GPUMEM_SOVERSION) '$(DESTDIR)$(LIBDIR)/libgpumem.so'
	$(INSTALL) -d '$(DESTDIR)$(INCLUDEDIR)/gpumem' '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(DATADIR)/man/man1'
	$(INSTALL) -d '$(DESTDIR)$(DATADIR)/gpumem' '$(DESTDIR)$(DOCDIR)/include'
	$(INSTALL) -m 644 include/gpumem.h include/gpumem.hpp '$(DESTDIR)$(INCLUDEDIR)'
	$(INSTALL) -m 644 $(wildcard include/gpumem/*) '$(DESTDIR)$(INCLUDEDIR)/gpumem'
	$(call program,$(PACKAGE_COMMAND),$(BINDIR)/gpumem)
	$(INSTALL) -m 644 $(PACKAGE_DIR)/man/*.1 '$(DESTDIR)$(DATADIR)/man/man1'
	$(INSTALL) -m 644 mk/valgrind.supp mk/tsan.supp '$(DESTDIR)$(DATADIR)/gpumem'
	for f in $(PACKAGE_DOCUMENTS); do \
	  sed -E 's#\[([^]]*)\]\((\.\./)*($(ONLY_IN_SOURCES))\)#\1 (in the sources)#g' $$f > $(PACKAGE_DIR)/document && \
	  $(INSTALL) -D -m 644 $(PACKAGE_DIR)/document '$(DESTDIR)$(DOCDIR)/'$$f || exit 1; \
	done
	for f in $(PACKAGE_BESIDE); do $(INSTALL) -D -m 644 $$f '$(DESTDIR)$(DOCDIR)/'$$f || exit 1; done
	for f in gpumem gpumem.h gpumem.hpp; do \
	  ln -sfn "$$(realpath -m --relative-to='$(DOCDIR)/include' '$(INCLUDEDIR)')/$$f" '$(DESTDIR)$(DOCDIR)/include/'$$f || exit 1; \
	done
	$(call fill,mk/gpumem.pc.in,$(LIBDIR)/pkgconfig/gpumem.pc)
	$(call fill,cmake/gpumem-config.cmake.in,$(LIBDIR)/cmake/gpumem/gpumem-config.cmake)
	$(call fill,cmake/gpumem-config-version.cmake.in,$(LIBDIR)/cmake/gpumem/gpumem-config-version.cmake)

uninstall:
	rm -f '$(DESTDIR)$(LIBDIR)'/libgpumem.so* '$(DESTDIR)$(LIBDIR)'/libgpumem_preload.so '$(DESTDIR)$(INCLUDEDIR)'/gpumem.h '$(DESTDIR)$(INCLUDEDIR)'/gpumem.hpp
	rm -f '$(DESTDIR)$(BINDIR)/gpumem' '$(DESTDIR)$(DATADIR)'/man/man1/gpumem.1 '$(DESTDIR)$(DATADIR)'/man/man1/gpumem-*.1
	rm -rf '$(DESTDIR)$(INCLUDEDIR)/gpumem' '$(DESTDIR)$(DATADIR)/gpumem' '$(DESTDIR)$(DOCDIR)'
	rm -f '$(DESTDIR)$(LIBDIR)/pkgconfig/gpumem.pc'
	rm -rf '$(DESTDIR)$(LIBDIR)/cmake/gpumem'
