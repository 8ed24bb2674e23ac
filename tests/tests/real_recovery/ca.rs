//! Tests that replace the CA of a cluster with the steps in docs/ca-rotation.md: in a planned rotation, and after the
//! CA key has leaked.

mod town;

use std::sync::Arc;

use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::cloud::Cloud;
use kubelet_authenticator_tests::controller::{certificate_of, is_signed_by, reason_of};
use kubelet_authenticator_tests::fleet::{
    assert_first_generation, kubelet_of_instance, kubelet_of_tpm,
};
use kubelet_authenticator_tests::tpm;
use serde_json::Value;
use x509_parser::pem::parse_x509_pem;

use self::town::{INSECURE, Node, Town, bundle};
use crate::bed::{Authentication, Manager, kubelet};
use crate::instances::OWNED;
use crate::restored::identities;
use crate::witness::{PATIENCE, issued, mark, not_after, requests, uid_of};

/// The name of the machine, which is also the node name unless the instance determines the node name.
const MACHINE: &str = "m1";

/// The public key (SPKI) in the request's certificate.
fn key_of(csr: &Value) -> Vec<u8> {
    let pem = certificate_of(csr).unwrap();
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    pem.parse_x509().unwrap().public_key().raw.to_vec()
}

/// The user that created the request.
fn requester(csr: &Value) -> String {
    csr["spec"]["username"].as_str().unwrap().to_owned()
}

/// A cluster with one node that has joined, and all certificates of the node so far.
struct Life {
    town: Town,
    authentication: Authentication,
    node: Node,
    first: Value,
    known: usize,
}

impl Life {
    #[track_caller]
    fn start(town: Town, authentication: Authentication, node: Node) -> Self {
        let first = issued(&town.plane, node.name()).remove(0);
        let life = Self {
            town,
            authentication,
            node,
            first,
            known: 1,
        };
        life.assert_no_other_request();
        life
    }

    #[track_caller]
    fn wait_until_ready(&self) {
        let kubectl = self.town.management.kubectl();
        self.authentication.wait_until_ready(kubectl);
    }

    /// Asserts that the node uses its certificate, and has not created requests other than the known requests.
    #[track_caller]
    fn assert_no_other_request(&self) {
        self.node.kubelet.wait_for_lease_renewal();
        let mut requests = requests(&self.town.plane, self.node.name());
        requests.retain(|csr| reason_of(csr, "Failed") != Some("ChallengeIssued"));
        assert_eq!(requests.len(), self.known, "{requests:#?}");
    }

    /// Waits for the next certificate for the node. This CA must sign the certificate, for a request from this user.
    /// Asserts that `status` shows the certificate.
    #[track_caller]
    fn next(&mut self, user: &str, ca: &CertificateAuthority) -> Value {
        let csr = self.town.certificate(&self.node, self.known, user);
        self.known = issued(&self.town.plane, self.node.name()).len();
        let certificate = certificate_of(&csr).unwrap();
        assert!(is_signed_by(&certificate, ca.certificate_pem()), "{csr:#}");
        self.node.wait_until_stored(&csr);
        csr
    }

    /// Like [`next`](Self::next), but the node has evidence, and therefore renews with its certificate.
    #[track_caller]
    fn renews(&mut self, ca: &CertificateAuthority) {
        if self.node.has_evidence() {
            let user = format!("system:node:{}", self.node.name());
            self.next(&user, ca);
        }
        self.assert_no_other_request();
    }

    /// Step 1: the API server trusts both CAs.
    #[track_caller]
    fn accept_both(&self, both: &str) {
        let plane = &self.town.plane;
        let by_new = self.town.master(&self.town.new);
        let unknown = by_new.raw("/api").unwrap_err();
        assert!(unknown.contains("Unauthorized"), "{unknown}");
        plane.accept_clients_of(both);
        let accepted = poll(PATIENCE, || by_new.raw("/api").ok());
        assert!(accepted.is_some(), "{}", plane.apiserver().log());
    }

