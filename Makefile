# `make demo` and `make test` set up everything on a fresh machine. `make help` lists the other targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Scripts parse messages and numbers in the output of programs, so the locale is fixed.
export LC_ALL := C.UTF-8
unexport LANGUAGE

# The arguments of make have common names, so a variable with the same name in the user's shell must not become an
# argument.
$(foreach variable,VERSION IMAGE SIGNER_IMAGE BUILDER PROVIDER CONTROL_PLANE SUITE TEST PART LANDING,$(if \
  $(filter environment,$(origin $(variable))),$(eval undefine $(variable))))

# A recipe must never get text that a shell would expand. For example, a git tag name can contain such text.
space := $() $()
characters := a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z \
  0 1 2 3 4 5 6 7 8 9 . _ - + ~ / : @ ,
without = $(if $(2),$(call without,$(subst $(firstword $(2)),,$(1)),$(wordlist 2,99,$(2))),$(1))
unfit = $(call without,$(subst $(space),!,$(value $(1))),$(characters))
checked = $(if $(filter command environment,$(firstword $(origin $(1)))),$(if $(call unfit,$(1)),$(error \
  invalid $(1): it can have letters, digits, and . _ - + ~ / : @ and commas)))
$(foreach variable,VERSION IMAGE SIGNER_IMAGE BUILDER SOURCE_DATE_EPOCH PROVIDER CONTROL_PLANE SUITE TEST PART,$(call checked,$(variable)))
export VERSION IMAGE SIGNER_IMAGE BUILDER
ifeq ($(origin COSIGN_PASSWORD),command line)
$(error set COSIGN_PASSWORD in the environment: all users of this machine can read the arguments of make)
endif
# Do not pass the key that signs a release to another make.
MAKEOVERRIDES := $(filter-out COSIGN_PASSWORD=% SIGNING_KEY=%,$(MAKEOVERRIDES))

CARGO ?= cargo
# An installed toolchain is sufficient if it has the pinned version under a different name.
toolchain := $(shell tests/toolchain)
ifneq ($(toolchain),)
export RUSTUP_TOOLCHAIN := $(toolchain)
endif
# Heavy builds are cached outside the tree, under names that depend on their content.
export KUBELET_AUTHENTICATOR_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/kubelet-authenticator
# CI builds a fresh clone only once, so cargo does not write data for incremental builds. CI does not debug programs, and
# debug information would be more than half of each test binary.
ifdef CI
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
endif
# The target directory of cargo.
ifdef CARGO_BUILD_TARGET_DIR
export CARGO_TARGET_DIR ?= $(CARGO_BUILD_TARGET_DIR)
endif
TARGET := $(or $(CARGO_TARGET_DIR),target)
CARGO_CYCLONEDX := 0.5.9
CARGO_DENY := 0.20.2
CARGO_MACHETE := 0.9.2
CARGO_MUTANTS := 27.1.0
MDBOOK := 0.5.4
MDBOOK_MERMAID := 0.17.1
tool = tests/tool $(1)
# Always selects the packages of the whole workspace. A different selection would change the features of dependencies, and
# cargo would build many crates again.
BUILD = $(CARGO) build --locked --workspace
# Downloads everything in Cargo.lock, so that no other cargo command needs a network.
FETCH = tests/retry $(CARGO) fetch --locked --quiet
# saved COMMAND: runs the command, and saves the dependencies that the command builds, even if the command fails.
saved = status=0; $(1) || status=$$?; $(SAVE); exit $$status
SAVE = tests/dependencies save || echo "the built dependencies are not saved" >&2
# staged COMMAND: runs the command. After a failure, the last lines contain the failed parts, and the commands that repeat
# only these parts.
staged = $(1) || { tests/stage --failed; exit 1; }
# Lints and documents all compiled code. An option of clippy's driver makes each warning an error.
LINT = RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/tests/lint" CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# `value` reads PROVIDER without expanding it, because the default of each of the two variables depends on the other one.
CONTROL_PLANE ?= $(if $(filter aws-tenants,$(value PROVIDER)),cluster-api,embedded)
PROVIDER ?= $(if $(filter cluster-api,$(CONTROL_PLANE)),tpm,aws)

# help
help:
	@sed -n 's/^##@ \(.*\)/\1:/p; s/^## /  /p' $(MAKEFILE_LIST)

