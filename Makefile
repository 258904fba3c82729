# Every target does its own set-up on a Debian machine with Rust and Go; what is built once for the tests lies in
# ~/.cache/wintune, outside the checkout.

CONTROL_PLANE = tests/control-plane/build
TARGET = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: help demo test fuzz-nightly bench generate lint release control-plane

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: control-plane ## Tune six VMs on a real API server, show what came of it, take it all down.
	cargo build --quiet --bin wintune --example demo
	target/debug/examples/demo target/debug/wintune

test: control-plane ## Fuzz briefly, then run every test; the last lines say how many ran and what was skipped.
	fuzz/run 5
	tests/run

fuzz-nightly: ## Fuzz every target for a minute.
	fuzz/run 60

bench: ## Time a plan beside the parsing of its VM; the last line is the ratio.
	cargo bench --bench plan

generate: ## Write crds/ and the chart's copies anew.
	cargo run --quiet --bin wintune -- crds --out crds
	mkdir -p schemas && cargo run --quiet --bin wintune -- schema > schemas/plan.v1alpha1.json
	rm -rf charts/wintune/files/crds && mkdir -p charts/wintune/files && cp -r crds charts/wintune/files/crds

lint: ## Check format, lints and generated files.
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(MAKE) --no-print-directory generate
	git diff --exit-code -- crds schemas charts/wintune/files
	@test -z "$$(git status --porcelain -- crds schemas charts/wintune/files)" || { echo "crds/, schemas/ or their copies have files that git does not know"; exit 1; }

release: ## Build the static binary, target/<host>/release/wintune, and check that it is static.
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --bin wintune --target $(TARGET)
	@ldd target/$(TARGET)/release/wintune 2>&1 | grep -Eq 'statically linked|not a dynamic executable' || { echo "the binary is not static"; exit 1; }
	@target/$(TARGET)/release/wintune --version

control-plane:
	@$(CONTROL_PLANE) > /dev/null
