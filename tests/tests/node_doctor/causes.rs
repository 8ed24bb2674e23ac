//! Tests of the most frequent reasons why a node does not join, except cloud and TPM reasons, which are in `clouds.rs`.

use std::fs;

use kubelet_authenticator_test_support::api_server::{Fault, Issuance, Route, Signer, Times, Verb};
use kubelet_authenticator_test_support::pki::{Contents, Subject};
use kubelet_authenticator_tests::node::NODE;
use serde_json::json;

use crate::bed::{Bed, set_mode};

#[test]
fn doctor_reports_an_expired_bootstrap_token() {
    let bed = Bed::new();
    bed.server.revoke_token("abcdef");
    bed.node.run().failed(9);

    let url = bed.server.url();
    let path = bed.bootstrap_kubeconfig();
    bed.first_failing(
        "bootstrap-kubeconfig",
        &format!("{url} does not accept the credential (401 Unauthorized)"),
        &format!(
            "write a kubeconfig with a new bootstrap token to {}",
            path.display()
        ),
    );

    bed.write_new_token();
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn a_missing_bootstrap_kubeconfig_after_expiry_is_reported() {
    let bed = Bed::joined();
    let ended = Contents::client(Subject::node(NODE)).expired();
    let pair = bed.server.authority().issue(&ended);
    let text = pair.certificate_pem + &pair.key_pem;
    fs::write(bed.node.file("kubelet-client.pem"), text).unwrap();
    fs::remove_file(bed.bootstrap_kubeconfig()).unwrap();

    let path = bed.bootstrap_kubeconfig();
    let examined = bed.first_failing(
        "bootstrap-kubeconfig",
        &format!("cannot read {}: No such file", path.display()),
        &format!(
            "write a kubeconfig with a bootstrap token to {}",
            path.display()
        ),
    );
    examined.says("certificate", "fail", "the certificate expired at ");

    bed.write_new_token();
    let examined = bed.first_failing("certificate", "the certificate expired at ", " renew");
    assert_eq!(examined.state("bootstrap-kubeconfig"), "pass");
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

/// A node whose request is undecided, and the name of the request.
fn undecided() -> (Bed, String) {
    let mut bed = Bed::new();
    bed.server.set_signer(Signer::Off);
    bed.node.set("timeLimit", "5");
    bed.node.run().failed(11);
    bed.node.unset("timeLimit");
    let name = bed.node.json("pending.json")["request"]["name"].clone();
    (bed, name.as_str().unwrap().to_owned())
}

#[test]
fn doctor_reports_a_pending_request() {
    let (bed, name) = undecided();

    bed.first_failing(
        "request",
        &format!("request {name} has been pending since "),
        "check that node-attestation-controller runs",
    );

    bed.server.approve_and_issue(&name);
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn doctor_reports_an_approved_request_that_is_not_issued() {
    let (bed, name) = undecided();
    bed.server
        .add_condition(&name, "Approved", "ByHand", "by kubectl");

    bed.first_failing(
        "request",
        &format!("request {name} is approved, but no certificate is issued"),
        "check the controller that serves the signer cluster.x-k8s.io/kube-apiserver-client-kubelet-null",
    );

    bed.server.approve_and_issue(&name);
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn a_node_name_that_does_not_match_the_certificate_is_reported() {
    let mut bed = Bed::joined();
    bed.node.set("nodeName", "n2");

    bed.first_failing(
        "node-name",
        "nodeName in the settings is n2, but this node was enrolled as n1",
        "set nodeName: n1 in the settings; or, to enroll the node as n2, write a kubeconfig with a bootstrap token to ",
    );

    bed.node.command(&["reset", "--yes"]).succeeded();
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
    assert_eq!(bed.node.status()["nodeName"], "n2");
}

#[test]
fn doctor_reports_a_wrong_clock() {
    let bed = Bed::new();
    bed.server.set_date_skew(600);
    bed.node.run().failed(14);

    let url = bed.server.url();
    let examined = bed.first_failing(
        "clock",
        &format!("the clock of {url} shows "),
        "set the clock of this machine with NTP",
    );
    assert_eq!(examined.state("api-server"), "pass");

    bed.server.set_date_skew(0);
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn doctor_reports_a_missing_or_non_executable_plugin() {
    let bed = Bed::joined();
    let place = bed.plugin.display();
    let program = fs::read_link(&bed.plugin).unwrap();
    fs::remove_file(&bed.plugin).unwrap();

    bed.first_failing(
        "kubelet-kubeconfig",
        &format!("cannot run the plugin: {place}: No such file"),
        &format!("install the plugin at {place}"),
    );

    fs::copy(program, &bed.plugin).unwrap();
    bed.is_well();
    set_mode(&bed.plugin, 0o644);
    let examined = bed.first_failing(
        "kubelet-kubeconfig",
        &format!("cannot run the plugin: {place} is not executable"),
        &format!("run: chmod 755 {place}"),
    );

    examined.follow("kubelet-kubeconfig");
    bed.is_well();
}

/// A command that runs its last arguments after this script, in a separate mount namespace.
fn mounting(script: &str) -> [&str; 6] {
    ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", script, "sh"]
}

#[test]
fn doctor_reports_a_plugin_on_a_noexec_file_system() {
    let mut bed = Bed::joined();
    let folder = bed.node.scratch().join("noexec");
    fs::create_dir(&folder).unwrap();
    set_mode(&folder, 0o755);
    let name = bed.plugin.file_name().unwrap();
    let place = folder.join(name);
    let (before, after) = (bed.plugin.to_str().unwrap(), place.to_str().unwrap());
    bed.change_kubelet_kubeconfig(before, after);
    bed.node.set_env("DIR", &folder);
    bed.node
        .set_env("PROGRAM", fs::canonicalize(&bed.plugin).unwrap());
    bed.node.set_env("NAME", name);
    let script = r#"/bin/mount -t tmpfs -o mode=755 tmpfs "$DIR" && /bin/cp "$PROGRAM" "$DIR/$NAME" &&
        /bin/mount -o remount,noexec "$DIR" && exec "$@""#;
    bed.node.wrap(&mounting(script));

    let place = place.display();
    bed.first_failing(
        "kubelet-kubeconfig",
        &format!("cannot run the plugin: {place}: Permission denied"),
        &format!(
            "mount the file system of {place} without the option noexec, or move the plugin to a different file \
             system and run its `setup`"
        ),
    );

    // The test follows the first half of the hint.
    let remounted = script.replace(
        "exec \"$@\"",
        "/bin/mount -o remount,exec \"$DIR\" && exec \"$@\"",
    );
    assert_ne!(remounted, script);
    bed.node.wrap(&mounting(&remounted));
    bed.is_well();

    // The test follows the second half: the program is no longer on that file system.
    bed.node.wrap(&[]);
    let [conf, environment, none] = [
        bed.kubelet_kubeconfig(),
        bed.node.scratch().join("kubelet.env"),
        bed.node.scratch().join("none"),
    ];
    let mut words = vec!["setup"];
    for (option, path) in [
        ("--kubelet-kubeconfig", &conf),
        ("--environment-file", &environment),
        ("--from", &none),
        ("--kubeadm-flags", &none),
        ("--cert-dir", &none),
    ] {
        words.extend([option, path.to_str().unwrap()]);
    }
    bed.node.command(&words).succeeded();
    bed.is_well();
}

#[test]
fn doctor_warns_about_a_plugin_that_other_users_can_change() {
    let bed = Bed::joined();
    let folder = bed.plugin.parent().unwrap();
    set_mode(folder, 0o777);

    let examined = bed.doctor();

    let words = "has mode 0777, so other users can write it";
    examined.says("kubelet-kubeconfig", "warn", words);
    examined.follow("kubelet-kubeconfig");
    assert_eq!(bed.doctor().state("kubelet-kubeconfig"), "pass");
}

#[test]
fn a_key_that_others_can_read_is_a_warning_until_the_hint_is_followed() {
    let bed = Bed::joined();
    set_mode(&bed.node.file("kubelet-client.pem"), 0o644);

    let examined = bed.doctor();

    let words = "kubelet-client.pem has mode 0644, so other users can read the private key";
    examined.says("state-directory", "warn", words);
    examined.follow("state-directory");
    assert_eq!(bed.doctor().state("state-directory"), "pass");
}

#[test]
fn doctor_reports_a_plugin_for_another_architecture() {
    let bed = Bed::joined();
    let place = bed.plugin.display();
    let program = fs::read(fs::read_link(&bed.plugin).unwrap()).unwrap();
    let mut other = program.clone();
    // The little-endian field e_machine of the ELF header is replaced: AArch64 instead of x86-64.
    assert_eq!(other[18..20], [62, 0]);
    other[18] = 183;
    fs::remove_file(&bed.plugin).unwrap();
    fs::write(&bed.plugin, other).unwrap();
    set_mode(&bed.plugin, 0o755);

    bed.first_failing(
        "kubelet-kubeconfig",
        &format!(
            "cannot run the plugin: {place} is a program for arm64, but this machine is amd64"
        ),
        &format!("install the plugin for amd64 at {place}"),
    );

    fs::write(&bed.plugin, program).unwrap();
    bed.is_well();
}

#[test]
fn doctor_reports_the_reason_of_a_denial() {
    let bed = Bed::new();
    let deny = Signer::deny("MachineNotFound", "no Machine has this provider ID");
    bed.server.set_signer(deny);
    bed.node.run().failed(12);

    let examined = bed.first_failing(
        "request",
        "request kubelet-authenticator-",
        " explain-reason MachineNotFound",
    );
    let reason = "was denied (MachineNotFound): no Machine has this provider ID";
    examined.says("request", "fail", reason);
    examined.says(
        "last-failure",
        "fail",
        "exit code 12 (consecutive failures: 1)",
    );

    bed.server.set_signer(Signer::issue());
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn doctor_reports_a_revoked_certificate() {
    let bed = Bed::joined();
    let revoked = Fault::status(403);
    let lease = Route::new(Verb::Patch, "leases");
    bed.server.inject(lease, Times::first(2), revoked);

    let url = bed.server.url();
    let examined = bed.first_failing(
        "certificate-accepted",
        &format!("{url} forbids the request (403 Forbidden)"),
        "check whether the certificate was revoked",
    );
    assert_eq!(examined.state("certificate"), "pass");

    // `renew` gets the second of the two injected refusals.
    let renewed = bed.node.command(&["renew"]).succeeded();
    assert!(renewed.stdout.contains("a new credential"), "{renewed:#?}");
    bed.is_well();
}

#[test]
fn a_disk_from_another_machine_is_reported() {
    let bed = Bed::joined();
    bed.node.change("origin.json", |origin| {
        origin["bootId"] = "of-another".into();
        for (_, digest) in origin["machine"].as_object_mut().unwrap() {
            *digest = json!("0".repeat(64));
        }
    });

    let files = "(pending.json, kubelet-client.pem, failure.json, endorsement-key, origin.json)";
    bed.first_failing(
        "state-directory",
        &format!("it belongs to a different machine {files}"),
        "renew; it sets the files aside, and the node enrolls again",
    );

    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn a_failed_renewal_with_a_valid_certificate_is_a_warning() {
    let bed = Bed::new();
    bed.server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(std::time::Duration::from_secs(3600)),
        backdate: std::time::Duration::from_secs(3 * 3600),
        ..Issuance::default()
    }));
    bed.node.run().succeeded();
    bed.server
        .set_signer(Signer::fail("EvidenceExpired", "too old"));
    bed.node.run().succeeded();
    bed.server.revoke_token("abcdef");

    let examined = bed.doctor();

    assert_eq!(examined.run.code, Some(0), "{}", examined.run.stdout);
    examined.says("request", "warn", "failed (EvidenceExpired): too old");
    examined.says("last-failure", "warn", "exit code 13");
    examined.says("bootstrap-kubeconfig", "warn", "401 Unauthorized");
    examined.says("certificate-accepted", "pass", "accepts the node's writes");
}
