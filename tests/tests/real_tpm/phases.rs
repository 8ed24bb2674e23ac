//! Tests of machines whose systemd extends PCR 11 with the boot phases, and of their first join.

use std::sync::Arc;

use kubelet_attestation::evidence::tpm::{Registers, TpmEvidence};
use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::machine::Machine as Host;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::image::{on_host, plugin, render};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use kubelet_authenticator_tests::tpm::Sent;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::bed::{cluster, hex, machine, requester, requests, tpm};

/// The systemd units that extend PCR 11 during the boot, and the word that each unit measures.
const PHASES: [(&str, &str); 2] = [
    ("systemd-pcrphase-sysinit.service", "sysinit"),
    ("systemd-pcrphase.service", "ready"),
];

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

const KUBEADM_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// A file on the machine that ends the wait before a phase.
const GATE: &str = "/run/gate";

/// The digest of a phase, with which `systemd-pcrphase` extends the register.
fn digest(word: &str) -> [u8; 32] {
    Sha256::digest(word).into()
}

/// The value of PCR 11 after all phases.
fn extended() -> String {
    let extend = |value: [u8; 32], (_, word): &(&str, &str)| -> [u8; 32] {
        Sha256::digest([value, digest(word)].concat()).into()
    };
    hex(&PHASES.iter().fold([0; 32], extend))
}

/// The text of the systemd unit, with its original ordering. The unit runs the command `wait`, and then extends the
/// TPM. The unit's conditions are removed, because they require firmware and a unified kernel image, which a test
/// machine does not have.
fn phase(unit: &str, word: &str, wait: &str, tpm: &Swtpm) -> String {
    let path = format!("/usr/lib/systemd/system/{unit}");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let replaced = ["Condition", "ExecStart=", "ExecStop="];
    let kept: Vec<_> = text
        .lines()
        .filter(|line| !replaced.iter().any(|start| line.starts_with(start)))
        .collect();
    let extend = format!("tpm2_pcrextend 11:sha256={}", hex(&digest(word)));
    format!(
        "{}\n\
         Environment=TPM2TOOLS_TCTI={}\n\
         ExecStart=/bin/sh -euc '{wait}; {extend}'\n\
         [Unit]\n\
         # The machine reaches its TPM through a socket.\n\
         After=sockets.target\n",
        kept.join("\n"),
        tpm.tcti()
    )
}

/// Boots this machine. Its image contains a bootstrap kubeconfig. `wait` is the command before the last phase.
fn boot(scene: &Scene, machine: &Machine, tpm: &Arc<Swtpm>, drop_in: &str, wait: &str) -> Host {
    let bootstrap = std::fs::read(machine.bootstrap_kubeconfig()).unwrap();
    let builder = Host::builder(scene.cluster.control_plane(), machine.node_name())
        .program(
            &plugin(&Provider::TPM),
            &program("kubelet-authenticator-tpm"),
        )
        .file(DROP_IN, 0o644, drop_in)
        .file("/etc/kubernetes/bootstrap-kubelet.conf", 0o600, bootstrap)
        // The file is in the state in which kubeadm leaves it. Without this file, `setup` leaves the join to the
        // kubelet's first call of the plugin.
        .file(KUBEADM_FLAGS, 0o644, "KUBELET_KUBEADM_ARGS=\"\"\n");
    let last = PHASES.len() - 1;
    let phases = PHASES.iter().enumerate();
    let builder = phases.fold(on_host(builder, tpm), |builder, (index, (unit, word))| {
        let wait = if index == last { wait } else { "true" };
        let text = phase(unit, word, wait, tpm);
        let units = "/etc/systemd/system";
        builder
            .file(&format!("{units}/{unit}"), 0o644, text)
            // The link is the same as in the package systemd.
            .link(
                &format!("{units}/sysinit.target.wants/{unit}"),
                &format!("../{unit}"),
            )
    });
    builder.boot()
}

/// The answer to the machine's response to the challenge, after this number of earlier boots.
#[track_caller]
fn answer(scene: &Scene, machine: &Machine, host: &Host, boots: usize) -> Value {
    let answered = |csr: &Value| is_issued(csr) || reason_of(csr, "Denied").is_some();
    let found = poll(SWEPT, || {
        let requests = requests(scene, &requester(machine));
        requests.into_iter().filter(answered).nth(boots)
    });
    found.unwrap_or_else(|| panic!("{}", host.journal()))
}

/// The registers in the quote of a response to a challenge.
#[track_caller]
fn quoted(csr: &Value) -> Registers {
    match Sent::read(csr).evidence {
        TpmEvidence::Respond(response) => response.quote.registers,
        TpmEvidence::Enrol(enrolment) => panic!("no quote in {enrolment:?}"),
    }
}

#[test]
fn two_boots_of_one_image_quote_pcr_11_after_the_last_phase() {
    let policy = json!({"tpm": {"pcrPolicy": {"allowed": [{"11": extended()}]}}});
    let scene = cluster("phases", policy);
    let drop_in = render(&Provider::TPM, &["kubelet-drop-in"]);
    let own = tpm();
    let twice = machine(&scene, "boots-twice", &own);
    let first_boot = own.clock().reset_count;
    // The late phase has no gate, because the test cannot write to the machine until the kubelet has started.
    let quotes = [(0, "sleep 8"), (1, "true")].map(|(boots, wait)| {
        let host = boot(&scene, &twice, &own, &drop_in, wait);

        let csr = answer(&scene, &twice, &host, boots);
        assert!(is_issued(&csr), "boot {boots}: {csr:#}\n{}", host.journal());
        assert_eq!(hex(&own.pcr(11)), extended());
        // The machine boots from its image, without its store. A Node from the first boot would delay the second
        // request.
        drop(host);
        let plane = scene.cluster.control_plane();
        let node = twice.node_name();
        plane
            .kubectl()
            .ok(["delete", "node", node, "--ignore-not-found"]);
        own.reset(Reset::Orderly);
        assert_eq!(own.pcr(11), [0; 32], "a boot starts with zeros");
        quoted(&csr)
    });
    let eleventh = quotes
        .each_ref()
        .map(|quote| quote.get(11).map(|it| hex(it)));
    assert_eq!(eleventh, [Some(extended()), Some(extended())]);
    assert_eq!(quotes[0], quotes[1], "all registers");
    assert_eq!(own.clock().reset_count, first_boot + 2);

    // Without the ordering in the drop-in, the kubelet does not wait for the last phase.
    let lines = drop_in.lines().filter(|line| !line.starts_with("After="));
    let unordered: String = lines.map(|line| format!("{line}\n")).collect();
    assert_ne!(unordered, drop_in);
    let tpm = tpm();
    let machine = machine(&scene, "unordered", &tpm);
    let wait = format!("until [ -e {GATE} ]; do sleep 0.1; done");

    let host = boot(&scene, &machine, &tpm, &unordered, &wait);

    let csr = answer(&scene, &machine, &host, 0);
    let reason = reason_of(&csr, "Denied");
    assert_eq!(reason, Some("RegisterNotAllowed"), "{}", host.journal());
    assert_ne!(hex(&tpm.pcr(11)), extended());
    host.write(GATE, 0o644, "");
    let ready = poll(SWEPT, || (hex(&tpm.pcr(11)) == extended()).then_some(()));
    assert!(ready.is_some(), "{}", host.journal());
}
