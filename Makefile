# Commands for a newcomer; all logic is in tools/xtask (`cargo xtask --help`).
#
#   make demo          plays a film through Atlas, over HTTP and HTTPS, and serves it until Ctrl-C
#   make demo ONCE=1   the same in a network namespace; ends by itself, 0 only if bit-exact
#   make demo FLEET=1  three edges that fill themselves from S3, steering, and players: kill one and see (needs root)
#   make test          the tests of all crates, and the server whole over one link: in minutes
#   make check         what takes longer or needs more: linters, every link, guests, what is shipped booted
#   make test check SKIPS_EXPECTED=FILE
#                      both; fails if a check is skipped whose name is not in the file

SHELL := /bin/sh
# Where rustup puts cargo and Go's installer go, for shells that do not know them yet.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# `cargo xtask`, built with the tests: what both need is compiled once, since cargo takes the same features for them.
XTASK := $(or $(CARGO_TARGET_DIR),target)/debug/atlas-xtask

.PHONY: demo test check built toolchain

demo: toolchain
	@$(if $(filter-out 0,$(FLEET)),cargo xtask fleet --serve --objects 500,\
		cargo run --quiet --release --package atlas-demo -- $(if $(filter-out 0,$(ONCE)),--once))

test: built
	@$(XTASK) test $(if $(SKIPS_EXPECTED),--skips-expected $(SKIPS_EXPECTED))

check: built
	@$(XTASK) check $(if $(SKIPS_EXPECTED),--skips-expected $(SKIPS_EXPECTED))

built: toolchain
	@cargo test --no-run

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
