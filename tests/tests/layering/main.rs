//! Checks of the source:
//!
//! - the permitted imports in docs/architecture.md, which are compared with the manifests, and with `use` lines for the
//!   rules within a package
//! - names of types, and names of options and settings that no suite uses
//! - rules for assertions
//! - tests that end early
//! - the syntax of the files in a release

mod absences;
mod clocks;
mod design;
mod files;
mod locks;
mod log_lines;
mod modules;
mod names;
mod prose;
mod reasons;
mod returns;
mod tried;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ATTESTATION: &str = "kubelet-attestation";
/// The package that looks up host names, for both the node and the controller.
const RESOLVER: &str = "kubelet-attestation-resolver";
const NODE: &str = "kubelet-authenticator";
const PROVIDERS: [&str; 4] = [
    "kubelet-authenticator-aws",
    "kubelet-authenticator-insecure",
    "kubelet-authenticator-null",
    NODE_TPM,
];
/// The package that links libtss2 into one of its two programs.
const NODE_TPM: &str = "kubelet-authenticator-tpm";
const CORE: &str = "node-attestation-core";
const RUNTIME: &str = "node-attestation-runtime";
/// The verifiers of evidence.
const VERIFIERS: [&str; 2] = [AWS, TPM];
const AWS: &str = "node-attestation-aws";
const TPM: &str = "node-attestation-tpm";
/// The interface to programs that hold CA keys.
const SIGNER_API: &str = "node-attestation-signer-api";
/// The package with the turns that tenants share, for the controller and its signers.
const TURNS: &str = "node-attestation-turns";
/// The programs that hold CA keys.
const SIGNERS: [&str; 1] = ["node-attestation-signer-pkcs11"];
const MANAGER: &str = "node-attestation-manager";
const SUPPORT: &str = "kubelet-authenticator-test-support";
const FLOOR: &str = "kubelet-authenticator-floor";
const FUZZ: &str = "kubelet-authenticator-fuzz";
const TESTS: &str = "kubelet-authenticator-tests";

/// The direct dependencies of each package: first without the dependencies that only tests use, and then with all
/// dependencies.
struct Workspace {
    root: PathBuf,
    normal: BTreeMap<String, BTreeSet<String>>,
    with_dev: BTreeMap<String, BTreeSet<String>>,
}

