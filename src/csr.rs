//! The certificate signing request that a node sends.

use kubelet_attestation::csr::extension::provider_id_value;
use kubelet_attestation::csr::oid;
use kubelet_attestation::names::{NODES_GROUP, NodeName, ProviderId};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};

use crate::failure::Invalid;

/// Returns the DER of a PKCS#10 request for the client certificate of `node_name` on the machine `provider_id`.
///
/// The subject is exactly `O=system:nodes, CN=system:node:<name>`. The only requested extension is the provider ID;
/// alternative names are not requested. Each request has different bytes, because the signature is random.
pub(crate) fn client_request(
    key: &KeyPair,
    node_name: &NodeName,
    provider_id: &ProviderId,
) -> Result<Vec<u8>, Invalid> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, NODES_GROUP);
    subject.push(DnType::CommonName, node_name.user_name());
    let value = provider_id_value(provider_id)
        .map_err(|error| Invalid::new("cannot encode the provider ID extension").because(&error))?;

    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let id: Vec<u64> = oid::PROVIDER_ID.arcs().map(u64::from).collect();
    params.custom_extensions = vec![CustomExtension::from_oid_content(&id, value)];
    let request = params.serialize_request(key).map_err(|error| {
        Invalid::new("cannot sign the certificate signing request").because(&error)
    })?;
    Ok(request.der().to_vec())
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::csr::parse::CertificationRequest;
    use kubelet_attestation::csr::subject;
    use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

    use super::*;
    use crate::key::PrivateKey;

    const PROVIDER_ID: &str = "aws:///eu-west-1a/i-0123456789abcdef0";

    fn request(provider_id: &str) -> (PrivateKey, Vec<u8>) {
        let key = PrivateKey::generate().unwrap();
        let request = client_request(
            &key.pair().unwrap(),
            &NodeName::parse("n1").unwrap(),
            &ProviderId::parse(provider_id).unwrap(),
        );
        (key, request.unwrap())
    }

    #[test]
    fn the_controller_parses_the_request_from_the_node() {
        let (key, der) = request(PROVIDER_ID);

        let request = CertificationRequest::from_der(&der).unwrap();

        assert_eq!(
            subject::node_name(request.subject()).unwrap().as_str(),
            "n1"
        );
        assert_eq!(request.claimed_provider_id().unwrap().as_str(), PROVIDER_ID);
        assert_eq!(request.extensions().len(), 1);
        assert_eq!(request.key_bits(), Some(key.public_bits()));
        assert_eq!(
            request.key_algorithm(),
            (oid::EC_PUBLIC_KEY, Some(oid::P256))
        );
        assert_eq!(request.signature_algorithm(), Some(oid::ECDSA_WITH_SHA256));
    }

    #[test]
    fn an_independent_parser_reads_the_same_subject_and_one_extension() {
        let (_, der) = request(PROVIDER_ID);

        let (rest, request) = X509CertificationRequest::from_der(&der).unwrap();

        assert!(rest.is_empty());
        assert_eq!(
            request.certification_request_info.subject.to_string(),
            "O=system:nodes, CN=system:node:n1"
        );
        assert_eq!(request.requested_extensions().unwrap().count(), 1);
    }

    #[test]
    fn the_longest_provider_id_fits_into_a_request() {
        let id = format!("tpm://{}", "a".repeat(500));
        let (_, der) = request(&id);

        let request = CertificationRequest::from_der(&der).unwrap();

        assert_eq!(request.claimed_provider_id().unwrap().as_str(), id);
    }
}