    /// Writes the certificates in the Secret, first with the key of a different CA. The resulting condition shows that
    /// the controller has read the Secret.
    #[track_caller]
    fn write_secret(
        &self,
        certificates: &str,
        signer: &CertificateAuthority,
        other: &CertificateAuthority,
    ) {
        let kubectl = self.town.management.kubectl();
        self.town.write_secret(certificates, other);
        self.authentication
            .wait_for(kubectl, "Ready", "False", "CAKeyMismatch");
        self.town.write_secret(certificates, signer);
        self.wait_until_ready();
    }

    /// Step 5: a node with evidence renews.
    #[track_caller]
    fn renew(&mut self) {
        if self.node.has_evidence() {
            let forced = self.node.renew(&["--force"]);
            assert!(forced.status.success(), "{forced:?}");
            self.node.kubelet.restart();
        }
        let listed = identities(&self.town.management, &["list"]);
        let listed = String::from_utf8(listed).unwrap();
        let is_live = |line: &str| line.contains(self.node.name()) && line.contains("Live");
        assert!(listed.lines().any(is_live), "{listed}");
    }

    /// Asserts that a node whose kubeconfig was not updated still trusts the previous CA, as its first or only CA.
    #[track_caller]
    fn refuse_leftovers(&self, both: &str) {
        self.node.put(both);
        let refused = self.node.renew(&["--force"]);
        assert!(!refused.status.success(), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("AudienceMismatch"), "{said}");
        let last = requests(&self.town.plane, self.node.name()).pop().unwrap();
        assert_eq!(reason_of(&last, "Denied"), Some("AudienceMismatch"));

        self.node.put(self.town.former().certificate_pem());
        let unconnected = self.node.renew(&["--force"]);
        assert_eq!(unconnected.status.code(), Some(8), "{unconnected:?}");
    }
}

/// Follows the steps on the page for a planned rotation.
fn rotate(mut life: Life) {
    let (former, new) = life.town.authorities();
    let both = bundle([&former, &new]);
    let new_first = bundle([&new, &former]);

    life.accept_both(&both);
    life.assert_no_other_request();

    // 2. The Secret contains both certificates.
    life.write_secret(&both, &former, &new);
    life.assert_no_other_request();

    // 3. The node trusts both CAs. The node's evidence already refers to the new CA.
    life.node.trust(&new_first);
    life.renews(&former);

    // Between steps 3 and 6, an operator replaces all other certificates from the previous CA.
    life.town.replace_other_certificates();

    // 4. The new certificate signs.
    life.write_secret(&new_first, &new, &former);
    life.assert_no_other_request();

    life.renew();
    life.renews(&new);

    // 6. The previous CA is removed from the node, the Secret and the API server.
    life.node.trust(new.certificate_pem());
    life.renews(&new);
    life.write_secret(new.certificate_pem(), &new, &former);
    life.town.plane.accept_clients_of(new.certificate_pem());
    if !life.node.has_evidence() {
        let again = life.next(&requester(&life.first.clone()), &new);
        assert_eq!(key_of(&again), key_of(&life.first));
        assert_eq!(not_after(&again), not_after(&life.first));
    }
    life.assert_no_other_request();
    life.wait_until_ready();
    assert_first_generation(&life.town.record(&life.node));
    if life.node.has_evidence() {
        life.refuse_leftovers(&both);
    }
}

