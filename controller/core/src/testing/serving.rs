//! Requests for serving certificates in a cluster whose machines have addresses.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;

use super::cluster::machine;
use super::{Csr, UID, block, cluster, der, extension, issued_at, now, renewal, texts, valid};
use crate::decide::Context;
use crate::identifiers::ServingName;
use crate::inventory::{Machine, StaticInventory};
use crate::refusal::Denial;
use crate::serving::{ServiceRanges, ServingPolicy};

pub const SUBJECT_ALT_NAME_OID: &str = "2.5.29.17";

/// The address of machine `m1`.
pub const ADDRESS: [u8; 4] = [192, 0, 2, 1];

/// An IPv6 address of machine `m1`.
pub const ADDRESS_6: &str = "2001:db8::1";

/// Machine `m1`, with its addresses and names.
pub fn serving_machine() -> Machine {
    let mut machine = machine("m1", "n1", Some("abcdef"));
    machine.addresses = vec![ADDRESS.into(), ADDRESS_6.parse().unwrap()];
    machine.dns_names = vec!["m1.internal".to_owned()];
    machine
}

/// Machine `m2`, which has a different address and name, and also the address and the name from the test.
pub fn other_machine() -> Machine {
    let mut machine = machine("m2", "n2", Some("ghijkl"));
    machine.addresses = vec![[192, 0, 2, 2].into()];
    machine.dns_names = vec!["m2.internal".to_owned()];
    machine
}

/// A cluster that contains these machines, and that no node has joined.
pub fn serving_cluster_of(machines: Vec<Machine>) -> Context {
    Context {
        inventory: Arc::new(StaticInventory::new(machines).unwrap()),
        serving: ServingPolicy {
            endpoint_hosts: vec!["api.example.com.".to_owned(), "[2001:db8::6443]".to_owned()],
            service_ranges: ServiceRanges::new(vec!["10.96.0.0/12".parse().unwrap()], true),
            address_ranges: Vec::new(),
            node_reported: None,
        },
        ..cluster()
    }
}

/// The cluster that node `n1` on machine `m1` has joined, and `m2` has not.
pub fn serving_cluster() -> Context {
    joined(serving_cluster_of(vec![serving_machine(), other_machine()]))
}

/// The cluster, after node `n1` has joined it.
pub fn joined(cluster: Context) -> Context {
    issued_at(&valid(), &cluster, now());
    cluster
}

/// The names in the value of a subject alternative name extension.
pub fn serving_names(value: &[u8]) -> Result<Vec<ServingName>, Denial> {
    crate::policy::serving_names::parse(value)
}

/// A `GeneralName` with a DNS name.
pub fn dns(name: &str) -> Vec<u8> {
    der::tlv(0x82, name.as_bytes())
}

/// A `GeneralName` with an address.
pub fn ip(address: impl Into<IpAddr>) -> Vec<u8> {
    match address.into() {
        IpAddr::V4(address) => der::tlv(0x87, &address.octets()),
        IpAddr::V6(address) => der::tlv(0x87, &address.octets()),
    }
}

/// A certification request of node `n1` for these names.
pub fn serving_csr(names: &[Vec<u8>]) -> Csr {
    Csr {
        extensions: vec![extension(
            SUBJECT_ALT_NAME_OID,
            false,
            &der::sequence(names),
        )],
        ..Csr::valid()
    }
}

/// The object of node `n1` for this certification request.
pub fn serving_object(csr: &Csr) -> CertificateSigningRequest {
    let mut object = renewal(UID);
    object.spec.request.0 = block("CERTIFICATE REQUEST", &csr.der()).into_bytes();
    BUILT_IN_SERVING_SIGNER.clone_into(&mut object.spec.signer_name);
    object.spec.usages = Some(texts(&["digital signature", "server auth"]));
    object
}

/// The request for these names.
pub fn serving_for(names: &[Vec<u8>]) -> CertificateSigningRequest {
    serving_object(&serving_csr(names))
}

/// The valid request of a stock kubelet.
pub fn serving() -> CertificateSigningRequest {
    serving_for(&[dns("n1"), ip(ADDRESS)])
}