##@ Try and test
## demo: shows machines that join, and attackers that cannot join, with an embedded API server
##       PROVIDER=aws|tpm|insecure|aws-tenants CONTROL_PLANE=embedded|real|cluster-api
demo: prerequisites-$(CONTROL_PLANE) dependencies
	@$(call saved,$(BUILD) --quiet --bins --test demo)
	@tests/demo "$(TARGET)/debug" --provider $(PROVIDER) --control-plane $(CONTROL_PLANE)

## test: the tests of the product on one machine, with real Kubernetes; writes durations to target/test-times.json
test: prerequisites-all dependencies
	@tests/stage --clear
	@$(call staged,$(MAKE) --jobs=3 $(STAGES_BUILT))
	@$(SAVE)
	@$(call staged,$(MAKE) --jobs=3 $(STAGES_TESTED))
	@$(SAVE)
	@tests/stage --table
	@echo "make test: everything passed"

## test-all: test, and tests whose parts take long to build; continuous integration runs test-all and tests/landing
test-all: prerequisites-all prerequisites-boots dependencies
	@tests/stage --clear
	@$(call staged,$(MAKE) --jobs=3 $(STAGES_BUILT) $(STAGES_OF_DEBIAN))
	@$(SAVE)
	@# Tests wait more than they compute. The builds and checks that run at the same time get only idle time.
	@$(call staged,$(MAKE) --jobs=4 $(STAGES_TESTED) stages-idle)
	@$(call staged,$(MAKE) --jobs=3 stage-more-suites stages-idle-checks $(if $(LANDING),stage-landing))
	@$(SAVE)
	@tests/stage --table
	@echo "make test-all: everything passed"

STAGES_BUILT := stage-fmt stage-build stage-control-plane stage-moto stage-deny stage-book stage-musl stage-fresh
STAGES_TESTED := stage-suites stage-bench-limits stages-idle-scripts
# These stages run before the tests, because apt drops its connections if it gets too little processor time.
STAGES_OF_DEBIAN := stage-image-builder stage-cloud-init stage-selinux-policy stage-boots
# These stages run one after the other, because apt locks the package lists of the host.
stage-selinux-policy: stage-cloud-init
stage-boots: stage-selinux-policy

# Runs the suite of `make test-long` that the commit selects.
landing:
	@tests/landing

# No stage waits for these checks.
stages-idle-scripts:
	@chrt --idle 0 $(MAKE) --jobs=1 stage-scripts stage-machete

# These targets run one after the other, and only while a processor is idle.
stages-idle:
	@chrt --idle 0 ionice --class 3 $(MAKE) --jobs=1 stage-cluster-api stage-metrics-server stage-judges stage-promtool \
	  stage-helm stage-cosign

# The checks of packages and images run only while a processor is idle, because no stage waits for them.
stages-idle-checks:
	@chrt --idle 0 ionice --class 3 $(MAKE) --jobs=1 stage-packages-check stage-image-builder-check

stage-%:
	@tests/stage $* $(MAKE) $*

## test-long: hours: outages, large pools, Cluster API Provider AWS, other versions, cgroup v2, arm64, FIPS, a release
test-long: prerequisites-all prerequisites-boots prerequisites-containerd prerequisites-ignition dependencies
	@$(MAKE) --jobs=3 build capa metrics-server judges promtool helm moto cloud-init boots-debian ignition
	@$(MAKE) release-check
	$(LINT) tests/suites --long
	$(LINT) tests/suites --previous
	older=$$(tests/older-kubernetes/build 1.33) && KUBELET_AUTHENTICATOR_CONTROL_PLANE=$$older $(LINT) tests/suites --floor
	$(MAKE) cgroup2-check
	between=$$(tests/older-kubernetes/build 1.34) && KUBELET_AUTHENTICATOR_CONTROL_PLANE=$$between $(LINT) tests/suites --between
	between=$$(tests/older-kubernetes/build 1.35) && KUBELET_AUTHENTICATOR_CONTROL_PLANE=$$between $(LINT) tests/suites --between
	$(MAKE) mutants
	$(MAKE) packages-check-all
	$(MAKE) packages-arm64-check
	$(MAKE) fips-check
	$(MAKE) packages-fips-check
	$(MAKE) isolation
	$(MAKE) demos
	$(MAKE) fresh-demos
	$(MAKE) readme