/// Follows the steps on the page for a leaked CA key.
fn leak(mut life: Life) {
    let (former, new) = life.town.authorities();
    let plane = life.town.plane.clone();
    let by_token = requester(&life.first);
    let attacker = life.town.master(&former);
    attacker.raw("/api").unwrap();

    life.town.write_secret(new.certificate_pem(), &new);
    plane.accept_clients_of(new.certificate_pem());
    life.town.replace_other_certificates();
    let refused = attacker.raw("/api").unwrap_err();
    assert!(refused.contains("Unauthorized"), "{refused}");
    // The kubelet still trusts a member of `system:masters` that has a certificate from the leaked CA.
    life.node.kubelet.raw("/healthz").unwrap();
    new.pair()
        .write(plane.ca_cert_path().parent().unwrap(), "ca");
    life.node.trust(new.certificate_pem());
    let mut said = Ok(String::new());
    let refused = poll(PATIENCE, || {
        said = life.node.kubelet.raw("/healthz");
        let refused = said.as_ref().err()?;
        refused.contains("Unauthorized").then_some(())
    });
    assert!(refused.is_some(), "{said:?}");

    let again = life.next(&by_token, &new);
    let is_kept = key_of(&again) == key_of(&life.first);
    assert_eq!(is_kept, !life.node.has_evidence());
    life.node.kubelet.wait_for_lease_renewal();
    life.wait_until_ready();

    // The attacker could also read the node's disk.
    let before = life.town.record(&life.node);
    for words in [&["revoke"][..], &["reset", "--revoked"]] {
        let node = ["--yes", "prod-1", life.node.name()];
        identities(&life.town.management, &[words, &node].concat());
    }
    let renewed = poll(PATIENCE, || {
        drop(life.node.renew(&[]));
        issued(&plane, life.node.name()).get(life.known).cloned()
    });
    let renewed = renewed.unwrap_or_else(|| panic!("{:#?}", requests(&plane, life.node.name())));
    life.node.kubelet.restart();
    assert_ne!(key_of(&renewed), key_of(&again));
    let now = life.town.record(&life.node);
    assert_ne!(now["spec"]["generation"], before["spec"]["generation"]);
    assert_eq!(uid_of(&renewed), mark(&now));
    life.node.kubelet.wait_for_lease_renewal();
}

/// A node without evidence, and the controller for it.
fn bare() -> (Manager, Life) {
    let town = Town::start();
    let manager = Manager::insecure(&town.management, &[]);
    let authentication = town.authorize("insecure");
    let machine = town.cluster.machine(MACHINE).create();
    let kubelet = kubelet(&town.cluster, &machine, INSECURE).start();
    let node = Node::join(INSECURE, kubelet);
    (manager, Life::start(town, authentication, node))
}

#[test]
fn an_instance_renews_in_each_step_of_a_ca_rotation() {
    let cloud = Cloud::start();
    let town = Town::start();
    let _manager = Manager::aws(&town.management, &cloud, &[]);
    let authentication = town.authorize("aws");
    let instance = cloud.launch(&[OWNED]);
    let machine = town.cluster.machine(MACHINE);
    let machine = machine.provider_id(&instance.provider_id());
    let machine = machine.node_name(instance.node_name()).create();
    let token = machine.token().bearer();
    let kubelet = kubelet_of_instance(&town.plane, &token, &cloud, &instance).start();
    let node = Node::join("kubelet-authenticator-aws", kubelet);
    rotate(Life::start(town, authentication, node));
}

#[test]
fn an_insecure_node_keeps_its_key_during_a_ca_rotation() {
    let (_manager, life) = bare();
    rotate(life);
}

#[test]
fn a_tpm_node_enrolls_with_a_new_key_after_a_leaked_ca_key() {
    let software = Arc::new(Swtpm::start());
    let provider_id = tpm::provider_id(&TpmMachine::new(software.clone(), EndorsementKey::P384));
    let keys = Scratch::new("challenge-keys");
    keys.write("current", "0f".repeat(32));
    let directory = keys.path().display().to_string();
    let town = Town::start();
    let options = ["--tpm-challenge-keys", &directory];
    let _manager = Manager::start(&town.management, "node-attestation-controller", &options);
    let authentication = town.authorize("tpm");
    let machine = town.cluster.machine(MACHINE).provider_id(&provider_id);
    let kubelet = kubelet_of_tpm(&town.cluster, &machine.create(), &software.tcti()).start();
    let node = Node::join(tpm::PLUGIN, kubelet);
    leak(Life::start(town, authentication, node));
}

#[test]
fn an_insecure_node_enrolls_with_its_key_after_a_leaked_ca_key() {
    let (_manager, life) = bare();
    leak(life);
}
