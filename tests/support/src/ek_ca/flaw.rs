//! Flaws in CA certificates.

use std::time::{Duration, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose,
};

use super::EK_USAGE;
use crate::clock::now;
use crate::tlv::{SET, tlv};

/// The time 2223-07-06, in seconds since 1970.
const FAR_AWAY: Duration = Duration::from_secs(8_000_000_000);

/// A flaw, or a rare property, of a CA certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The certificate has expired.
    Expired,
    /// The certificate becomes valid on 2223-07-06.
    NotYetValid,
    /// The certificate does not belong to an authority.
    NotAnAuthority,
    /// The certificate limits the number of CAs below it to this number.
    PathLength(u8),
    /// The key usage allows only the signing of certificate revocation lists.
    SignsLists,
    /// The certificate does not contain a key usage.
    NoKeyUsage,
    /// The extended key usage is for server certificates.
    ForServers,
    /// The extended key usage is for endorsement key certificates. This is not a flaw.
    ForEndorsementKeys,
    /// The certificate contains an unknown extension, which is a flaw if it is critical.
    Unknown {
        /// Whether the extension is critical.
        critical: bool,
    },
}

impl Flaw {
    pub(super) fn put_into(self, params: &mut CertificateParams) {
        match self {
            Self::Expired => params.not_after = (now() - Duration::from_secs(3600)).into(),
            Self::NotYetValid => params.not_before = (UNIX_EPOCH + FAR_AWAY).into(),
            Self::NotAnAuthority => params.is_ca = IsCa::ExplicitNoCa,
            Self::PathLength(most) => {
                params.is_ca = IsCa::Ca(BasicConstraints::Constrained(most));
            }
            Self::SignsLists => params.key_usages = vec![KeyUsagePurpose::CrlSign],
            Self::NoKeyUsage => params.key_usages = Vec::new(),
            Self::ForServers => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }
            Self::ForEndorsementKeys => {
                let usage = ExtendedKeyUsagePurpose::Other(EK_USAGE.to_vec());
                params.extended_key_usages = vec![usage];
            }
            Self::Unknown { critical } => {
                let value = tlv(SET, &[]);
                let mut unknown = CustomExtension::from_oid_content(&[2, 23, 133, 99], value);
                unknown.set_criticality(critical);
                params.custom_extensions.push(unknown);
            }
        }
    }
}
