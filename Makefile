# Two commands do all the set-up on a fresh machine: `make demo` and `make test`. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
# Heavy builds live outside the tree, each under a name that follows from its content.
export KUBELET_AUTHENTICATOR_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/kubelet-authenticator
MUSL := x86_64-unknown-linux-musl
CARGO_DENY := 0.20.2
CARGO_MACHETE := 0.9.2
tool = $(KUBELET_AUTHENTICATOR_CACHE)/tools/$(1)/bin/$(firstword $(subst @, ,$(1)))
PACKAGES = $(shell $(CARGO) metadata --no-deps --format-version 1 | jq -r '.packages[].name')
CONTROL_PLANE ?= embedded
PROVIDER ?= aws

# help
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## demo: nodes join and attackers do not, on an embedded API server; CONTROL_PLANE=real on real Kubernetes;
##       PROVIDER=tpm is of machines with TPMs; PROVIDER=insecure tells what is not stopped where machines
##       prove nothing
demo: prerequisites-$(CONTROL_PLANE) dependencies
	@# Of the whole workspace: with another choice of packages, and so of features, the SDK of AWS is built once more.
	@$(CARGO) build --locked --quiet --workspace --bins
	@target/debug/demo --provider $(PROVIDER) --control-plane $(CONTROL_PLANE)

## test: everything that the continuous integration checks
test: prerequisites-all dependencies fmt layering clippy doc deny machete test-real bench-limits
	@tests/dependencies save
	@echo "make test: everything passed"

## test-fast: the tests that need no real Kubernetes, and so no Go
test-fast: moto
	$(CARGO) build --workspace --locked --bins
	$(CARGO) test --workspace --locked --exclude kubelet-authenticator-tests --exclude kubelet-authenticator-test-support
	$(CARGO) test --locked -p kubelet-authenticator-test-support --test api_server --test moto
	$(CARGO) test --locked -p kubelet-authenticator-tests $(foreach suite,$(FAST_SUITES),--test $(suite))

# Everything but what starts real Kubernetes.
FAST_SUITES = $(filter-out real_%,$(basename $(notdir $(wildcard tests/tests/*.rs))))

test-real: control-plane moto
	$(CARGO) build --workspace --locked --bins
	$(CARGO) test --workspace --locked --no-run
	@tests/dependencies save
	$(CARGO) test --workspace --locked --no-fail-fast

## bench: sizes, instructions, system calls, memory, times; printed, and written to target/bench
bench: prerequisites-all musl control-plane
	@$(CARGO) build --locked --quiet --release -p node-attestation-manager
	@$(CARGO) build --locked --quiet --release -p kubelet-authenticator-tests --bin bench
	@target/release/bench
	@$(CARGO) bench --locked --quiet -p node-attestation-aws --bench verification
	@$(CARGO) bench --locked --quiet -p node-attestation-tpm --bench verify

# The limits that do not depend on the machine's speed.
bench-limits: musl
	@$(CARGO) build --locked --quiet -p kubelet-authenticator-tests --bin bench
	@target/debug/bench --limits-only

## musl: the static node binaries
musl: prerequisites-musl
	$(CARGO) build --locked --profile node --target $(MUSL) -p kubelet-authenticator-aws
	$(CARGO) build --locked --profile node --target $(MUSL) -p kubelet-authenticator-insecure
	@# Its other program links libtss2, and so glibc.
	$(CARGO) build --locked --profile node --target $(MUSL) -p kubelet-authenticator-tpm --bin kubelet-authenticator-tpm
	$(CARGO) build --locked --profile node --target $(MUSL) -p kubelet-authenticator-floor

## control-plane: etcd, kube-apiserver, kube-controller-manager, kubelet, kubectl and kubeadm, built once and cached
control-plane: prerequisites-real
	@tests/control-plane/build >/dev/null

## moto: the simulator of EC2, installed once and cached
moto: prerequisites-embedded
	@tests/moto/build >/dev/null

# Nothing that was built of them for another tree is built again for a fresh one.
dependencies:
	@tests/dependencies restore

fmt:
	$(CARGO) fmt --all --check

# Each package by itself, so that features which another package turns on hide nothing.
clippy:
	@for package in $(PACKAGES); do \
	  echo "clippy $$package"; $(CARGO) clippy --locked --quiet -p $$package --all-targets -- -D warnings; done

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --locked --no-deps --document-private-items

layering:
	$(CARGO) test --locked --quiet -p kubelet-authenticator-tests --test layering

deny: $(call tool,cargo-deny@$(CARGO_DENY))
	$< --workspace check bans licenses sources

## advisories: known vulnerabilities of dependencies (fetches the advisory database)
advisories: $(call tool,cargo-deny@$(CARGO_DENY))
	$< --workspace check advisories

machete: $(call tool,cargo-machete@$(CARGO_MACHETE))
	$< .

# Built from source, once: with its own target folder, so that this tree's is not rebuilt for it.
$(KUBELET_AUTHENTICATOR_CACHE)/tools/%:
	package=$(firstword $(subst /, ,$*)); \
	$(CARGO) install --quiet --locked --root "$(KUBELET_AUTHENTICATOR_CACHE)/tools/$$package" "$$package"

prerequisites-%:
	@tests/prerequisites $*

.PHONY: help demo test test-fast test-real bench bench-limits musl control-plane moto dependencies fmt clippy doc layering \
	deny advisories machete
