//! Tests that `setup`, the plugin and the kubelet use the same name and provider ID. The cases combine the source of
//! these values, the failure of the first request, and the method of joining.

use std::fs;

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::{Contents, Subject};

use crate::bed::{Host, issuing};
use crate::names::{DENIED, EXPIRED, FAILED, Fault, PENDING, mend};
use crate::sources::{LATE, NAME, PLACES, Place, agree_after};

/// A first request that fails before the name and the provider ID are set.
struct Failed {
    fault: Fault,
    /// The change to the certificate of the adopted node.
    own: fn(Contents) -> Contents,
    /// The exit code of the adoption.
    code: i32,
    words: &'static str,
}

impl Failed {
    fn with(fault: Fault, code: i32, words: &'static str) -> Self {
        Self {
            fault,
            own: |contents| contents,
            code,
            words,
        }
    }
}

/// Writes a kubeconfig with a certificate for a node that joined earlier.
fn write_own(server: &ApiServer, host: &Host, change: fn(Contents) -> Contents) {
    let contents = change(Contents::client(Subject::node("worker-1")));
    let pair = server.authority().issue(&contents);
    let kubeconfig = server.kubeconfig().client_certificate(&pair);
    kubeconfig.write(&host.kubelet_conf());
}

#[track_caller]
fn agree(failed: Option<&Failed>, adopts: bool, make: Place, kubelet: [&str; 2]) {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    let mut from = host.from();
    if adopts {
        fs::remove_file(from).unwrap();
        from = host.kubelet_conf();
    }
    let options = ["--from", from.to_str().unwrap()];
    if let Some(failed) = failed {
        (failed.fault)(&server, &mut host);
        if adopts {
            write_own(&server, &host, failed.own);
            let run = host.setup_with(&options).failed(failed.code);
            run.saying(failed.words);
        } else {
            let run = host.setup_with(&options).succeeded();
            run.saying("has no credential yet").saying(failed.words);
        }
        mend(&server, &mut host);
    }
    if adopts {
        write_own(&server, &host, |contents| contents);
    }
    host.node.unset("providerID");
    make(&mut host);

    agree_after(&server, &mut host, &options, kubelet);
}

fn agree_in_each_place(failed: Option<&Failed>) {
    for adopts in [false, true] {
        for (place, make) in PLACES {
            eprintln!("{place}, adoption: {adopts}");
            agree(failed, adopts, make, ["vm", NAME]);
        }
        eprintln!("the host name, adoption: {adopts}");
        agree(failed, adopts, LATE, ["worker-1", "--v=2"]);
    }
}

#[test]
fn setup_plugin_and_kubelet_agree_on_settings_from_each_source() {
    agree_in_each_place(None);
}

#[test]
fn setup_plugin_and_kubelet_agree_after_an_expired_credential() {
    agree_in_each_place(Some(&Failed {
        own: Contents::expired,
        ..Failed::with(EXPIRED, 9, "401 Unauthorized")
    }));
}

#[test]
fn setup_plugin_and_kubelet_agree_after_a_denied_request() {
    let failed = Failed::with(DENIED, 12, "was denied (MachineUnknown)");
    agree_in_each_place(Some(&failed));
}

#[test]
fn setup_plugin_and_kubelet_agree_after_a_failed_request() {
    let failed = Failed::with(FAILED, 13, "failed (NodeNameMismatch)");
    agree_in_each_place(Some(&failed));
}

#[test]
fn setup_plugin_and_kubelet_agree_after_a_pending_request() {
    // The time limit can expire before the watch ends.
    agree_in_each_place(Some(&Failed::with(PENDING, 11, "the next run")));
}
