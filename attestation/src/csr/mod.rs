//! The request: its envelope, the PKCS#10 request inside, and the names of what may stand in it.

#[cfg(test)]
mod encode;
pub mod envelope;
pub mod oid;
pub mod parse;
pub mod subject;

/// The usages of a kubelet's client certificate, as `spec.usages` lists them.
pub const CLIENT_USAGES: [&str; 2] = ["digital signature", "client auth"];

/// The usages of a kubelet's serving certificate, as `spec.usages` lists them.
pub const SERVING_USAGES: [&str; 2] = ["digital signature", "server auth"];
