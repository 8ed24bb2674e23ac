//! Tests of the complete output, and of the plugin without a command.

use std::fs;
use std::process::{Command, Stdio};

use kubelet_attestation::page_url;
use kubelet_authenticator_tests::node::NULL;
use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::program;
use serde_json::Value;

use crate::bed::Bed;
use crate::clouds::{instance, tpm_machine};

/// The table with one line for each finding, with placeholders for the values that differ between runs.
fn stable(bed: &Bed, table: &str) -> String {
    let status = bed.node.status();
    let certificate = &status["certificate"];
    let mut table = table.to_owned();
    let text = |name: &str| {
        certificate[name]
            .as_str()
            .unwrap_or("no certificate has this")
            .to_owned()
    };
    let scratch = bed.node.scratch().path().display().to_string();
    for (found, word) in [
        (scratch, "/SCRATCH"),
        (program(NULL).display().to_string(), "/PLUGIN"),
        (page_url!("doctor-checks.md").to_owned(), "PAGE"),
        (bed.server.url(), "https://API"),
        (text("serial"), "SERIAL"),
        (text("notAfter"), "END"),
        (text("renewAt"), "RENEWAL"),
    ] {
        table = table.replace(&found, word);
    }
    table
}

#[test]
fn doctor_prints_the_table_of_a_healthy_node() {
    let mut bed = Bed::joined();

    let examined = bed.doctor();

    let expected = "\
pass  settings: valid (defaults, no file)
pass  clock: less than 5 minutes from the clock of https://API
pass  api-server: https://API belongs to this cluster
pass  kubelet-kubeconfig: /SCRATCH/kubelet.conf runs /SCRATCH/kubelet-authenticator-null
skip  kubelet-unit: cannot run systemctl: No such file or directory (os error 2)
pass  disk: /SCRATCH/state is writable
pass  state-directory: /SCRATCH/state belongs to this machine and node n1
pass  cluster: https://API
pass  lock: free
pass  node-name: n1
pass  machine: test:///machine-1
pass  bootstrap-kubeconfig: the API server accepts its credential
pass  request: no open request
pass  certificate: SERIAL, valid until END, renews after RENEWAL
pass  certificate-accepted: the API server accepts the node's writes
pass  last-failure: none since the last success
";
    assert_eq!(stable(&bed, &examined.unwrapped()), expected);
    let last = examined.run.stdout.lines().last();
    assert_eq!(last, Some("16 checks: 15 pass, 0 warn, 0 fail, 1 skip"));

    // The output to a pipe is plain text, with and without NO_COLOR.
    bed.node.set_env("NO_COLOR", "1");
    assert_eq!(bed.doctor().run.stdout, examined.run.stdout);
    assert!(!examined.run.stdout.contains('\u{1b}'));
}

/// The table of a node with faults.
const FAULTS: &str = "\
pass  settings: valid (defaults, no file)
pass  clock: less than 5 minutes from the clock of https://API
pass  api-server: https://API belongs to this cluster
pass  kubelet-kubeconfig: /SCRATCH/kubelet.conf runs /SCRATCH/kubelet-authenticator-null
skip  kubelet-unit: cannot run systemctl: No such file or directory (os error 2)
pass  disk: /SCRATCH is writable
warn  state-directory: /SCRATCH/state does not exist: this node has not enrolled
      cure: run: /PLUGIN renew
      see: PAGE#doctor-state-directory
skip  cluster: no cluster in the state directory or in the kubelet's kubeconfig
pass  lock: free
pass  node-name: n1
pass  machine: test:///machine-1
fail  bootstrap-kubeconfig: https://API does not accept the credential (401 Unauthorized): Unauthorized
      cure: write a kubeconfig with a new bootstrap token to /SCRATCH/bootstrap.kubeconfig
      see: PAGE#doctor-bootstrap-kubeconfig
pass  request: no open request
fail  certificate: no certificate is stored
      cure: correct the failures above, then run: /PLUGIN renew
      see: PAGE#doctor-certificate
skip  certificate-accepted: no valid certificate
pass  last-failure: none since the last success
";

/// The counts, the error and the hint for a node with faults.
const FAULTS_SUMMARY: [&str; 3] = [
    "16 checks: 10 pass, 1 warn, 2 fail, 3 skip",
    "error: 2 of 16 checks failed",
    "hint: fix the failed checks in order, beginning with bootstrap-kubeconfig",
];

