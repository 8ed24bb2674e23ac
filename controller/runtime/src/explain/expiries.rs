//! The expiry times of kubelet client certificates, if the API server still contains the requests for them.
//!
//! The API server does not store certificates, and kube-controller-manager deletes an issued request after 1 hour.
//! Therefore the expiry times of most certificates are known only on their nodes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, NodeName};
use node_attestation_core::signer::OtherCertificate;

use crate::client::CallError;
use crate::nodes::MAX_NODES;
use crate::watch::{Lenient, each_of};

/// The instruction for finding a certificate's expiry time on its node.
pub(crate) const ON_THE_NODE: &str =
    "openssl x509 -noout -enddate -in /var/lib/kubelet/pki/kubelet-client-current.pem";

/// For each Node name, the latest known expiry time of a certificate from the built-in signer.
pub(crate) async fn expiries(client: &Client) -> Result<BTreeMap<String, SystemTime>, CallError> {
    let api: Api<Lenient<CertificateSigningRequest>> = Api::all(client.clone());
    let wanted = ListParams::default().fields(&format!("spec.signerName={BUILT_IN_CLIENT_SIGNER}"));
    let mut known = BTreeMap::new();
    each_of(&api, wanted, |one: Lenient<CertificateSigningRequest>| {
        if let Ok(request) = one.object {
            note(&mut known, request);
        }
    })
    .await?;
    Ok(known)
}

/// Records the expiry time of the certificate in this request.
fn note(all: &mut BTreeMap<String, SystemTime>, request: CertificateSigningRequest) {
    let certificate = request.status.and_then(|status| status.certificate);
    let certificate = certificate.and_then(|pem| OtherCertificate::parse(&pem.0));
    let Some(OtherCertificate { name, end, .. }) = certificate else {
        return;
    };
    let node = NodeName::from_user_name(&name).map(|node| node.to_string());
    let Some(node) = node.filter(|node| all.len() < MAX_NODES || all.contains_key(node)) else {
        return;
    };
    let known = all.entry(node).or_insert(end);
    *known = end.max(*known);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus;
    use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

    use super::*;

    /// A request that contains a certificate for this user. The certificate expires on the first day of this year.
    fn issued(user: &str, year: i32) -> CertificateSigningRequest {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, user);
        parameters.not_after = date_time_ymd(year, 1, 1);
        let certificate = parameters.self_signed(&KeyPair::generate().unwrap());
        CertificateSigningRequest {
            status: Some(CertificateSigningRequestStatus {
                certificate: Some(ByteString(certificate.unwrap().pem().into_bytes())),
                ..CertificateSigningRequestStatus::default()
            }),
            ..CertificateSigningRequest::default()
        }
    }

    #[test]
    fn the_latest_certificate_of_a_node_determines_its_known_expiry() {
        let mut malformed = issued("system:node:n3", 2031);
        malformed.status.as_mut().unwrap().certificate = Some(ByteString(b"text".to_vec()));
        let requests = [
            issued("system:node:n1", 2032),
            issued("system:node:n1", 2031),
            issued("system:node:n2", 2031),
            issued("an administrator", 2031),
            malformed,
            CertificateSigningRequest::default(),
        ];

        let mut known = BTreeMap::new();
        for request in requests {
            note(&mut known, request);
        }

        let year = |days: u64| UNIX_EPOCH + Duration::from_hours(24 * days);
        let expected = [
            ("n1".to_owned(), year(22_645)),
            ("n2".to_owned(), year(22_280)),
        ];
        assert_eq!(known, BTreeMap::from(expected));
    }

    #[test]
    fn the_expiries_of_a_limited_number_of_nodes_are_kept() {
        let known = (0..MAX_NODES).map(|number| (format!("n{number}"), SystemTime::UNIX_EPOCH));
        let mut known: BTreeMap<_, _> = known.collect();

        note(&mut known, issued("system:node:n0", 2031));
        note(&mut known, issued("system:node:other", 2031));

        assert_eq!(known.len(), MAX_NODES);
        assert_ne!(known["n0"], SystemTime::UNIX_EPOCH);
    }
}
