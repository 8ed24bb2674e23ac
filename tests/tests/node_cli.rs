//! Tests of the commands for administrators.

use std::fs;
use std::process::{Command, Stdio};

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject;
use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_tests::node::{INSECURE, NODE, NULL, Node};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

fn node() -> (ApiServer, Node) {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(NULL, &server);
    (server, node)
}

#[test]
fn help_and_version_do_not_use_the_network_or_files() {
    let (server, node) = node();
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["version"],
        &["version", "-o", "json"],
    ] {
        let run = node.command(arguments).succeeded();
        assert!(!run.stdout.is_empty());
        assert_eq!(run.stderr, "");
    }
    let version: Value =
        serde_json::from_str(&node.command(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(version["provider"], "null");
    assert_eq!(version["evidenceVersions"], json!(["v1"]));
    assert_eq!(server.connections(), 0);
    assert!(!node.state().exists());
}

#[test]
fn the_credential_command_prints_the_same_as_the_exec_plugin() {
    let (server, node) = node();

    let by_hand = node.command(&["credential"]).succeeded();
    let client_go = node.run().succeeded();

    assert_eq!(by_hand.pair(), client_go.pair());
    assert_eq!(server.creates(), 1);
}

#[test]
fn status_shows_the_certificate_after_a_join() {
    let (server, node) = node();
    let before = node.status();
    assert_eq!(before["due"], "enrollment");
    assert_eq!(before["certificate"], Value::Null);
    assert!(!node.state().exists());

    node.run().succeeded();
    let after = node.status();
    assert_eq!(
        (&after["nodeName"], &after["due"]),
        (&json!(NODE), &json!("nothing"))
    );
    assert_eq!(after["server"], server.url());
    assert_eq!(after["certificate"]["renewable"], true);
    assert_eq!(after["certificate"]["percentLeft"], 99);

    let table = node.command(&["status"]).succeeded().stdout;
    assert!(
        table.contains("Certificate") && table.contains("99 % left"),
        "{table}"
    );
    let yaml = node.command(&["status", "-o", "yaml"]).succeeded().stdout;
    assert!(yaml.contains("nodeName: \"n1\"\n"), "{yaml}");
}

#[test]
fn status_shows_the_pending_request() {
    let (server, mut node) = node();
    server.set_signer(Signer::Off);
    node.set("timeLimit", "5");
    node.run().failed(11);

    let status = node.status();

    assert_eq!(
        status["pendingRequest"]["name"],
        server.csrs()[0]["metadata"]["name"]
    );
    assert_eq!(status["pendingRequest"]["acknowledged"], true);
    assert_eq!(status["lastFailure"]["exitCode"], 11);
}

#[test]
fn a_dry_run_does_not_send_or_store_the_request() {
    let (server, node) = node();

    let pem = node.command(&["csr", "--dry-run"]).succeeded().stdout;
    let yaml = node
        .command(&["csr", "--dry-run", "-o", "yaml"])
        .succeeded()
        .stdout;

    let envelope = Envelope::parse(pem.as_bytes()).unwrap();
    let request = CertificationRequest::from_der(&envelope.csr).unwrap();
    assert_eq!(
        subject::node_name(request.subject()).unwrap().as_str(),
        NODE
    );
    assert!(
        yaml.contains("kind: \"CertificateSigningRequest\"\n"),
        "{yaml}"
    );
    assert_eq!(server.connections(), 0);
    assert!(!node.state().exists());
    node.command(&["csr"]).failed(2);
}

#[test]
fn a_variable_with_our_prefix_is_ignored_and_reported() {
    let (_server, mut node) = node();
    node.set_env("KUBELET_AUTHENTICATOR_NODE_NAME", "n2");
    node.set_env("KUBELET_AUTHENTICATOR_NODENAME", "n2");

    let run = node.run().succeeded();

    assert_eq!(node.status()["nodeName"], NODE);
    let run = run.saying("ignored: ");
    let run = run.saying("KUBELET_AUTHENTICATOR_NODE_NAME");
    let run = run.saying("KUBELET_AUTHENTICATOR_NODENAME");
    assert_eq!(run.stderr.lines().count(), 2, "{}", run.stderr);
}

#[test]
fn an_exec_extension_is_ignored_and_reported() {
    let (server, mut node) = node();
    let mut info: Value = serde_json::from_str(&server.exec_info("v1", true)).unwrap();
    info["spec"]["cluster"]["config"] = json!({"nodeName": "n2", "timeoutSeconds": 5});
    node.set_env("KUBERNETES_EXEC_INFO", info.to_string());

    let run = node.run().succeeded();

    assert_eq!(node.status()["nodeName"], NODE);
    let run = run.saying("the exec extension in KUBERNETES_EXEC_INFO");
    assert_eq!(run.stderr.lines().count(), 2, "{}", run.stderr);
}

#[test]
fn a_reset_also_deletes_keys_that_were_set_aside() {
    let (_server, node) = node();
    node.run().succeeded();
    fs::write(node.file("kubelet-client.pem"), "torn").unwrap();
    node.run().succeeded().saying("aside");

    node.command(&["reset", "--yes"]).succeeded();

    assert_eq!(node.files(), ["lock"]);
}

#[test]
fn openssl_parses_the_request_and_verifies_its_signature() {
    let (_server, node) = node();
    let pem = node.command(&["csr", "--dry-run"]).succeeded().stdout;
    let file = node.scratch().write("request.pem", pem);

    let output = Command::new("openssl")
        .args([
            "req", "-noout", "-verify", "-subject", "-nameopt", "RFC2253",
        ])
        .args(["-text", "-in"])
        .arg(file)
        .output()
        .unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        text.contains("subject=CN=system:node:n1,O=system:nodes\n"),
        "{text}"
    );
    assert!(text.contains("1.3.6.1.4.1.11129.2.1.21"), "{text}");
    assert!(!text.contains("Alternative Name"), "{text}");
    assert!(text.contains("prime256v1"), "{text}");
}

