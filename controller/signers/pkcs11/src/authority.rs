//! A CA, as described in its file.

use std::fmt;
use std::str::{self, FromStr};

use node_attestation_turns::Owner;
use sha2::{Digest as _, Sha256};
use x509_cert::Certificate;
use x509_cert::der::{self, DecodePem as _, Encode as _};

use crate::server_names::{InvalidAddress, InvalidName, Reserved, ReservedAddress, ReservedName};

/// The Cluster that a CA belongs to. Both fields are empty without a management cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Cluster {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A CA whose key is in the token.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) certificate: Certificate,
    pub(crate) sha256: [u8; 32],
    pub(crate) key_label: String,
    pub(crate) cluster: Cluster,
    pub(crate) reserved: Reserved,
}

/// The turns rotate through the namespaces of the Clusters, and then through the keys.
impl Owner for Authority {
    fn namespace(&self) -> &str {
        &self.cluster.namespace
    }

    fn name(&self) -> &str {
        &self.key_label
    }
}

/// The file does not describe a CA. The text contains only line numbers, because the file can be a secret that an
/// operator copied to the wrong folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidFile {
    #[error("it is not UTF-8 text")]
    NotText,
    #[error("it has no PEM certificate")]
    NoCertificate,
    #[error("line {0} is not a setting (want NAME: VALUE)")]
    NotASetting(usize),
    #[error(
        "line {0} has an unknown setting (want key-label, cluster, reserved-name or reserved-address)"
    )]
    Unknown(usize),
    #[error("line {0} repeats a setting")]
    Repeated(usize),
    #[error("line {line} is invalid")]
    Value { line: usize, source: InvalidValue },
    #[error("the setting key-label is missing")]
    NoKeyLabel,
    #[error("it does not contain exactly one PEM certificate after its settings")]
    Certificate(#[source] der::Error),
}

/// The value of a setting is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidValue {
    #[error("the value is empty")]
    Empty,
    #[error("want NAMESPACE/NAME of a Cluster")]
    Cluster,
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Address(#[from] InvalidAddress),
}

impl FromStr for Cluster {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            Some(_) | None => Err(InvalidValue::Cluster),
        }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("the cluster without a management cluster");
        }
        write!(f, "Cluster {}/{}", self.namespace, self.name)
    }
}

