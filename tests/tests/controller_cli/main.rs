//! Tests of the controller's command line: its output, its errors, and its exit codes.

mod explained;
mod kubeconfigs;
mod printed;
mod settings_file;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch};
use kubelet_authenticator_tests::controller::{
    Machine, PATIENCE, inventory, serve_identities, settings,
};
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::json;

/// The files that a valid start needs. Tests can change each file. The address in the kubeconfig has no listener.
struct Files {
    scratch: Scratch,
    server: ApiServer,
}

impl Files {
    fn new() -> Self {
        let scratch = Scratch::new("cli");
        let server = ApiServer::start();
        serve_identities(&server);
        server.write_admin_kubeconfig(scratch.path());
        server.write_ca(scratch.path());
        scratch.write("machines.yaml", inventory(&[Machine::new("n1", "token1")]));
        let spec = json!({"authorizedAttestors": ["insecure"]});
        scratch.write("settings.yaml", settings(&spec));
        Self { scratch, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// All arguments of a valid start.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec!["run".into(), "--allow-insecure".into()];
        for (option, name) in [
            ("--workload-kubeconfig", "admin.kubeconfig"),
            ("--ca-cert", "ca.crt"),
            ("--ca-key", "ca.key"),
            ("--inventory", "machines.yaml"),
            ("--settings", "settings.yaml"),
        ] {
            arguments.extend([option.into(), self.path(name).into()]);
        }
        arguments
    }

    /// Runs the program until it exits, which happens only after an error.
    fn run(&self) -> Output {
        run(self.arguments())
    }

    fn start(&self) -> Process {
        let launch = Launch::new("controller", program("node-attestation-controller"));
        launch.args(self.arguments()).spawn(&self.path("log"))
    }
}

fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    Command::new(program("node-attestation-controller"))
        .args(arguments)
        .env_clear()
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Asserts that the program exited with 3, printed nothing to standard output, and that its error contains all `words`.
#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
    assert!(!stderr.contains("PRIVATE KEY"), "{stderr}");
}

#[test]
fn version_crds_and_help_print_only_their_output() {
    let version = run(["version"]);
    assert_eq!(version.status.code(), Some(0));
    assert!(
        version
            .stdout
            .starts_with(b"node-attestation-controller 0.")
    );

    let crds = String::from_utf8(run(["crds"]).stdout).unwrap();
    assert_eq!(
        crds.matches("\nkind: CustomResourceDefinition\n").count(),
        4
    );

    for arguments in [&["--help"][..], &["run", "--help"]] {
        let help = run(arguments);
        assert_eq!(help.status.code(), Some(0));
        assert!(help.stderr.is_empty());
        assert!(String::from_utf8(help.stdout).unwrap().contains("Usage:"));
    }
}

#[test]
fn a_removed_option_is_an_error_that_names_its_replacement() {
    for (arguments, expected) in [
        (
            &["run", "--leader-elect=false"][..],
            "error: --leader-elect was removed\nhint: remove the option: leader election is always enabled\n",
        ),
        (
            &["tenancy", "explain", "prod-1", "--ack-iam-role-selector"],
            "error: --ack-iam-role-selector was removed\nhint: use --ack=role-selectors\n",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stderr(&output), expected);
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
    let files = Files::new();
    let script = "ulimit -Sn 100 && ulimit -Hn 4096 && exec \"$0\" \"$@\"";
    let launch = Launch::new("controller", "/bin/sh")
        .args(["-c", script])
        .arg(program("node-attestation-controller"))
        .args(files.arguments());

    let mut controller = launch.spawn(&files.path("log"));

    let message = "raised the open-file limit";
    let line = controller.wait_for_log(message, PATIENCE);
    assert!(line.contains("100") && line.contains("4096"), "{line}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", controller.pid())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let files: Vec<_> = files.unwrap().split_whitespace().collect();
    assert_eq!(files[3..5], ["4096", "4096"], "{limits}");
}

#[test]
fn outside_a_cluster_a_kubeconfig_is_required() {
    let output = run(["run", "--allow-insecure"]);

    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("neither --kubeconfig"));
    for command in [&["clusters"][..], &["identities", "list"]] {
        let words = [
            "error: no kubeconfig found",
            "hint: set --kubeconfig, KUBECONFIG",
        ];
        assert_refused(&run(command), &words);
    }
}

