//! The extensions that every certificate in a chain is allowed to have.

use std::collections::BTreeSet;

use kubelet_attestation::errors::shortened;
use x509_parser::der_parser::oid;
use x509_parser::extensions::{ParsedExtension, PolicyInformation, X509Extension};
use x509_parser::oid_registry::Oid;

use super::name::MAX_LEN;
use super::unfit::Unfit;

/// `id-qt-cps` and `id-qt-unotice` (RFC 5280, 4.2.1.4).
const QUALIFIERS: [Oid<'static>; 2] = [oid!(1.3.6.1.5.5.7.2.1), oid!(1.3.6.1.5.5.7.2.2)];

/// Checks that the extension can be ignored: it is not critical, or it contains certificate policies. All policies are
/// acceptable, because the verifier does not require a policy (RFC 5280, 6.1). A certificate that requires a policy has
/// a critical policyConstraints extension, which is not supported.
///
/// # Errors
///
/// Returns the reason why the extension cannot be ignored.
pub(super) fn pass_over(extension: &X509Extension<'_>) -> Result<(), Unfit> {
    if !extension.critical {
        return Ok(());
    }
    let parsed = extension.parsed_extension();
    if let ParsedExtension::CertificatePolicies(policies) = parsed {
        return are_understood(policies).map_err(Unfit::Policies);
    }
    let what = if matches!(parsed, ParsedExtension::ParseError { .. }) {
        "a malformed"
    } else {
        "an unknown"
    };
    let oid = shortened(&extension.oid.to_string(), MAX_LEN).to_owned();
    Err(Unfit::Extension { what, oid })
}

/// Checks that all qualifiers of the policies in a critical extension are known.
fn are_understood(policies: &[PolicyInformation<'_>]) -> Result<(), &'static str> {
    if policies.is_empty() {
        return Err("are empty");
    }
    let different: BTreeSet<_> = policies
        .iter()
        .map(|policy| policy.policy_id.as_bytes())
        .collect();
    if different.len() != policies.len() {
        return Err("have a policy twice");
    }
    let mut qualifiers = policies
        .iter()
        .flat_map(|policy| policy.policy_qualifiers.iter().flatten());
    if qualifiers.any(|one| !QUALIFIERS.contains(&one.policy_qualifier_id)) {
        return Err("have an unknown qualifier");
    }
    Ok(())
}
