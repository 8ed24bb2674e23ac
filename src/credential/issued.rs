//! Checks a certificate from a signer before it is used.

use std::time::SystemTime;

use kubelet_attestation::csr::extension::provider_id_text;
use kubelet_attestation::csr::oid;
use kubelet_attestation::names::{NODES_GROUP, NodeName, ProviderId};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::prelude::{BasicConstraints, FromDer as _, X509Certificate, X509Extension};

use super::{Credential, Leaf, has_key, parse};
use crate::failure::Invalid;
use crate::key::PrivateKey;
use crate::pending::Subject;

/// The maximum number of certificates in a chain, which is longer than any real chain of a leaf and a few
/// intermediates.
const MAX_CERTIFICATES: usize = 8;

/// The DER of a key usage with only `digitalSignature`: bit 0 of RFC 5280 section 4.2.1.3.
const DIGITAL_SIGNATURE: &[u8] = &[0x03, 0x02, 0x07, 0x80];

/// The DER of an extended key usage with only `id-kp-clientAuth` (RFC 5280 section 4.2.1.12).
const CLIENT_AUTH: &[u8] = &[0x30, 10, 0x06, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2];

const UNREADABLE: &str = "cannot parse a certificate in the issued chain";
const NOT_A_CHAIN: &str =
    "the issued certificate does not consist of 1 to 8 CERTIFICATE blocks in PEM";

impl Credential {
    /// Checks that `issued` is the certificate that was requested for `subject`, and joins it with
    /// its key.
    ///
    /// # Guarantees
    ///
    /// The leaf certificate has this key and exactly this node as its subject, is only for client authentication, is
    /// not a CA certificate, and has not expired at `now`. A signer is allowed to omit the provider ID, but not to
    /// change it. The CA's signature is not checked: the certificate comes from the API server over a verified
    /// connection, and the API server checks the signature itself.
    pub fn from_issued(
        issued: &[u8],
        key: PrivateKey,
        subject: &Subject,
        now: SystemTime,
    ) -> Result<Self, Invalid> {
        let chain = chain(issued)?;
        for certificate in chain.iter().skip(1) {
            parse(certificate).map_err(|error| error.within(UNREADABLE))?;
        }
        let leaf = chain.first().ok_or_else(|| Invalid::new(NOT_A_CHAIN))?;
        let certificate = parse(leaf).map_err(|error| error.within(UNREADABLE))?;
        if !has_key(&certificate, &key) {
            return Err(Invalid::new(
                "the issued certificate is for a different key",
            ));
        }
        check_subject(&certificate, &subject.node_name)?;
        check_extensions(certificate.extensions(), &subject.provider_id)?;
        let leaf = Leaf::of(&certificate).map_err(|error| error.within(UNREADABLE))?;
        let not_after = leaf.validity.not_after;
        if now >= not_after {
            let end = humantime::format_rfc3339_seconds(not_after);
            return Err(Invalid::new(format!(
                "the issued certificate expired at {end}"
            )));
        }
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        let block = |der| pem::encode_config(&pem::Pem::new("CERTIFICATE", der), config);
        Ok(Self {
            certificate_pem: chain.into_iter().map(block).collect(),
            key,
            leaf,
        })
    }
}

/// Returns the certificates of the chain. Drops the text around the blocks, which the API server allows.
fn chain(issued: &[u8]) -> Result<Vec<Vec<u8>>, Invalid> {
    let chain = <(SectionKind, Vec<u8>)>::pem_slice_iter(issued)
        .take(MAX_CERTIFICATES + 1)
        .map(|section| match section {
            Ok((SectionKind::Certificate, der)) => Ok(der),
            _ => Err(Invalid::new(NOT_A_CHAIN)),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() || chain.len() > MAX_CERTIFICATES {
        return Err(Invalid::new(NOT_A_CHAIN));
    }
    Ok(chain)
}

/// Requires one organization, one common name, and no other attribute except the UID that Kubernetes reads.
fn check_subject(certificate: &X509Certificate<'_>, node_name: &NodeName) -> Result<(), Invalid> {
    let common_name = node_name.user_name();
    let subject = certificate.subject();
    let mut attributes: Vec<(&[u8], &str)> = subject
        .iter_attributes()
        .map(|attribute| {
            let text = attribute.as_str().unwrap_or_default();
            (attribute.attr_type().as_bytes(), text)
        })
        .filter(|(kind, _)| *kind != oid::KUBERNETES_USER_UID.as_bytes())
        .collect();
    attributes.sort_unstable();
    if attributes
        == [
            (oid::COMMON_NAME.as_bytes(), common_name.as_str()),
            (oid::ORGANIZATION.as_bytes(), NODES_GROUP),
        ]
    {
        return Ok(());
    }
    let expected = format!("O={NODES_GROUP}, CN={common_name}");
    let found = subject.to_string();
    Err(Invalid::new(format!(
        "the issued certificate is for {found:?} instead of {expected:?}"
    )))
}

fn check_extensions(
    extensions: &[X509Extension<'_>],
    provider_id: &ProviderId,
) -> Result<(), Invalid> {
    let (mut signs, mut client) = (false, false);
    for extension in extensions {
        let kind = extension.oid.as_bytes();
        if kind == oid::BASIC_CONSTRAINTS.as_bytes() {
            // This check is not strict. Some signers write `cA` although false is its default. Others write a path
            // length, which only a CA certificate is allowed to have (RFC 5280 section 4.2.1.9).
            let parsed = BasicConstraints::from_der(extension.value);
            if !parsed.is_ok_and(|(rest, basic)| rest.is_empty() && !basic.ca) {
                return Err(Invalid::new("the issued certificate is a CA certificate"));
            }
        }
        if kind == oid::KEY_USAGE.as_bytes() {
            signs = extension.value == DIGITAL_SIGNATURE;
        }
        if kind == oid::EXTENDED_KEY_USAGE.as_bytes() {
            client = extension.value == CLIENT_AUTH;
        }
        if kind == oid::PROVIDER_ID.as_bytes()
            && provider_id_text(extension.value) != Some(provider_id.as_str())
        {
            return Err(Invalid::new(format!(
                "the provider ID in the issued certificate does not match {provider_id}"
            )));
        }
    }
    if signs && client {
        Ok(())
    } else {
        Err(Invalid::new(
            "the usages of the issued certificate are not exactly 'digital signature' and 'client auth'",
        ))
    }
}
