//! Tests of output that does not need a cluster: the version, completion scripts and the manual page.

use std::os::unix::fs::symlink;
use std::process::Command;

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

use crate::{assert_refused, run, stderr};

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

/// The commands in the help.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let (_, section) = help.split_once("\nCommands:\n").unwrap();
    let lines = section.lines().take_while(|line| !line.is_empty());
    let lines = lines.filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter_map(|line| line.split(' ').next());
    let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    assert!(names.contains(&"run") && names.len() > 10, "{help}");
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_version_is_printed_in_every_form() {
    let text = printed(&["version"]);
    let version = text
        .trim_end()
        .strip_prefix("node-attestation-controller ")
        .unwrap();
    let expected =
        json!({"name": "node-attestation-controller", "version": version, "fips": false});

    let of_json: Value = serde_json::from_str(&printed(&["version", "-o", "json"])).unwrap();
    let of_yaml: Value = serde_saphyr::from_str(&printed(&["version", "-o", "yaml"])).unwrap();

    assert_eq!(of_json, expected);
    assert_eq!(of_yaml, expected);
}

#[test]
fn the_kubectl_plugin_help_uses_the_kubectl_command_name() {
    let scratch = Scratch::new("plugin");
    let plugin = scratch.join("kubectl-node_attestation");
    symlink(program("node-attestation-controller"), &plugin).unwrap();

    for (arguments, usage) in [
        (&["--help"][..], "<COMMAND>\n"),
        (
            &["cluster", "check", "--help"],
            "cluster check [OPTIONS] [CLUSTER]\n",
        ),
    ] {
        let output = Command::new(&plugin)
            .args(arguments)
            .env_clear()
            .output()
            .unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let expected = format!("\nUsage: kubectl node-attestation {usage}");
        assert!(help.contains(&expected), "{help}");

        let help = printed(arguments);
        let expected = format!("\nUsage: node-attestation-controller {usage}");
        assert!(help.contains(&expected), "{help}");
    }
}

#[test]
fn the_completions_of_each_shell_contain_every_command() {
    for shell in ["bash", "fish", "zsh"] {
        let script = printed(&["completion", shell]);

        let is_separator = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
        let words: Vec<&str> = script.split(is_separator).collect();
        for command in commands() {
            assert!(words.contains(&&*command), "{shell}: {command}");
        }
        assert!(script.contains("workload-kubeconfig"), "{shell}");
    }
}

#[test]
fn the_manual_page_names_every_command() {
    let page = printed(&["man"]);

    assert!(page.contains(".TH node-attestation-controller 8"), "{page}");
    for command in commands() {
        assert!(
            page.contains(&format!("node\\-attestation\\-controller\\-{command}")),
            "{command}: {page}"
        );
    }
}

#[test]
fn each_command_has_a_separate_manual_page() {
    let explain = printed(&["man", "explain"]);
    let check = printed(&["man", "cluster", "check"]);

    assert!(
        explain.contains(".TH node-attestation-controller-explain 8"),
        "{explain}"
    );
    assert!(explain.contains("\\-\\-workload\\-kubeconfig"), "{explain}");
    assert!(
        check.contains(".TH node-attestation-controller-cluster-check 8"),
        "{check}"
    );
    let unknown = run(["man", "walk"]);
    assert_refused(&unknown, &["unknown command \"walk\""]);
}

#[test]
fn each_manual_page_lists_exit_codes_files_variables_and_examples() {
    for page in [printed(&["man"]), printed(&["man", "cluster", "check"])] {
        for (title, entry) in [
            (
                "EXIT STATUS",
                ".TP\n\\fB20\\fR\nA check of `cluster check` failed.",
            ),
            ("FILES", "\\fB~/.kube/config\\fR\n"),
            ("ENVIRONMENT", "\\fBKUBECONFIG\\fR\n"),
            ("EXAMPLES", "cluster check prod\\-1"),
            ("SEE ALSO", "/docs/controller.md\\fR\n"),
        ] {
            let start = format!("\n.SH \"{title}\"\n");
            assert_eq!(page.matches(&start).count(), 1, "{title}: {page}");
            let (_, section) = page.split_once(&start).unwrap();
            let section = section.split("\n.SH ").next().unwrap();
            assert!(section.contains(entry), "{title}: {page}");
        }
        assert!(!page.contains("EXTRA"), "{page}");
    }
}

#[test]
fn only_unmanaged_selects_clusters_without_a_resource() {
    let output = run(["clusters", "--without"]);

    assert_eq!(output.status.code(), Some(2));
    let removed = "error: --without was removed\nhint: use --unmanaged\n";
    assert_eq!(stderr(&output), removed);
    let selected = run(["clusters", "--unmanaged"]);
    assert_refused(&selected, &["error: no kubeconfig found"]);
}

#[test]
fn reset_revoke_and_floor_without_a_terminal_require_yes() {
    let arguments = [
        ["reset", "prod-1", "worker-1"],
        ["revoke", "prod-1", "worker-1"],
        ["floor", "prod-1", "--before=2026-01-01T00:00:00Z"],
    ];
    for [act, cluster, node] in arguments {
        let output = run(["identities", act, cluster, node]);
        assert_eq!(output.status.code(), Some(2), "{act}");
        assert_eq!(
            stderr(&output),
            "error: this command requires a confirmation, but no terminal is available\n\
             hint: check the arguments, then add --yes\n"
        );
        assert!(output.stdout.is_empty(), "{act}");

        let confirmed = run(["identities", act, "--yes", cluster, node]);
        assert_refused(
            &confirmed,
            &["error: no kubeconfig found", "\nhint: set --kubeconfig"],
        );
    }
}

/// An empty selector would select all Machines, for example if a script uses a variable that is not set.
#[test]
fn an_empty_selector_of_node_identities_is_refused() {
    for arguments in [
        &["reset", "--yes", "prod-1", "--selector", ""][..],
        &["revoke", "--yes", "prod-1", "--selector="],
        &["restored", "prod-1", "-l", ""],
    ] {
        let output = run([&["identities"], arguments].concat());

        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = stderr(&output);
        assert!(error.contains("--selector <LABELS>"), "{error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