#[test]
fn invalid_usage_exits_with_2() {
    for arguments in [
        &[][..],
        &["walk"],
        &["run", "--ca-cert", "ca.crt"],
        &["run", "--workload-kubeconfig", "a", "--ca-cert", "b"],
        &[
            "run",
            "--workload-kubeconfig",
            "a",
            "--ca-cert",
            "b",
            "--ca-key",
            "c",
            "--inventory",
            "d",
            "--settings",
            "e",
            "--namespace",
            "f",
        ],
        &["run", "--context", "a"],
        &["explain", "a"],
        &["explain", "--cluster", "a/b"],
        &["explain", "a", "--cluster", "b", "--inventory", "c"],
        &["explain", "a", "--cluster", "b", "--settings", "c"],
        &["explain", "a", "--inventory", "c"],
        &["cluster"],
        &["cluster", "check", "a", "b"],
        &["cluster", "check", "a", "--settings", "b"],
        &["cluster", "check", "--namespace", "a", "--settings", "b"],
        &["cluster", "check", "--workload-kubeconfig", "a"],
        &["render", "settings", "--cluster-name", "a"],
        &["completion"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_insecure_attestor_requires_both_the_settings_and_the_option() {
    let files = Files::new();
    let mut arguments = files.arguments();
    arguments.retain(|argument| argument != "--allow-insecure");
    let words = ["insecure is authorized", "without --allow-insecure"];
    assert_refused(&run(arguments), &words);

    let spec = json!({"authorizedAttestors": ["aws"]});
    files.scratch.write("settings.yaml", settings(&spec));
    let words = ["--allow-insecure has no effect", "spec.authorizedAttestors"];
    assert_refused(&files.run(), &words);
}

#[test]
fn each_missing_empty_truncated_or_binary_file_is_named() {
    for name in [
        "admin.kubeconfig",
        "ca.crt",
        "ca.key",
        "machines.yaml",
        "settings.yaml",
    ] {
        let whole = fs::read(Files::new().path(name)).unwrap();
        for bytes in [&[][..], &whole[..whole.len() / 2], &[0xff, 0, 0xfe]] {
            let files = Files::new();
            fs::write(files.path(name), bytes).unwrap();

            assert_refused(&files.run(), &[name]);
        }
        let files = Files::new();
        fs::remove_file(files.path(name)).unwrap();

        assert_refused(&files.run(), &[name, "No such file"]);
    }
}

#[test]
fn a_kubeconfig_that_is_oversized_or_not_a_file_is_refused() {
    let files = Files::new();
    let path = files.path("admin.kubeconfig");
    let mut text = fs::read(&path).unwrap();
    text.resize(1024 * 1024 + 1, b'\n');
    fs::write(&path, &text).unwrap();
    assert_refused(
        &files.run(),
        &["admin.kubeconfig", "not a regular file of at most"],
    );

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_refused(
        &files.run(),
        &["admin.kubeconfig", "not a regular file of at most"],
    );
}

#[test]
fn a_mismatched_ca_key_and_a_non_ca_certificate_are_refused() {
    let files = Files::new();
    let other = CertificateAuthority::new("kubernetes");
    fs::write(files.path("ca.key"), &other.pair().key_pem).unwrap();
    assert_refused(&files.run(), &["ca.crt", "ca.key", "cannot use the CA"]);

    let admin = files.server.admin_certificate();
    fs::write(files.path("ca.crt"), &admin.certificate_pem).unwrap();
    fs::write(files.path("ca.key"), &admin.key_pem).unwrap();
    assert_refused(&files.run(), &["ca.crt", "cannot use the CA"]);
}

#[test]
fn a_kubeconfig_without_server_verification_is_refused() {
    let files = Files::new();
    let path = files.path("admin.kubeconfig");
    let kubeconfig = || {
        files
            .server
            .kubeconfig()
            .client_certificate(&files.server.admin_certificate())
    };
    for (changed, words) in [
        (
            kubeconfig().insecure_skip_tls_verify().without_ca(),
            "insecure-skip-tls-verify",
        ),
        (kubeconfig().without_ca(), "certificate-authority"),
        (kubeconfig().server("http://127.0.0.1:1"), "https"),
    ] {
        changed.write(&path);

        assert_refused(&files.run(), &["admin.kubeconfig", words]);
    }
}

#[test]
fn an_ambiguous_inventory_names_both_machines() {
    let files = Files::new();
    let machine = |name: &str, id: &str, token: &str| json!({"name": name, "providerID": id, "tokenID": token});
    for (second, field) in [
        (machine("n2", "a:///1", "token2"), "provider ID"),
        (machine("n2", "a:///2", "token1"), "token"),
        (machine("n1", "a:///2", "token2"), "name"),
    ] {
        let list = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "MachineInventory",
            "machines": [machine("n1", "a:///1", "token1"), second],
        });
        fs::write(files.path("machines.yaml"), list.to_string()).unwrap();

        let name = second_name(&list);
        assert_refused(&files.run(), &["machines.yaml", "n1", &name, field]);
    }
}

fn second_name(list: &serde_json::Value) -> String {
    list["machines"][1]["name"].as_str().unwrap().to_owned()
}

#[test]
fn the_log_is_text_by_default_and_sigint_stops_the_controller() {
    let files = Files::new();
    let mut controller = files.start();

    let line = controller.wait_for_log("watching", PATIENCE);
    controller.signal(Signal::INT);

    assert!(
        line.contains(" INFO watching signers=\"cluster.x-k8s.io/"),
        "{line}"
    );
    assert_eq!(controller.wait(PATIENCE).code(), Some(0));
}

#[test]
fn warnings_for_the_operator_are_logged_at_the_start() {
    let files = Files::new();
    CertificateAuthority::new("other")
        .pair()
        .write(files.scratch.path(), "ca");
    let mut controller = files.start();

    for words in [
        "machines without evidence are allowed",
        "--client-ca-file",
        "ca-sha256:",
        "autoApproveBindings is Report",
        "bootstrap tokens are not managed",
    ] {
        controller.wait_for_log(words, PATIENCE);
    }
}
