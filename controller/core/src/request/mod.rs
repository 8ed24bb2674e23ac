//! The chain.

mod issued;

pub use issued::IssuedCertificate;
