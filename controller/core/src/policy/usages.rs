//! `spec.usages`.

use kubelet_attestation::csr::CLIENT_USAGES;

use crate::refusal::Denial;

/// Accepts the usages of a kubelet's client certificate with an ECDSA key, in any order, and no
/// others.
pub(crate) fn exact(usages: &[String]) -> Result<(), Denial> {
    let each_once = CLIENT_USAGES
        .iter()
        .all(|expected| usages.iter().any(|usage| usage == expected));
    if each_once && usages.len() == CLIENT_USAGES.len() {
        Ok(())
    } else {
        Err(Denial::UsagesNotExact)
    }
}
