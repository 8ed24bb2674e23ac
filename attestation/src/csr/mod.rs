//! The request: its envelope, the PKCS#10 request inside it, its subject, its extension, and object identifiers.

#[cfg(test)]
mod encode;
pub mod envelope;
pub mod extension;
pub mod oid;
pub mod parse;
pub mod subject;

/// The usages of a kubelet client certificate, as in `spec.usages`.
pub const CLIENT_USAGES: [&str; 2] = ["digital signature", "client auth"];

/// The usages of a kubelet serving certificate, as in `spec.usages`.
pub const SERVING_USAGES: [&str; 2] = ["digital signature", "server auth"];
