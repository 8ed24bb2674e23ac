//! Tests of nodes that lose data or are replaced. Each node recovers without an administrator.

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use base64::prelude::*;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::poll;
use serde_json::Value;
use x509_parser::pem::parse_x509_pem;

use crate::node::{Machine, Node, controller, prepare, started};

const PLUGIN: &str = "kubelet-authenticator-null";
const CONTROLLER: &str = "null-attestation-controller";

/// The grace period for a silent node in the cluster. Kubernetes' default of 50 s would also work, but would take
/// longer.
const GRACE: &str = "--node-monitor-grace-period=20s";

/// The deadline for detecting that a node is down. A node counts as down when its Lease is more than a minute old. The
/// controller checks this once per minute.
const PATIENCE: Duration = Duration::from_secs(240);

static PLANE: LazyLock<ControlPlane> = LazyLock::new(|| {
    let plane = ControlPlane::builder()
        .controllers(Controllers::Default)
        .controller_manager_arg(GRACE)
        .start();
    prepare(&plane);
    plane
});

#[test]
fn a_reimaged_machine_rejoins_in_the_next_generation() {
    const MACHINE: Machine = Machine::new("imaged-1", "image1");
    let setup = controller(&PLANE, CONTROLLER, &[MACHINE]);
    let _controller = started(&setup);
    let node = Node::new(&PLANE, PLUGIN, MACHINE);
    let mut kubelet = node.start();
    kubelet.wait_until_ready();

    kubelet.kill();
    forget(&kubelet, &["kubelet-authenticator", "kubelet"]);
    kubelet.start();

    let issued = wait_for_another_generation(&node, &kubelet);
    assert_eq!(issued["spec"]["username"], "system:bootstrap:image1");
    kubelet.wait_for_lease_renewal();
}

#[test]
fn a_node_that_was_off_until_expiry_rejoins_with_its_token() {
    const MACHINE: Machine = Machine::new("was-off-1", "wasof1");
    let setup = controller(&PLANE, CONTROLLER, &[MACHINE]).args(&["--certificate-duration", "20s"]);
    let _controller = started(&setup);
    let node = Node::new(&PLANE, PLUGIN, MACHINE);
    let mut kubelet = node.start();
    kubelet.wait_until_ready();

    kubelet.kill();
    let end = not_after(&latest(&node));
    let ended = poll(PATIENCE, || (jiff::Timestamp::now() > end).then_some(()));
    assert!(ended.is_some());
    let before = node.requests().len();
    kubelet.start();

    let joined = poll(PATIENCE, || {
        let requests = node.requests();
        let again = requests.get(before..)?.iter().find(|csr| is_issued(csr))?;
        Some(again["spec"]["username"].clone())
    });
    assert_eq!(
        joined.expect("a certificate after the restart"),
        "system:bootstrap:wasof1"
    );
    kubelet.wait_for_lease_renewal();
}

/// Removes these directories from the machine's `/var/lib`, as if the disk were new. Mounts remain.
fn forget(kubelet: &Kubelet, folders: &[&str]) {
    for folder in folders {
        let folder = kubelet.var_lib().join(folder);
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

fn is_issued(csr: &Value) -> bool {
    csr["status"]["certificate"].is_string()
}

/// The request for the latest certificate of the node.
#[track_caller]
pub fn latest(node: &Node<'_>) -> Value {
    let issued = node.requests().into_iter().rfind(is_issued);
    issued.expect("a request with a certificate")
}

/// Waits for a certificate that does not belong to the first generation.
#[track_caller]
fn wait_for_another_generation(node: &Node<'_>, kubelet: &Kubelet) -> Value {
    let issued = poll(PATIENCE, || {
        let mut issued = node.requests().into_iter().filter(is_issued);
        issued.find(|csr| !uid_of(csr).ends_with(".1"))
    });
    issued.unwrap_or_else(|| {
        panic!(
            "no certificate for another generation: {:#?}\n{}",
            node.requests(),
            kubelet.log()
        )
    })
}

fn certificate(csr: &Value) -> Vec<u8> {
    let pem = csr["status"]["certificate"].as_str().unwrap();
    parse_x509_pem(&BASE64_STANDARD.decode(pem).unwrap())
        .unwrap()
        .1
        .contents
}

/// The UID in the certificate. It consists of the UID of the record and the generation.
fn uid_of(csr: &Value) -> String {
    let der = certificate(csr);
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
    let uid = x509_parser::oid_registry::Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).unwrap();
    let attribute = certificate.subject().iter_by_oid(&uid).next().unwrap();
    attribute.as_str().unwrap().to_owned()
}

/// The expiry time of the request's certificate.
pub fn not_after(csr: &Value) -> jiff::Timestamp {
    let der = certificate(csr);
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
    jiff::Timestamp::from_second(certificate.validity().not_after.timestamp()).unwrap()
}
