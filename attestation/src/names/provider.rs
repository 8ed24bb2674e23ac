//! Attestation providers and their signer names.

use std::borrow::Cow;

use crate::text::as_text;

/// The prefix of this project's client signer names. The provider follows.
///
/// The proposal also uses the prefix `cluster-x-k8s-io/`. The API server rejects this prefix, because the domain of a
/// signer name must have at least two labels.
const CLIENT_SIGNER_PREFIX: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-";

/// The prefix of this project's serving signer names.
pub const SERVING_SIGNER_PREFIX: &str = "cluster.x-k8s.io/kubelet-serving-";

/// The signer of kube-controller-manager for kubelet client certificates. A kubelet without the plugin uses this
/// signer.
pub const BUILT_IN_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The signer of kube-controller-manager for kubelet serving certificates. A kubelet cannot use another serving signer.
pub const BUILT_IN_SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// The maximum length of a provider name. The limit keeps signer names and metric labels short.
const MAX_PROVIDER_LEN: usize = 32;

/// The name of an attestation provider.
#[derive(derive_more::Display, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Provider(Cow<'static, str>);

/// An invalid provider name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a provider name must have 1 to {MAX_PROVIDER_LEN} characters: lower-case letters, digits and inner '-'"
)]
pub struct InvalidProvider;

impl Provider {
    /// AWS: the evidence is the signed identity of the instance.
    pub const AWS: Self = Self(Cow::Borrowed("aws"));
    /// TPM 2.0: the evidence is a quote.
    pub const TPM: Self = Self(Cow::Borrowed("tpm"));
    /// No evidence, for machines without a source of evidence.
    pub const INSECURE: Self = Self(Cow::Borrowed("insecure"));
    /// No evidence and no checks, for tests.
    pub const NULL: Self = Self(Cow::Borrowed("null"));

    /// Parses a provider name.
    pub fn parse(name: &str) -> Result<Self, InvalidProvider> {
        // The controller stores the name with each node identity. To save memory, the common names are not copied.
        let usual = [Self::AWS, Self::TPM, Self::INSECURE, Self::NULL];
        if let Some(provider) = usual.into_iter().find(|one| one.0 == name) {
            return Ok(provider);
        }
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let valid = !name.is_empty()
            && name.len() <= MAX_PROVIDER_LEN
            && name.bytes().all(allowed)
            && !name.starts_with('-')
            && !name.ends_with('-');
        if valid {
            Ok(Self(Cow::Owned(name.to_owned())))
        } else {
            Err(InvalidProvider)
        }
    }

    /// The provider of this client signer. `None` for other signers.
    pub fn of_client_signer(signer_name: &str) -> Option<Self> {
        Self::parse(signer_name.strip_prefix(CLIENT_SIGNER_PREFIX)?).ok()
    }

    /// The signer name that a node with this provider uses for its client certificate.
    pub fn client_signer(&self) -> String {
        format!("{CLIENT_SIGNER_PREFIX}{self}")
    }

    /// The provider of this serving signer. `None` for other signers.
    pub fn of_serving_signer(signer_name: &str) -> Option<Self> {
        Self::parse(signer_name.strip_prefix(SERVING_SIGNER_PREFIX)?).ok()
    }

    /// The signer name that a node with this provider can use for its serving certificate.
    pub fn serving_signer(&self) -> String {
        format!("{SERVING_SIGNER_PREFIX}{self}")
    }
}

as_text!(Provider);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_known_providers_are_not_allocated() {
        for name in ["aws", "tpm", "insecure", "null"] {
            let provider = Provider::parse(name).unwrap();
            assert!(matches!(provider.0, Cow::Borrowed(_)), "{name}");
            assert_eq!(provider.as_str(), name);
        }
        let other = Provider::parse("azure").unwrap();
        assert!(matches!(other.0, Cow::Owned(_)));
    }

    #[test]
    fn a_provider_and_its_signer_name_are_derived_from_each_other() {
        for (provider, signer) in [
            (
                Provider::AWS,
                "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws",
            ),
            (
                Provider::TPM,
                "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
            ),
            (
                Provider::INSECURE,
                "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure",
            ),
            (
                Provider::NULL,
                "cluster.x-k8s.io/kube-apiserver-client-kubelet-null",
            ),
        ] {
            assert_eq!(provider.client_signer(), signer);
            assert_eq!(Provider::of_client_signer(signer), Some(provider));
        }
    }

    #[test]
    fn a_provider_and_its_serving_signer_name_follow_from_each_other() {
        let signer = "cluster.x-k8s.io/kubelet-serving-tpm";

        assert_eq!(Provider::TPM.serving_signer(), signer);
        assert_eq!(Provider::of_serving_signer(signer), Some(Provider::TPM));
        for other in [
            BUILT_IN_SERVING_SIGNER,
            BUILT_IN_CLIENT_SIGNER,
            "cluster.x-k8s.io/kubelet-serving-",
            "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
        ] {
            assert_eq!(Provider::of_serving_signer(other), None, "{other}");
        }
    }

    #[test]
    fn an_unrelated_signer_name_has_no_provider() {
        for signer in [
            "",
            "kubernetes.io/kube-apiserver-client-kubelet",
            "kubernetes.io/kubelet-serving",
            "cluster.x-k8s.io/kubelet-serving-aws",
            "cluster.x-k8s.io/kube-apiserver-client-kubelet-",
            "cluster.x-k8s.io/kube-apiserver-client-kubelet-AWS",
            "cluster-x-k8s-io/kube-apiserver-client-kubelet-aws",
        ] {
            assert_eq!(Provider::of_client_signer(signer), None, "{signer}");
        }
    }

    #[test]
    fn a_provider_name_has_only_letters_digits_and_inner_dashes() {
        for name in ["a", "7", "tpm-2", &"a".repeat(32)] {
            assert_eq!(Provider::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn an_invalid_provider_name_is_refused() {
        for name in ["", "AWS", "-a", "a-", "a b", "a/b", "a\n", &"a".repeat(33)] {
            assert_eq!(Provider::parse(name), Err(InvalidProvider), "{name:?}");
        }
    }
}
