# Commands for a newcomer; all logic is in tools/xtask (`cargo xtask --help`).
#
#   make demo          plays a film through Atlas, over HTTP and HTTPS, and serves it until Ctrl-C
#   make demo ONCE=1   the same in a network namespace; ends by itself, 0 only if bit-exact
#   make test          everything the project checks about itself
#   make test SKIPS_EXPECTED=FILE
#                      the same; fails if a check is skipped whose name is not in the file
#   make check         what takes longer: boots what is shipped, runs the commands of the documents, fuzzes,
#                      changes a raw store under load

SHELL := /bin/sh
# Where rustup puts cargo and Go's installer go, for shells that do not know them yet.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

.PHONY: demo test check toolchain

demo: toolchain
	@cargo xtask demo $(if $(filter-out 0,$(ONCE)),--once)

test: toolchain
	@cargo xtask test $(if $(SKIPS_EXPECTED),--skips-expected $(SKIPS_EXPECTED))

check: toolchain
	@cargo xtask check

# A Rust that is new enough, and the C compiler it links with.
toolchain:
	@have=$$(rustc --version 2>/dev/null | cut -d ' ' -f 2); \
	if ! command -v cargo >/dev/null || \
	    [ "$$(printf '%s\n' "$(RUST)" "$$have" | sort -V | head -n 1)" != "$(RUST)" ]; then \
		echo "Atlas needs Rust $(RUST) or newer (found: $${have:-none}): see https://rustup.rs" >&2; \
		exit 1; \
	fi
	@command -v cc >/dev/null || { $(SUDO) apt-get -qq update && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install --yes --no-install-recommends gcc libc6-dev; }
