//! Tests of kubeconfigs for operators. The commands find these kubeconfigs by kubectl's rules.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

use crate::{Files, assert_refused, stderr};

/// The operator commands that read a management cluster.
const COMMANDS: [&[&str]; 5] = [
    &["clusters"],
    &["identities", "list"],
    &["tenancy", "explain", "prod-1"],
    &["explain", "a", "--cluster", "prod-1"],
    &["cluster", "check"],
];

fn run(variables: &[(&str, &OsStr)], command: &[&str]) -> Output {
    Command::new(program("node-attestation-controller"))
        .args(command)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn the_kubeconfig_is_found_as_in_kubectl() {
    let home = Scratch::new("home");
    let of_home = home.directory(".kube").join("config");
    fs::write(&of_home, "{}").unwrap();
    let named = home.write("named", "{}");
    let list = format!("{}:{}", home.join("absent").display(), named.display());
    let at_home = ("HOME", home.path().as_os_str());
    let by_name = ("KUBECONFIG", OsStr::new(&list));
    let by_nothing = ("KUBECONFIG", OsStr::new(""));

    for command in COMMANDS {
        let refused = |variables: &[_], found: &Path| {
            assert_refused(&run(variables, command), &[found.to_str().unwrap()]);
        };
        refused(&[at_home], &of_home);
        refused(&[at_home, by_name], &named);
        refused(&[at_home, by_nothing], &of_home);
    }
    // A controller ignores the kubeconfig in its environment.
    let output = run(&[at_home, by_name], &["run", "--allow-insecure"]);
    assert_refused(&output, &["neither --kubeconfig"]);
}

/// A kubeconfig that is split into two files, with the contexts in the first file, and the cluster and the user in the
/// second file. Each file is also available separately.
struct Parts {
    files: Files,
    list: String,
}

impl Parts {
    fn new() -> Self {
        let files = Files::new();
        let whole = fs::read_to_string(files.path("admin.kubeconfig")).unwrap();
        let whole: Value = serde_saphyr::from_str(&whole).unwrap();
        let context = &whole["contexts"][0]["context"];
        let part = |parts: Value| {
            let mut part = json!({"apiVersion": "v1", "kind": "Config"});
            part.as_object_mut()
                .unwrap()
                .extend(parts.as_object().unwrap().clone());
            part.to_string()
        };
        let stray = json!({"cluster": "absent", "user": "absent"});
        files.scratch.write("one", part(json!({
            "current-context": "good",
            "contexts": [{"name": "good", "context": context}, {"name": "stray", "context": stray}],
        })));
        files.scratch.write(
            "other",
            part(json!({
                "current-context": "stray",
                "clusters": whole["clusters"], "users": whole["users"],
                "contexts": [{"name": "good", "context": stray}],
            })),
        );
        let list = ["absent", "one", "other"].map(|name| files.path(name).display().to_string());
        Self {
            list: list.join(":"),
            files,
        }
    }

    fn run(&self, command: &[&str]) -> Output {
        run(&[("KUBECONFIG", OsStr::new(&self.list))], command)
    }
}

#[test]
fn several_kubeconfigs_are_merged_as_in_kubectl() {
    let parts = Parts::new();

    // The API server in this process does not serve Cluster API. The error about Cluster API shows that the command
    // called this server.
    assert_refused(&parts.run(&["clusters"]), &["is Cluster API installed?"]);

    let alone = parts.files.path("one");
    let output = run(&[("KUBECONFIG", alone.as_os_str())], &["clusters"]);
    assert_refused(
        &output,
        &[alone.to_str().unwrap(), "cannot use the kubeconfig"],
    );
}

#[test]
fn a_given_context_overrides_the_current_context() {
    let parts = Parts::new();

    let good = parts.run(&["clusters", "--context", "good"]);
    assert_refused(&good, &["is Cluster API installed?"]);
    for context in ["stray", "unknown"] {
        let output = parts.run(&["clusters", "--context", context]);
        assert_refused(&output, &["cannot use the kubeconfig"]);
        assert!(!stderr(&output).contains("Cluster API"), "{context}");
    }
    let none = run(&[], &["clusters", "--context", "good"]);
    assert_refused(&none, &["--context good requires a kubeconfig"]);
}
