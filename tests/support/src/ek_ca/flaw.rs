//! What is wrong with the certificate of an authority.

use std::time::{Duration, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose,
};

use super::EK_USAGE;
use crate::clock::now;
use crate::tlv::{SET, tlv};

/// 2223-07-06.
const FAR_AWAY: Duration = Duration::from_secs(8_000_000_000);

/// What is wrong with the certificate of an authority, or only unusual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// It has expired.
    Expired,
    /// It is not valid yet for a long time.
    NotYetValid,
    /// It is no authority's.
    NotAnAuthority,
    /// It has so many authorities below it at most.
    PathLength(u8),
    /// Its key signs lists of revoked certificates alone.
    SignsLists,
    /// It does not say what its key is for.
    NoKeyUsage,
    /// It is for the certificates of servers.
    ForServers,
    /// It is for the certificates of endorsement keys: no flaw.
    ForEndorsementKeys,
    /// It has an extension that nobody knows, and that is critical or not: a flaw if it is.
    Unknown {
        /// Whether it is.
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