#[test]
fn doctor_prints_the_table_of_a_node_with_faults() {
    let bed = Bed::new();
    bed.server.revoke_token("abcdef");

    let examined = bed.doctor();

    assert_eq!(stable(&bed, &examined.unwrapped()), FAULTS);
    let [counts, error, hint] = FAULTS_SUMMARY;
    assert_eq!(examined.run.stdout.lines().last(), Some(counts));
    assert_eq!(examined.run.stderr, format!("{error}\n{hint}\n"));
    for line in examined.run.stdout.lines() {
        let is_one_word = line
            .trim_start_matches("      see: ")
            .split_whitespace()
            .count()
            < 2;
        assert!(line.len() <= 80 || is_one_word, "{line}");
    }
}

/// The picture contains the paths and addresses of a real node.
#[test]
fn the_picture_of_doctor_shows_the_table_of_a_node_with_faults() {
    let picture = fs::read_to_string(repository().join("docs/images/doctor.svg")).unwrap();
    let texts = picture.lines().filter_map(|line| {
        let (_, text) = line.strip_prefix("<text ")?.split_once('>')?;
        text.strip_suffix("</text>")
    });
    // The first two lines are the title and the command.
    let texts: Vec<&str> = texts.skip(2).collect();
    let (lines, summary) = texts.split_last_chunk::<3>().unwrap();
    let mut table = String::new();
    for &line in lines {
        let words = line.trim_start();
        let is_begin =
            !line.starts_with(' ') || words.starts_with("cure: ") || words.starts_with("see: ");
        if is_begin {
            table.extend([line, "\n"]);
        } else {
            table.truncate(table.trim_end().len());
            table.extend([" ", words, "\n"]);
        }
    }
    for (of_page, of_test) in [
        ("https://10.0.0.1:6443", "https://API"),
        (
            "runs /usr/bin/kubelet-authenticator-insecure",
            "runs /SCRATCH/kubelet-authenticator-null",
        ),
        ("/usr/bin/kubelet-authenticator-insecure", "/PLUGIN"),
        ("/etc/kubernetes/kubelet-authenticator/", "/SCRATCH/"),
        ("/etc/kubernetes/", "/SCRATCH/"),
        ("/var/lib/kubelet-authenticator", "/SCRATCH/state"),
        ("/var/lib ", "/SCRATCH "),
        (page_url!("doctor-checks.md"), "PAGE"),
    ] {
        table = table.replace(of_page, of_test);
    }

    assert_eq!(table, FAULTS);
    assert_eq!(*summary, FAULTS_SUMMARY);
}

#[test]
fn json_has_every_check_with_a_link_to_an_anchor_that_exists() {
    let beds = [Bed::joined(), instance().0, tpm_machine().0];
    for bed in &beds {
        let json = bed.json();
        let table = bed.doctor();

        let checks = json["checks"].as_array().unwrap();
        let failing: Vec<_> = checks.iter().filter(|it| it["state"] == "fail").collect();
        assert_eq!(json["failing"], failing.len());
        assert_eq!(failing.len(), table.names("fail").len());
        for check in checks {
            let link = check["link"].as_str().unwrap();
            let link = link.strip_prefix(page_url!("")).unwrap();
            let (page, anchor) = link.split_once('#').unwrap();
            let text = fs::read_to_string(repository().join("docs").join(page)).unwrap();
            let anchors = text.matches(&format!("<a id=\"{anchor}\"></a>")).count();
            assert_eq!(anchors, 1, "{check}");
            let name = check["name"].as_str().unwrap();
            assert_eq!(check["state"], table.state(name));
            assert!(check["finding"].is_string() && check["cure"].is_string());
        }
    }
}

#[test]
fn the_page_lists_exactly_the_checks_of_doctor() {
    let page = fs::read_to_string(repository().join("docs/doctor-checks.md")).unwrap();
    let anchors = page.split("<a id=\"doctor-").skip(1);
    let anchors = anchors.map(|rest| rest.split_once('"').unwrap().0.to_owned());
    let mut documented: Vec<String> = anchors.collect();
    let mut made = Vec::new();
    for bed in [instance().0, tpm_machine().0] {
        let checks: Vec<Value> = bed.json()["checks"].as_array().unwrap().clone();
        made.extend(
            checks
                .iter()
                .map(|it| it["name"].as_str().unwrap().to_owned()),
        );
    }

    documented.sort();
    made.sort();
    made.dedup();
    assert_eq!(documented, made);
}

#[test]
fn the_plugin_in_a_terminal_explains_itself_and_suggests_commands() {
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command"])
        .arg(program(NULL))
        .arg("/dev/null")
        .env_remove("KUBERNETES_EXEC_INFO")
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    let expected = "error: no command, and KUBERNETES_EXEC_INFO is not set: client-go sets this \
                    variable when the kubelet runs the plugin\r\nhint: run a command such as `status` or `doctor`, or see \
                    --help\r\n";
    assert_eq!(text, expected);
}
