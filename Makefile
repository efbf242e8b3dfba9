# Everything a user or CI calls. Rust is the only thing that must be there; rustup fetches the
# pinned toolchain by itself. With Go, the tests run on a real control plane too; without, they say
# which were skipped.
.DEFAULT_GOAL := help
CONTROL_PLANE := cargo run --quiet --package nap-controlplane-build
.PHONY: help demo test check dist image bench controlplane conformance
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
CA_ROOTS ?= /etc/ssl/certs/ca-certificates.crt
# Tests on real processes wait more than they work, so two cores run three of them side by side.
TEST_THREADS = $(shell cores=$$(getconf _NPROCESSORS_ONLN); [ "$$cores" -gt 3 ] && echo $$cores || echo 3)

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: need-cargo ## Tell the whole story on the embedded cluster: scale up, consolidate, scale to zero
	cargo build --package nap
	@target/debug/nap demo

test: need-cargo ## Run every test; builds a real control plane first, if Go is there
	@$(CONTROL_PLANE) >/dev/null || echo "!!! tests on a real control plane are SKIPPED: see the error above !!!" >&2
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace --quiet

controlplane: need-cargo ## Build etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl for tests
	@$(CONTROL_PLANE)

check: need-cargo ## Formatting, lints with warnings denied, and the tidy checks
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo run --quiet --package xtask -- tidy

dist: need-cargo ## Build the binary to ship, stripped, with its symbols in a file beside it
	cargo build --profile dist --package nap
	objcopy --only-keep-debug target/dist/nap target/dist/nap.debug
	objcopy --strip-all --add-gnu-debuglink=target/dist/nap.debug target/dist/nap
	@du -h target/dist/nap target/dist/nap.debug

image: need-cargo ## Build a static binary and write a container image around it, target/nap-image.tar
	RUSTFLAGS='-C target-feature=+crt-static' NAP_COMMIT=$$(git rev-parse HEAD) \
	    cargo build --profile dist --package nap --target $(HOST)
	strip --strip-debug -o target/nap-static target/$(HOST)/dist/nap
	@cargo run --quiet --package xtask -- image target/nap-static $(CA_ROOTS) nap:$(VERSION) target/nap-image.tar

bench: need-cargo ## Run nap and Karpenter's scheduler on the same problems and write docs/benchmarks.md
	@bench/run

conformance: need-cargo ## Run Karpenter's own end-to-end suites against nap; SPEC='text', ARGS='--planes 2 --resume'
	cargo build --package nap
	@cargo run --quiet --package nap-conformance -- $(if $(SPEC),--spec '$(SPEC)') $(ARGS)

.PHONY: need-cargo
need-cargo:
	@command -v cargo >/dev/null || { echo "error: cargo is missing: install Rust from https://rustup.rs"; exit 1; }