## test-fast: tests that do not need Go or real Kubernetes
test-fast: moto build
	$(LINT) tests/suites --fast

## suite: one suite, and the parts that it needs; SUITE=NAME, and TEST=NAME,NAME for some of its tests
suite:
	@$(if $(SUITE),,$(error SUITE is missing: make suite SUITE=NAME))$(LINT) tests/suites $(SUITE) $(TEST)

## build: compiles, lints and documents all code; treats warnings as errors
build:
	@$(FETCH)
	$(call saved,$(LINT) $(BUILD) --all-targets)

# Depends on the builds of all programs that the tests need.
suites: control-plane moto
	$(LINT) tests/suites
	$(LINT) $(CARGO) test --locked --workspace --doc

more-suites: cluster-api metrics-server judges promtool helm moto cloud-init boots
	$(LINT) tests/suites --more

# Checks the scripts, with stand-ins for other programs.
scripts:
	@tests/scripts/check

# Runs the suites that start kubelets, on a machine with only cgroup version 2.
cgroup2-check: prerequisites-all control-plane moto build
	$(LINT) tests/suites --cgroup2

# Runs the demos with only the prerequisites on PATH.
demos: moto build
	@tests/scripts/demos

# Checks that `make` lists or installs the programs that are missing on a minimal Debian system.
fresh: prerequisites-images
	@tests/fresh/check

# Runs the demos on minimal Debian systems, as a new user would.
fresh-demos: prerequisites-images
	@tests/fresh/check --demo

# Runs the commands of the README in a fresh clone: a demo, the packages, and a join of a node with these packages.
readme: prerequisites-all control-plane moto build
	$(LINT) tests/readme/check

# Checks each package separately, because features that another package enables could hide errors.
isolation:
	tests/isolation

## bench: sizes, system calls, memory and times, in target/bench; SUITE=NAME for one suite
bench: bench-$(or $(SUITE),all)

# This benchmark uses simulators, and does not need Kubernetes.
bench-scale:
	@$(FETCH)
	@$(CARGO) bench --locked --quiet -p node-attestation-runtime --bench scale

bench-programs: prerequisites-all musl control-plane
	@$(FETCH)
	@$(CARGO) build --locked --quiet --release -p node-attestation-manager
	@$(CARGO) build --locked --quiet --release -p kubelet-authenticator-tests --bin bench --bin null-attestation-controller

bench-%: bench-programs
	@"$(TARGET)/release/bench" $*

bench-all: bench-programs bench-scale
	@"$(TARGET)/release/bench"
	@$(CARGO) bench --locked --quiet -p node-attestation-aws --bench verification
	@$(CARGO) bench --locked --quiet -p node-attestation-tpm --bench verify

# Checks the limits that do not depend on the speed of the machine.
bench-limits: musl build
	@"$(TARGET)/debug/bench" --limits-only

##@ Build and package
## musl: the static node programs
musl: prerequisites-musl
	@tests/musl

## packages: deb, rpm, tar and sysext packages of all programs, with checksums, in target/packages
##           VERSION=... (also for the targets below) must match the source version, or the target fails
packages: prerequisites-packaging musl
	@packaging/packages target/packages

## packages-arm64: the packages for arm64, in target/packages-arm64
packages-arm64: prerequisites-packaging musl-arm64
	@packaging/packages --arch arm64 target/packages-arm64

musl-arm64: prerequisites-arm64
	@tests/musl aarch64

## fips: the programs with the FIPS 140-3 module of AWS-LC, in target/fips-programs
fips: prerequisites-fips
	@packaging/fips target/fips-programs

## packages-fips: deb, rpm and tar packages of the FIPS programs, with checksums, in target/packages-fips
packages-fips: prerequisites-packaging fips
	@packaging/packages --fips target/packages-fips

# Checks the FIPS packages with package linters, and checks the effects of their installation.
packages-fips-check: prerequisites-packages fips
	@tests/packages/fips

