//! `spec.usages`.

use kubelet_attestation::csr::{CLIENT_USAGES, SERVING_USAGES};
use kubelet_attestation::ensure;

use crate::refusal::Denial;

/// Accepts the usages of a kubelet's client certificate with an ECDSA key, in any order, and no
/// others.
pub(crate) fn exact(usages: &[String]) -> Result<(), Denial> {
    ensure!(are(usages, &CLIENT_USAGES), Denial::UsagesNotExact);
    Ok(())
}

/// The same for a serving certificate. Key encipherment, which the proposal also names, is for RSA
/// keys, and none is accepted.
pub(crate) fn exact_serving(usages: &[String]) -> Result<(), Denial> {
    ensure!(are(usages, &SERVING_USAGES), Denial::ServingUsagesNotExact);
    Ok(())
}

fn are(usages: &[String], expected: &[&str]) -> bool {
    let each_once = expected
        .iter()
        .all(|expected| usages.iter().any(|usage| usage == expected));
    each_once && usages.len() == expected.len()
}
