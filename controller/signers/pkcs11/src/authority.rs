//! The CAs that the command-line options name.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use node_attestation_turns::Owner;
use sha2::{Digest as _, Sha256};
use x509_cert::Certificate;
use x509_cert::der::{self, DecodePem as _, Encode as _};

/// A CA in the format of the command-line option: `CERT,KEY-LABEL[,NAMESPACE/NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuthorityArgument {
    certificate: PathBuf,
    key_label: String,
    cluster: Cluster,
}

/// The Cluster that a CA belongs to. Both fields are empty without a management cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
}

/// The turns rotate by the namespace of the Cluster, and then by key.
impl Owner for Authority {
    fn namespace(&self) -> &str {
        &self.cluster.namespace
    }

    fn name(&self) -> &str {
        &self.key_label
    }
}

/// A text that is not a CA argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be CERT,KEY-LABEL or CERT,KEY-LABEL,NAMESPACE/NAME")]
pub(crate) struct InvalidAuthority;

/// A certificate that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the CA certificate {}", path.display())]
pub(crate) struct ReadError {
    path: PathBuf,
    source: ReadErrorSource,
}

#[derive(Debug, thiserror::Error)]
enum ReadErrorSource {
    #[error(transparent)]
    File(io::Error),
    #[error("it is not exactly one PEM certificate")]
    Certificate(#[source] der::Error),
}

impl FromStr for AuthorityArgument {
    type Err = InvalidAuthority;

    fn from_str(text: &str) -> Result<Self, InvalidAuthority> {
        let mut parts = text.split(',');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let (Some(certificate), Some(key_label)) = (next(), next()) else {
            return Err(InvalidAuthority);
        };
        let cluster = parts.next().map(Cluster::parse).transpose()?;
        if parts.next().is_some() {
            return Err(InvalidAuthority);
        }
        Ok(Self {
            certificate: PathBuf::from(certificate),
            key_label: key_label.to_owned(),
            cluster: cluster.unwrap_or_default(),
        })
    }
}

impl Cluster {
    fn parse(text: &str) -> Result<Self, InvalidAuthority> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            Some(_) | None => Err(InvalidAuthority),
        }
    }
}

impl AuthorityArgument {
    /// Reads the certificate.
    pub(crate) fn read(&self) -> Result<Authority, ReadError> {
        let failed = |source| ReadError {
            path: self.certificate.clone(),
            source,
        };
        let pem = fs::read(&self.certificate);
        let pem = pem.map_err(|error| failed(ReadErrorSource::File(error)))?;
        let invalid = |error| failed(ReadErrorSource::Certificate(error));
        let certificate = Certificate::from_pem(pem).map_err(invalid)?;
        let der = certificate.to_der().map_err(invalid)?;
        Ok(Authority {
            certificate,
            sha256: Sha256::digest(der).into(),
            key_label: self.key_label.clone(),
            cluster: self.cluster.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_option_has_a_certificate_a_key_and_an_optional_cluster() {
        let parsed: AuthorityArgument = "ca.crt,node-ca,tenant-a/prod-1".parse().unwrap();
        assert_eq!(parsed.certificate, PathBuf::from("ca.crt"));
        assert_eq!(parsed.key_label, "node-ca");
        assert_eq!(parsed.cluster.namespace, "tenant-a");
        assert_eq!(parsed.cluster.name, "prod-1");
        let parsed: AuthorityArgument = "ca.crt,node-ca".parse().unwrap();
        assert_eq!(parsed.cluster, Cluster::default());

        for text in [
            "",
            "ca.crt",
            "ca.crt,",
            ",key",
            "a,b,",
            "a,b,c",
            "a,b,/c",
            "a,b,c/",
            "a,b,c/d/e",
            "a,b,c/d,e",
        ] {
            let parsed = text.parse::<AuthorityArgument>();
            assert_eq!(parsed, Err(InvalidAuthority), "{text}");
        }
    }
}
