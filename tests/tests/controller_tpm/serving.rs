//! Serving certificates of kubelets whose machines proved themselves by their TPMs.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{
    PATIENCE, certificate_of, is_answered, is_issued, reason_of,
};
use kubelet_authenticator_tests::tpm::provider_id;
use node_attestation_controller::crd::TpmSettings;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};
use x509_parser::oid_registry::Oid;

use crate::world::{FIRST, World};

/// The address that the infrastructure knows of the machine.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

/// The UID in the certificate of this answer.
fn uid_of(csr: &Value) -> String {
    let pem = certificate_of(csr).expect("a certificate");
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    let oid = Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).unwrap();
    let uid = certificate.subject().iter_by_oid(&oid).next().unwrap();
    uid.as_str().unwrap().to_owned()
}

/// Files a request of node `n0`, who has a certificate of this UID, to serve at this address.
fn ask_to_serve(world: &World, name: &str, signer: &str, uid: &str, address: IpAddr) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, "system:node:n0");
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    let request = params.serialize_request(&KeyPair::generate().unwrap());
    let request = request.unwrap().pem().unwrap().replace("\r\n", "\n");
    world.bed.server.put_csr(json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": signer,
            "usages": SERVING_USAGES,
            "request": STANDARD.encode(request),
            "username": "system:node:n0",
            "uid": uid,
            "groups": ["system:nodes", "system:authenticated"],
        },
    }));
    // What we sign ourselves is approved first, and issued by another write.
    let is_decided = |csr: &Value| {
        let approved = reason_of(csr, "Approved").is_some();
        is_answered(csr) || approved && signer == BUILT_IN_SERVING_SIGNER
    };
    poll(PATIENCE, || world.bed.server.csr(name).filter(is_decided))
        .unwrap_or_else(|| panic!("no answer: {:#?}", world.bed.server.csr(name)))
}

#[test]
fn a_node_that_proved_itself_by_its_tpm_may_serve_at_its_own_address() {
    let id = provider_id(&FIRST);
    let listed = vec![(0, id.clone())];
    let world = World::listing(&TpmSettings::default(), listed, &["--serving"]);
    world.bed.write_machines(vec![json!({
        "name": "n0", "providerID": id, "tokenID": "to0000", "addresses": [OWN],
    })]);
    let joined = world.join(0, &world.requester(0), &FIRST);
    let uid = uid_of(&joined);
    let own = Provider::TPM.serving_signer();

    let ours = ask_to_serve(&world, "ours", &own, &uid, OWN);
    assert!(is_issued(&ours), "{ours:#}");

    // kube-controller-manager signs these.
    let built_in = ask_to_serve(&world, "built-in", BUILT_IN_SERVING_SIGNER, &uid, OWN);
    assert!(reason_of(&built_in, "Approved").is_some(), "{built_in:#}");

    let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 8));
    for (name, signer) in [("ours-2", &*own), ("built-in-2", BUILT_IN_SERVING_SIGNER)] {
        let answer = ask_to_serve(&world, name, signer, &uid, other);
        assert!(reason_of(&answer, "Denied").is_some(), "{answer:#}");
    }
}