impl Authority {
    /// Parses a file: the settings, one in each line, and then the certificate of the CA in PEM. Empty lines and lines
    /// that begin with `#` have no effect.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, InvalidFile> {
        let text = str::from_utf8(file).map_err(|_| InvalidFile::NotText)?;
        let begin = text.find("-----BEGIN ");
        let (settings, pem) = text.split_at(begin.ok_or(InvalidFile::NoCertificate)?);
        let (mut key_label, mut cluster) = (None, None);
        let mut reserved = Reserved::default();
        for (number, line) in (1..).zip(settings.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let setting = line.split_once(':');
            let (name, value) = setting.ok_or(InvalidFile::NotASetting(number))?;
            let value = value.trim();
            let invalid = |source| InvalidFile::Value {
                line: number,
                source,
            };
            if value.is_empty() {
                return Err(invalid(InvalidValue::Empty));
            }
            let replaced = match name.trim() {
                "key-label" => key_label.replace(value.to_owned()).is_some(),
                "cluster" => {
                    let value: Cluster = value.parse().map_err(invalid)?;
                    cluster.replace(value).is_some()
                }
                "reserved-name" => {
                    let value: Result<ReservedName, _> = value.parse();
                    reserved
                        .names
                        .push(value.map_err(|error| invalid(error.into()))?);
                    false
                }
                "reserved-address" => {
                    let value: Result<ReservedAddress, _> = value.parse();
                    reserved
                        .addresses
                        .push(value.map_err(|error| invalid(error.into()))?);
                    false
                }
                _ => return Err(InvalidFile::Unknown(number)),
            };
            if replaced {
                return Err(InvalidFile::Repeated(number));
            }
        }
        let certificate = Certificate::from_pem(pem).map_err(InvalidFile::Certificate)?;
        let der = certificate.to_der().map_err(InvalidFile::Certificate)?;
        Ok(Self {
            certificate,
            sha256: Sha256::digest(der).into(),
            key_label: key_label.ok_or(InvalidFile::NoKeyLabel)?,
            cluster: cluster.unwrap_or_default(),
            reserved,
        })
    }

    /// Whether both CAs use the same key: a private key with the same label, or certificates with the same public key.
    pub(crate) fn has_key_of(&self, other: &Self) -> bool {
        let [own, theirs] = [self, other].map(|ca| ca.certificate.tbs_certificate());
        self.key_label == other.key_label
            || own.subject_public_key_info() == theirs.subject_public_key_info()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::error::Error as _;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    /// The certificate of a new CA, in PEM.
    pub(crate) fn new_ca() -> String {
        ca_of(&KeyPair::generate().unwrap(), 1)
    }

    /// The certificate of a CA with this key and serial number, in PEM.
    pub(crate) fn ca_of(key: &KeyPair, serial: u64) -> String {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.serial_number = Some(serial.into());
        params.self_signed(key).unwrap().pem()
    }

    /// Returns the error for a file with these settings and a valid certificate, including its cause.
    fn refused(settings: &str) -> String {
        let error = Authority::parse(format!("{settings}{}", new_ca()).as_bytes()).unwrap_err();
        let cause = error.source().map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    }

    #[test]
    fn a_ca_file_has_a_key_label_a_cluster_reservations_and_a_ca() {
        let settings = "\
# The CA of prod-1.
key-label: node-ca
cluster: tenant-a/prod-1

reserved-name: api.prod-1.example
reserved-name: api.example
reserved-address: 10.96.0.0/12
";
        let parsed = Authority::parse(format!("{settings}{}", new_ca()).as_bytes()).unwrap();
        assert_eq!(parsed.key_label, "node-ca");
        assert_eq!(parsed.cluster.to_string(), "Cluster tenant-a/prod-1");
        assert_eq!(parsed.reserved.names.len(), 2);
        assert_eq!(parsed.reserved.addresses.len(), 1);

        let short = format!("key-label:node-ca\n{}", new_ca());
        let parsed = Authority::parse(short.as_bytes()).unwrap();
        assert_eq!(parsed.cluster, Cluster::default());
    }

    #[test]
    fn a_ca_file_with_one_invalid_line_is_refused_with_its_number() {
        const KEY: &str = "key-label: node-ca\n";
        for (line, expected) in [
            ("node-ca", "line 2 is not a setting (want NAME: VALUE)"),
            ("key-label: other", "line 2 repeats a setting"),
            ("cluster:", "line 2 is invalid: the value is empty"),
            (
                "cluster: prod-1",
                "line 2 is invalid: want NAMESPACE/NAME of a Cluster",
            ),
            (
                "cluster: a/b/c",
                "line 2 is invalid: want NAMESPACE/NAME of a Cluster",
            ),
            (
                "cluster: /c",
                "line 2 is invalid: want NAMESPACE/NAME of a Cluster",
            ),
            (
                "reserved-name: *.example",
                "line 2 is invalid: it is not a DNS name",
            ),
            (
                "reserved-address: 10.96.0.0/33",
                "line 2 is invalid: it is not an address, or a range such as 10.96.0.0/12",
            ),
        ] {
            assert_eq!(refused(&format!("{KEY}{line}\n")), expected);
        }
        let unknown = refused(&format!("{KEY}pin: 648219\n"));
        assert!(unknown.starts_with("line 2 has an unknown setting"));
        assert!(!unknown.contains("648219"), "{unknown}");
        assert_eq!(refused(""), "the setting key-label is missing");
        let twice = "cluster: a/b\ncluster: a/b\n";
        assert_eq!(refused(twice), "line 2 repeats a setting");
    }

    #[test]
    fn a_ca_file_without_exactly_one_certificate_is_refused() {
        let error = |file: &[u8]| Authority::parse(file).unwrap_err().to_string();
        assert_eq!(error(b"key-label: k\n"), "it has no PEM certificate");
        assert_eq!(error(&[0xff]), "it is not UTF-8 text");
        let one = "it does not contain exactly one PEM certificate after its settings";
        let two = format!("key-label: k\n{}{}", new_ca(), new_ca());
        assert_eq!(error(two.as_bytes()), one);
        let key = KeyPair::generate().unwrap().serialize_pem();
        assert_eq!(error(format!("key-label: k\n{key}").as_bytes()), one);
    }
}
