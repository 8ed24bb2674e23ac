//! The names of certificate signing requests.

use crate::framing::FramedDigest;

/// The name prefix of the plugin's requests. An admission policy can require this prefix for bootstrap tokens.
pub const CSR_NAME_PREFIX: &str = "kubelet-authenticator-";

/// Returns the name of this request.
///
/// `request` is `spec.request`, byte for byte. The signature in the request is random, so an attacker cannot use the
/// name before the request exists. A node that sends the same request again gets the same name.
pub fn csr_name(signer_name: &str, usages: &[&str], request: &[u8]) -> String {
    let digest = FramedDigest::default()
        .field(signer_name.as_bytes())
        .field(usages.join(",").as_bytes())
        .field(request)
        .finish();
    let digest = data_encoding::BASE32_NOPAD
        .encode(&digest)
        .to_ascii_lowercase();
    format!("{CSR_NAME_PREFIX}{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGES: [&str; 2] = ["digital signature", "client auth"];

    #[test]
    fn a_request_name_is_a_valid_object_name() {
        let name = csr_name("a.b/c", &USAGES, b"request");

        let digest = name.strip_prefix("kubelet-authenticator-").unwrap();
        assert_eq!(digest.len(), 52);
        assert!(
            digest
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()),
            "{digest}"
        );
    }

    #[test]
    fn a_request_name_depends_on_the_signer_the_usages_and_the_bytes() {
        let name = csr_name("a.b/c", &USAGES, b"request");

        assert_eq!(csr_name("a.b/c", &USAGES, b"request"), name);
        assert_ne!(csr_name("a.b/d", &USAGES, b"request"), name);
        assert_ne!(csr_name("a.b/c", &["client auth"], b"request"), name);
        assert_ne!(csr_name("a.b/c", &USAGES, b"requesu"), name);
    }
}