#[test]
fn renew_skips_a_fresh_certificate_unless_forced() {
    let (server, node) = node();

    let first = node.command(&["renew"]).succeeded();
    let second = node.command(&["renew"]).succeeded();
    let third = node.command(&["renew", "--force"]).succeeded();

    assert!(first.stdout.contains("a new credential"));
    assert!(second.stdout.contains("renewal is not due"));
    assert!(third.stdout.contains("a new credential"));
    assert_eq!(server.creates(), 2);
}

#[test]
fn reset_without_confirmation_exits_with_2_and_keeps_the_files() {
    let (_server, node) = node();
    node.run().succeeded();
    let before = node.files();

    let refused = node.command(&["reset"]).failed(2);

    assert_eq!(node.files(), before);
    assert_eq!(refused.stdout, "");
    let key = node.file("kubelet-client.pem").display().to_string();
    let program = program(NULL).display().to_string();
    refused
        .saying(&format!("reset deletes these files:\n  {key}\n"))
        .saying("error: reset needs a confirmation: nothing was deleted\n")
        .saying(&format!("hint: to reset, run: {program} reset --yes\n"));
    let cleared = node.command(&["reset", "--yes"]).succeeded();
    assert_eq!(cleared.stdout, "state cleared (2 files)\n");
    assert_eq!(cleared.stderr, "");
}

#[test]
fn reset_on_a_terminal_needs_a_confirmation() {
    for (answer, code) in [("n\n", 2), ("\n", 2), ("y\n", 0)] {
        let (_server, mut node) = node();
        node.run().succeeded();
        let before = node.files();
        let answers = node.scratch().write("answer", answer);
        // `script` provides a terminal to the plugin, and types the answer.
        let typed =
            r#"exec /usr/bin/script --quiet --return --command "$*" /dev/null < "$ANSWERS""#;
        node.set_env("ANSWERS", &answers);
        node.wrap(&["/bin/sh", "-c", typed, "sh"]);

        let run = node.command(&["reset"]);

        assert_eq!(run.code, Some(code), "{answer:?}: {run:#?}");
        assert!(run.stdout.contains("Continue? [y/N] "), "{run:#?}");
        let after = node.files();
        if code == 0 {
            assert_eq!(after, ["lock"]);
        } else {
            assert_eq!(after, before);
            assert!(run.stdout.contains("was not confirmed"), "{run:#?}");
        }
    }
}

#[test]
fn reset_deletes_all_state() {
    let (server, node) = node();
    node.run().succeeded();

    node.command(&["reset", "--yes"]).succeeded();
    node.command(&["reset", "--yes"]).succeeded();

    assert_eq!(node.files(), ["lock"]);
    node.run().succeeded();
    assert_eq!(server.creates(), 2);
}

#[test]
fn shell_completion_uses_the_program_name() {
    let server = ApiServer::start();
    let node = Node::new(INSECURE, &server);
    for shell in ["bash", "zsh", "fish"] {
        let script = node.command(&["completion", shell]).succeeded().stdout;
        assert!(script.contains(INSECURE), "{shell}");
    }
}