impl Workspace {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .to_owned();
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--format-version",
                "1",
                "--no-deps",
                "--locked",
                "--offline",
            ])
            .current_dir(&root)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (mut normal, mut with_dev) = (BTreeMap::new(), BTreeMap::new());
        for package in metadata["packages"].as_array().unwrap() {
            let name = package["name"].as_str().unwrap();
            let dependencies = |dev: bool| -> BTreeSet<String> {
                let dependencies = package["dependencies"].as_array().unwrap().iter();
                let chosen = dependencies.filter(|dependency| dev || dependency["kind"] != "dev");
                chosen
                    .map(|dependency| dependency["name"].as_str().unwrap().to_owned())
                    .collect()
            };
            normal.insert(name.to_owned(), dependencies(false));
            with_dev.insert(name.to_owned(), dependencies(true));
        }
        Self {
            root,
            normal,
            with_dev,
        }
    }

    fn ours(&self, package: &str) -> BTreeSet<&str> {
        self.normal[package]
            .iter()
            .map(String::as_str)
            .filter(|name| self.normal.contains_key(*name))
            .collect()
    }

    /// The source files below `folder` that contain a line for which `offends` returns true.
    fn offending(&self, folder: &str, offends: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let files = rust_files(&self.root.join(folder));
        assert!(!files.is_empty(), "{folder} has no source files");
        let offending =
            |file: &PathBuf| std::fs::read_to_string(file).unwrap().lines().any(&offends);
        files.into_iter().filter(offending).collect()
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn every_package_is_listed_in_the_layering() {
    let workspace = Workspace::read();
    let placed: BTreeSet<&str> = [
        ATTESTATION,
        RESOLVER,
        NODE,
        CORE,
        RUNTIME,
        SIGNER_API,
        TURNS,
        MANAGER,
        SUPPORT,
        FLOOR,
        FUZZ,
        TESTS,
    ]
    .into_iter()
    .chain(PROVIDERS)
    .chain(VERIFIERS)
    .chain(SIGNERS)
    .collect();

    assert_eq!(
        workspace
            .normal
            .keys()
            .map(String::as_str)
            .collect::<BTreeSet<_>>(),
        placed
    );
}

#[test]
fn attestation_imports_no_workspace_package_and_does_no_io() {
    let workspace = Workspace::read();

    assert!(workspace.ours(ATTESTATION).is_empty());
    assert!(workspace.ours(RESOLVER).is_empty());
    for banned in [
        "tokio",
        "reqwest",
        "kube",
        "futures",
        "tss-esapi",
        "aws-lc-rs",
        "hyper",
    ] {
        assert!(!workspace.normal[ATTESTATION].contains(banned), "{banned}");
    }
    let io = workspace.offending("attestation/src", |line| {
        [
            "std::fs",
            "std::net",
            "std::env",
            "std::process",
            "SystemTime::now",
        ]
        .iter()
        .any(|word| line.contains(word))
    });
    assert_eq!(io, Vec::<PathBuf>::new());
}

#[test]
fn the_node_library_imports_attestation_and_the_resolver_and_no_runtime() {
    let workspace = Workspace::read();

    assert_eq!(workspace.ours(NODE), [ATTESTATION, RESOLVER].into());
    for banned in ["tokio", "futures", "kube", "k8s-openapi"] {
        assert!(!workspace.normal[NODE].contains(banned), "{banned}");
    }
    let asynchronous = workspace.offending("src", |line| {
        line.contains("async fn") || line.contains(".await")
    });
    assert_eq!(asynchronous, Vec::<PathBuf>::new());
}

#[test]
fn providers_import_only_the_node_library_and_attestation() {
    let workspace = Workspace::read();

    for provider in PROVIDERS {
        assert!(
            workspace
                .ours(provider)
                .is_subset(&[ATTESTATION, NODE, RESOLVER].into()),
            "{provider}"
        );
    }
}

#[test]
fn core_imports_attestation_and_has_no_client_no_runtime_and_no_clock() {
    let workspace = Workspace::read();

    assert_eq!(workspace.ours(CORE), [ATTESTATION].into());
    for banned in ["tokio", "hyper", "tower", "reqwest", "rustls"] {
        assert!(!workspace.normal[CORE].contains(banned), "{banned}");
    }
    let manifest = fs::read_to_string(workspace.root.join("controller/core/Cargo.toml")).unwrap();
    let kube = "kube = { workspace = true, features = [\"derive\"] }";
    assert!(manifest.lines().any(|line| line == kube), "{manifest}");
    let clocks = workspace.offending("controller/core/src", |line| {
        ["SystemTime::now", "Instant", "Timestamp::now"]
            .iter()
            .any(|word| line.contains(word))
    });
    assert_eq!(clocks, Vec::<PathBuf>::new());
}

#[test]
fn the_runtime_imports_only_interfaces_and_no_cloud_crate() {
    let workspace = Workspace::read();

    assert_eq!(
        workspace.ours(RUNTIME),
        [ATTESTATION, CORE, RESOLVER, SIGNER_API, TURNS].into()
    );
    for package in [CORE, RUNTIME] {
        let cloud = |name: &&String| {
            name.starts_with("aws-sdk") || name.starts_with("aws-config") || *name == "tss-esapi"
        };
        assert_eq!(workspace.normal[package].iter().find(cloud), None);
    }
}

#[test]
fn verifiers_import_only_controller_libraries_and_attestation() {
    let workspace = Workspace::read();

    for verifier in VERIFIERS {
        assert!(
            workspace
                .ours(verifier)
                .is_subset(&[ATTESTATION, CORE, RUNTIME].into()),
            "{verifier}"
        );
    }
}

#[test]
fn external_signers_import_their_interface_and_turns_but_no_openssl() {
    let workspace = Workspace::read();

    assert!(workspace.ours(SIGNER_API).is_empty());
    assert!(workspace.ours(TURNS).is_empty());
    for signer in SIGNERS {
        assert_eq!(
            workspace.ours(signer),
            [SIGNER_API, TURNS].into(),
            "{signer}"
        );
        let openssl = |name: &&String| name.contains("openssl") || *name == "native-tls";
        assert_eq!(workspace.normal[signer].iter().find(openssl), None);
        for (package, dependencies) in &workspace.with_dev {
            assert!(!dependencies.contains(signer), "{package}");
        }
    }
}

#[test]
fn no_package_imports_the_manager() {
    let workspace = Workspace::read();

    for (package, dependencies) in &workspace.with_dev {
        assert!(!dependencies.contains(MANAGER), "{package}");
    }
    assert!(
        workspace
            .ours(MANAGER)
            .is_subset(&[ATTESTATION, CORE, RUNTIME, AWS, TPM].into())
    );
}

#[test]
fn fuzz_targets_import_only_libraries_and_are_not_imported() {
    let workspace = Workspace::read();

    let libraries = [ATTESTATION, NODE, CORE, RUNTIME, AWS, TPM, SUPPORT];
    assert_eq!(workspace.ours(FUZZ), libraries.into());
    for (package, dependencies) in &workspace.with_dev {
        assert!(!dependencies.contains(FUZZ), "{package}");
    }
}

#[test]
fn cloud_sdks_and_tpm_libraries_stay_in_their_packages() {
    let workspace = Workspace::read();

    for (package, dependencies) in &workspace.with_dev {
        let strays = dependencies.iter().filter(|name| {
            name.starts_with("aws-sdk") && package != AWS
                || *name == "tss-esapi" && package != NODE_TPM
        });
        assert_eq!(
            strays.collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{package}"
        );
    }
}

#[test]
fn only_one_module_calls_tpms() {
    let workspace = Workspace::read();

    let mut speaking = workspace.offending("providers", |line| line.contains("tss_esapi"));
    speaking.sort();
    let module = ["tpm/nv.rs", "tpm.rs"];
    let module = module.map(|file| {
        workspace
            .root
            .join("providers/tpm/src/bin/device")
            .join(file)
    });
    assert_eq!(speaking, module);
}

#[test]
fn no_check_takes_a_client_argument() {
    let workspace = Workspace::read();

    for folder in ["controller/core/src/request", "controller/core/src/policy"] {
        let clients = workspace.offending(folder, |line| {
            line.contains("kube::") && !line.trim_start().starts_with("//")
                || line.contains("Client>")
        });
        assert_eq!(clients, Vec::<PathBuf>::new());
    }
}

/// clippy reads only the nearest configuration file. A setting that the controller's file does not repeat would have no
/// effect in the controller.
#[test]
fn the_controller_lints_include_the_lints_of_other_packages() {
    let workspace = Workspace::read();
    let read = |path: &str| fs::read_to_string(workspace.root.join(path)).unwrap();
    let own = read("controller/clippy.toml");
    let missing: Vec<_> = read("clippy.toml")
        .lines()
        .filter(|line| !own.lines().any(|own| own == *line))
        .map(str::to_owned)
        .collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// clippy recognizes functions and types of `kube`, but not a request that is built from a URL. Such a request would
/// read lists or watches without a limit.
#[test]
fn only_one_module_lists_and_watches() {
    let workspace = Workspace::read();

    let calls = [
        "ObjectList<",
        ".list_metadata(",
        "request_events",
        "WatchEvent<",
    ];
    let callers = workspace.offending("controller", |line| {
        calls.iter().any(|call| line.contains(call))
    });
    let outside = callers.into_iter().filter(|file| {
        let file = file.strip_prefix(&workspace.root).unwrap();
        // Only `pages` and `watch` read pages of lists. Tests read only data that they send.
        let is_door = file.starts_with("controller/runtime/src/watch")
            || file.ends_with("controller/runtime/src/client/call.rs");
        !is_door && !file.ends_with("tests.rs") && !file.iter().any(|part| part == "tests")
    });
    assert_eq!(outside.collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

/// A `HashMap` keeps the memory of its largest size, even after its entries are removed and their bytes are returned
/// to the budget of their tenant.
#[test]
fn runtime_maps_release_memory_as_they_shrink() {
    const SOURCES: &str = "controller/runtime/src";
    let workspace = Workspace::read();
    // The exceptions are, in this order: a `config` value, a list that is moved away, the steps for Clusters, and
    // budgets with a limit.
    let bounded = [
        "settings_file/rules.rs",
        "records/watch.rs",
        "management/enablement.rs",
        "events/limiter.rs",
    ];

    let sources = workspace.root.join(SOURCES);
    let hashed = workspace.offending(SOURCES, |line| {
        line.contains("HashMap<") || line.contains("HashSet<")
    });
    let others = hashed.into_iter().filter(|file| {
        let of_tests = file.ends_with("tests.rs") || modules::is_of_tests(&sources, file);
        !of_tests && !bounded.iter().any(|known| file.ends_with(known))
    });
    assert_eq!(others.collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

#[test]
fn no_source_file_is_longer_than_500_lines() {
    let workspace = Workspace::read();
    let folders = [
        "attestation",
        "controller",
        "providers",
        "src",
        "tests",
        "tools",
    ];
    let files = folders
        .iter()
        .flat_map(|folder| rust_files(&workspace.root.join(folder)));

    let long: Vec<PathBuf> = files
        .filter(|file| std::fs::read_to_string(file).unwrap().lines().count() > 500)
        .collect();
    assert_eq!(long, Vec::<PathBuf>::new());
}

/// Elapsed time does not prove an absence: a test that asserts an absence waits for a later action.
#[test]
fn no_suite_sleeps_on_the_wall_clock() {
    let sleep = concat!("thread::", "sleep");
    let sleeping = Workspace::read().offending("tests/tests", |line| line.contains(sleep));
    assert_eq!(sleeping, Vec::<PathBuf>::new());
}

#[test]
fn simulators_share_no_code_with_the_programs_they_test() {
    let workspace = Workspace::read();

    let ours: Vec<_> = workspace.with_dev[SUPPORT]
        .iter()
        .filter(|name| workspace.normal.contains_key(*name))
        .collect();
    assert_eq!(ours, Vec::<&String>::new());
}
