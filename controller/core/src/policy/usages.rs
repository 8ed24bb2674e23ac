//! Checks of `spec.usages`.

use kubelet_attestation::csr::{CLIENT_USAGES, SERVING_USAGES};
use kubelet_attestation::ensure;

use crate::refusal::Denial;

/// Accepts exactly the usages of a kubelet client certificate with an ECDSA key, in any order.
pub(crate) fn exact(usages: &[String]) -> Result<(), Denial> {
    ensure!(are(usages, &CLIENT_USAGES), Denial::UsagesNotExact);
    Ok(())
}

/// Accepts exactly the usages of a kubelet serving certificate, in any order. The proposal also lists key encipherment,
/// but only for RSA keys, which the controller does not accept.
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