#[test]
fn the_manual_page_lists_every_command() {
    let server = ApiServer::start();
    let node = Node::new(INSECURE, &server);
    let page = node.command(&["man"]).succeeded().stdout;
    let help = node.command(&["--help"]).succeeded().stdout;
    let commands = help.split_once("Commands:\n").unwrap().1;
    let commands = commands.split_once("\n\n").unwrap().0;
    let names: Vec<_> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .collect();
    assert!(
        names.contains(&"doctor") && names.contains(&"man"),
        "{help}"
    );
    assert!(page.starts_with(".ie"), "{page}");
    for name in names {
        // If the hyphen were not escaped, roff would print a hyphen instead of a minus sign.
        let entry = format!(
            "{}\\-{}(8)",
            INSECURE.replace('-', "\\-"),
            name.replace('-', "\\-")
        );
        assert!(page.contains(&entry), "no {entry}: {page}");
    }
}

#[test]
fn each_command_of_the_plugin_has_a_separate_manual_page() {
    let server = ApiServer::start();
    let node = Node::new(INSECURE, &server);
    let name = INSECURE.replace('-', "\\-");

    let config = node.command(&["man", "config"]).succeeded().stdout;
    let check = node.command(&["man", "config", "check"]).succeeded().stdout;
    let renew = node.command(&["man", "renew"]).succeeded().stdout;

    // If a manual page refers to the page of another command, `man` with the words of that command prints that page.
    assert!(
        config.contains(&format!("\n{name}\\-config\\-check(8)\n")),
        "{config}"
    );
    assert!(
        check.contains(&format!(".TH {INSECURE}-config-check 8 ")),
        "{check}"
    );
    assert!(
        check.contains(&format!("\n{name}\\-config\\-check \\- Validate")),
        "{check}"
    );
    assert!(renew.contains("\\-\\-force"), "{renew}");
    for page in [&config, &check, &renew] {
        assert_eq!(page.matches(".SH \"EXIT STATUS\"\n").count(), 1, "{page}");
        let example = format!("\\fB{name} doctor\\fR\n");
        assert!(page.contains(&example), "{page}");
    }
    let unknown = node.command(&["man", "config", "walk"]).failed(2);
    unknown.saying("unknown command \"walk\"");
}

#[test]
fn the_manual_page_lists_exit_codes_files_variables_and_examples() {
    let (_server, node) = node();

    let page = node.command(&["man"]).succeeded().stdout;

    for (title, entry) in [
        ("EXIT STATUS", ".TP\n\\fB12\\fR\nThe request was denied.\n"),
        (
            "FILES",
            "\\fB/etc/kubernetes/kubelet\\-authenticator/config.yaml\\fR\n",
        ),
        ("ENVIRONMENT", "\\fBKUBERNETES_EXEC_INFO\\fR\n"),
        (
            "EXAMPLES",
            "\\fBkubelet\\-authenticator\\-null doctor\\fR\n",
        ),
        ("SEE ALSO", "/docs/plugin\\-commands.md\\fR\n"),
    ] {
        let start = format!("\n.SH \"{title}\"\n");
        assert_eq!(page.matches(&start).count(), 1, "{title}: {page}");
        let (_, section) = page.split_once(&start).unwrap();
        let section = section.split("\n.SH ").next().unwrap();
        assert!(section.contains(entry), "{title}: {page}");
    }
    // In the manual page, the exit codes of `--help` have their own section.
    assert!(!page.contains("EXTRA"), "{page}");
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let mut child = Command::new(program(INSECURE))
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());

    let output = child.wait_with_output().unwrap();

    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn steps_are_printed_with_their_times_only_if_verbose() {
    let (_server, node) = node();

    let said = node.run_with(&["-v"]).succeeded();
    let steps: Vec<&str> = said.stderr.lines().collect();

    let mut steps = steps.iter();
    for step in [
        "the node name and the machine are known, after ",
        "the evidence is ready, after ",
        "creating request kubelet-authenticator-",
        "the API server has the request, after ",
        "the request is decided, after ",
        "the certificate is stored, after ",
    ] {
        let line = steps.find(|line| line.contains(step));
        let line = line.unwrap_or_else(|| panic!("{step}: {}", said.stderr));
        assert!(
            line.ends_with(" ms") || step.starts_with("creating request"),
            "{line}"
        );
    }
    assert_eq!(node.command(&["reset", "--yes"]).succeeded().stderr, "");
    assert_eq!(node.run().succeeded().stderr, "");
}