# Checks that the FIPS programs report AWS-LC-FIPS, and that nodes join with these programs.
fips-check: fips build
	@for program in target/fips-programs/*; do "$$program" version | grep -F '(AWS-LC-FIPS)'; done
	$(LINT) tests/suites --fips

## image: the controller's image, an OCI archive in target/image; IMAGE=registry/name (also for the targets below)
image: prerequisites-musl
	@packaging/controller/image target/image

## image-arm64: the controller's image for arm64, in target/image-arm64
image-arm64: prerequisites-arm64
	@packaging/controller/image --arch arm64 target/image-arm64

## image-fips: the controller's image with the FIPS program, in target/image-fips
image-fips: prerequisites-musl fips
	@packaging/controller/image --fips target/image-fips

## signer-image: the image of the PKCS #11 signer, an OCI archive in target/image; SIGNER_IMAGE=registry/name
signer-image: prerequisites-packaging
	@packaging/signer/image target/image

## chart: the controller's Helm chart, in target/chart
chart: prerequisites-real
	@packaging/chart/build target/chart

## components: the controller's manifests for kubectl and clusterctl, in target/components
components: control-plane
	@packaging/clusterctl/build target/components

## release: packages (not FIPS), images, chart and manifests, with SBOMs, provenance, checksums, in target/release-artifacts
##          SIGNING_KEY=FILE signs with cosign; COSIGN_PASSWORD decrypts the file
release:
	@if grep -nH SECURITY-CONTACT SECURITY.md >&2; then \
	  echo "SECURITY.md has no address for reports: replace SECURITY-CONTACT" >&2; exit 1; fi
	@env -u COSIGN_PASSWORD -u SIGNING_KEY $(MAKE) release-programs
	@CARGO_CYCLONEDX=$$(env -u COSIGN_PASSWORD -u SIGNING_KEY $(call tool,cargo-cyclonedx@$(CARGO_CYCLONEDX))) packaging/release target/release-artifacts

# Runs in a separate make, because prerequisites inherit the environment of their target.
release-programs: prerequisites-release musl musl-arm64 control-plane
	@$(FETCH)
	@$(call tool,cargo-cyclonedx@$(CARGO_CYCLONEDX)) >/dev/null

# Builds two releases, checks that they are identical, and checks their files, images and signatures.
release-check: prerequisites-release musl musl-arm64 control-plane cosign
	@CARGO_CYCLONEDX=$$($(call tool,cargo-cyclonedx@$(CARGO_CYCLONEDX))) tests/release/check

# Checks the packages for nodes with package linters, and checks the effects of their installation and removal.
packages-check: prerequisites-packages musl
	@tests/packages/check --nodes

# Runs the checks of packages-check for all packages. The release build of the controller's program takes many minutes.
packages-check-all: prerequisites-packages musl control-plane
	@tests/packages/check

# Checks all packages for arm64, and runs joins, renewals and commands with the arm64 programs in QEMU.
packages-arm64-check: prerequisites-packages musl-arm64 build
	@tests/packages/check arm64
	@$(LINT) tests/suites --arm64

## image-builder-check: the role in image-builder/ on Debian, with goss, and a join of a machine with the image
image-builder-check: prerequisites-all image-builder cosign cluster-api moto cloud-init musl build
	$(LINT) tests/image-builder/check

##@ Parts of the tests, built once and cached
## control-plane: etcd, the Kubernetes components, kubectl and kubeadm
control-plane: prerequisites-real
	@tests/control-plane/build >/dev/null

## cluster-api: Cluster API's managers, clusterctl, and the resources of Cluster API Provider AWS
cluster-api: control-plane
	@tests/cluster-api/managers/build >/dev/null
	@tests/cluster-api/capa/build manifests >/dev/null

## capa: the manager of Cluster API Provider AWS
capa: cluster-api
	@tests/cluster-api/capa/build >/dev/null

## metrics-server: metrics-server, for kubectl top
metrics-server: cluster-api
	@tests/metrics-server/build >/dev/null

## promtool: promtool, for metrics and alerts
promtool: prerequisites-real
	@tests/promtool/build >/dev/null

## helm: helm, for the chart
helm: prerequisites-real
	@packaging/chart/helm/build >/dev/null

## cosign: cosign, for signatures
cosign: prerequisites-real
	@packaging/cosign/build >/dev/null

## judges: the code with which Cluster API Provider AWS and ACK select AWS identities
judges: prerequisites-real
	@tests/judges/build >/dev/null

## moto: the EC2 simulator
moto: prerequisites-embedded
	@tests/moto/build >/dev/null

## ignition: Ignition, in the version whose formats Cluster API uses
ignition: prerequisites-ignition
	@tests/ignition/build >/dev/null

## boots: disks with Debian's kernels and boot loaders, for virtual machines with firmware
boots: prerequisites-boots
	@tests/boots/build >/dev/null

# Creates a disk with Debian, for virtual machines that run Pods or enforce SELinux.
boots-debian: prerequisites-all prerequisites-boots
	@tests/boots/debian/build >/dev/null

# Unpacks Debian's cloud-init for test machines.
cloud-init:
	@tests/cloud-init/build >/dev/null

# Compiles Debian's SELinux policy for the package checks.
selinux-policy:
	@tests/packages/policy/build >/dev/null

## image-builder: Ansible, goss and a root directory of Debian
image-builder: prerequisites-images
	@tests/ansible/build >/dev/null
	@tests/goss/build >/dev/null
	@tests/image-builder/root/build >/dev/null

# Reuses the dependencies that were built for a different clone.
dependencies:
	@tests/dependencies restore || echo "the dependencies are built again" >&2
	@$(FETCH)

fmt:
	$(CARGO) fmt --all --check

##@ Pages and checks
## book: the pages of docs as a book, in target/book
book:
	@$(LINT) $(CARGO) test --locked --quiet --workspace --test book links::
	@mdbook=$$($(call tool,mdbook@$(MDBOOK)) --no-default-features --features search); \
	mermaid=$$($(call tool,mdbook-mermaid@$(MDBOOK_MERMAID))); \
	said=$$(MDBOOK_PREPROCESSOR__MERMAID__COMMAND="$$mermaid" "$$mdbook" build docs 2>&1) || { echo "$$said" >&2; exit 1; }; \
	if grep -E '(WARN|ERROR)' <<<"$$said" >&2; then exit 1; fi; \
	if grep -l 'language-mermaid' target/book/*.html >&2; then echo "these pages show the code of a diagram instead of the diagram" >&2; exit 1; fi; \
	RUST_LOG=error "$$mermaid" install target/book
	@# Only pages with pictures load the scripts that draw pictures.
	@sed -i 's#</body>#<script src="mermaid.min.js"></script><script src="mermaid-init.js"></script></body>#' \
	  $$(grep -l '<pre class="mermaid">' target/book/*.html)
	@# The book does not contain the other files of the repository, so links to these files open the repository.
	@version=$$(packaging/version); \
	sed -i "s#href=\"\.\./#href=\"$(REPOSITORY)/blob/v$$version/#g" target/book/*.html

REPOSITORY = $(shell sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)

## lint-prose: wording in pages, comments, texts and test names that an editor would change
lint-prose:
	@$(CARGO) test --locked --quiet --workspace --test layering -- --nocapture --test-threads=1 prose::

deny:
	@$(FETCH)
	deny=$$($(call tool,cargo-deny@$(CARGO_DENY))); "$$deny" --workspace check bans licenses sources

## advisories: known vulnerabilities of dependencies; fetches the advisory database
advisories:
	@$(FETCH)
	deny=$$($(call tool,cargo-deny@$(CARGO_DENY))); tests/retry "$$deny" --workspace check advisories

machete:
	machete=$$($(call tool,cargo-machete@$(CARGO_MACHETE))); "$$machete" .

## mutants: code changes that no unit test detects, for the rows of docs/attacks.md; 10 minutes; PART=... for a part,
##          PART=all for all parts without results, PART=--table for the results
mutants:
	@$(FETCH)
	mutants=$$($(call tool,cargo-mutants@$(CARGO_MUTANTS))); PATH="$${mutants%/*}:$$PATH" tests/mutants $(PART)

prerequisites-%:
	@tests/prerequisites $*

.PHONY: scripts demos fresh fresh-demos readme book packages packages-check packages-check-all components help demo test test-all test-long test-fast suite build suites more-suites \
	stages-idle stages-idle-checks stages-idle-scripts landing selinux-policy isolation bench bench-all bench-limits bench-programs bench-scale musl control-plane cluster-api capa packages-arm64 packages-arm64-check \
	musl-arm64 image-builder image-builder-check metrics-server judges promtool moto cloud-init boots boots-debian ignition dependencies fmt deny \
	advisories lint-prose machete mutants image image-arm64 image-fips signer-image chart release release-programs release-check helm fips fips-check packages-fips packages-fips-check cgroup2-check cosign
