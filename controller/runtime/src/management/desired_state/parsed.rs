//! The parsed objects of one cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kubelet_attestation::names::Audience;
use node_attestation_core::ledger::RevocationDecisions;
use node_attestation_core::signer::ExternalKey;
use node_attestation_core::verifier::ParsedSettings;
use sha2::{Digest as _, Sha256};

use super::value;
use crate::capi::{
    CaRefused, ClusterCa, KUBECONFIG_KEY, KubeconfigRefused, ObjectKey, TenantKubeconfig,
};
use crate::client::EgressPolicy;
use crate::management::ca_key_registry::ClusterCaKey;
use crate::management::configuration::{CheckedSpec, InvalidSpec};
use crate::management::kept_authentications::KeptAuthentication;
use crate::turns::{SigningTurns, calculations};

/// The parsed objects of one cluster. Each object is stored with its source.
///
/// A rejection is also stored. Therefore a reconciliation parses only changed objects, and an object that is expensive
/// to reject is rejected only once.
#[derive(Default)]
pub(in crate::management) struct Parsed {
    ca: Last<Values, ParsedCa>,
    kubeconfig: Last<Values, ParsedKubeconfig>,
    spec: Last<Spec, ParsedSpec>,
    decisions: Last<Annotations, ParsedDecisions>,
    /// The settings for the verifiers. The verifiers themselves are stored only while the cluster is served, because
    /// they use a share of the memory.
    pub(super) of_attestors: Option<ParsedSettings>,
}

/// The Secret with the CA.
pub(super) struct ParsedCa {
    /// The key, even if the CA cannot be used for signing.
    pub(super) key: Option<ClusterCaKey>,
    /// Whether the Secret contains the key.
    pub(super) has_own_key: bool,
    pub(super) ca: Result<Arc<ClusterCa>, CaRefused>,
    pub(super) audiences: Vec<Audience>,
    pub(super) digest: [u8; 32],
}

/// The Secret with the kubeconfig.
pub(super) struct ParsedKubeconfig {
    pub(super) kubeconfig: Result<Arc<TenantKubeconfig>, KubeconfigRefused>,
    pub(super) audiences: Vec<Audience>,
    pub(super) digest: [u8; 32],
}

/// The settings.
pub(super) struct ParsedSpec {
    pub(super) checked: Result<CheckedSpec, InvalidSpec>,
    pub(super) digest: [u8; 32],
}

/// The annotations with the decisions about revocations.
struct ParsedDecisions {
    decisions: Arc<RevocationDecisions>,
    unread: Option<String>,
}

impl Parsed {
    /// Parses the CA in this Secret. If the Secret has no key, `external` is used for signing. Signatures use the turns
    /// of `cluster`.
    pub(super) fn ca(
        &mut self,
        secret: &Arc<Secret>,
        cluster: &ObjectKey,
        external: impl FnOnce() -> Option<Arc<dyn ExternalKey>>,
    ) -> Arc<ParsedCa> {
        self.ca.get(Values(secret.clone()), || {
            let turns = Arc::new(SigningTurns(calculations(cluster)));
            let ca = ClusterCa::in_turns(secret, turns);
            let key = ca.as_ref().ok().map(ClusterCaKey::of);
            let has_own_key = ca.as_ref().is_ok_and(|ca| ca.signer().is_some());
            let audiences = ca.iter().flat_map(ClusterCa::audiences).collect();
            let ca = ca.and_then(|ca| match external() {
                Some(external) => ca.or_signed_by(external),
                None => Ok(ca),
            });
            ParsedCa {
                key,
                has_own_key,
                ca: ca.map(Arc::new),
                audiences,
                digest: digest(["tls.crt", "tls.key"].map(|key| value(secret, key))),
            }
        })
    }

    /// Parses the kubeconfig in this Secret.
    pub(super) fn kubeconfig(
        &mut self,
        secret: &Arc<Secret>,
        egress: EgressPolicy,
    ) -> Arc<ParsedKubeconfig> {
        self.kubeconfig.get(Values(secret.clone()), || {
            let text = value(secret, KUBECONFIG_KEY);
            let kubeconfig = TenantKubeconfig::parse(text, egress);
            let trusted = kubeconfig
                .iter()
                .flat_map(TenantKubeconfig::ca_certificates);
            let audiences = trusted.map(|der| Audience::of_ca(der)).collect();
            ParsedKubeconfig {
                kubeconfig: kubeconfig.map(Arc::new),
                audiences,
                digest: digest([text]),
            }
        })
    }

    /// Parses the settings in this object.
    pub(super) fn spec(&mut self, authentication: &Arc<KeptAuthentication>) -> Arc<ParsedSpec> {
        self.spec.get(Spec(authentication.clone()), || {
            let spec = &authentication.spec;
            // The spec has no map with an unstable order, and all of its values can be serialized.
            let text = serde_json::to_vec(spec).unwrap_or_default();
            ParsedSpec {
                checked: CheckedSpec::of(spec),
                digest: digest([text.as_slice()]),
            }
        })
    }

    /// Parses the decisions in the annotations on this object.
    pub(in crate::management) fn decisions(
        &mut self,
        authentication: &Arc<KeptAuthentication>,
    ) -> Arc<RevocationDecisions> {
        let parsed = self.decisions.get(Annotations(authentication.clone()), || {
            let annotations = authentication.metadata.annotations.as_ref();
            ParsedDecisions {
                decisions: Arc::new(RevocationDecisions::of_annotations(annotations)),
                unread: RevocationDecisions::unread(annotations),
            }
        });
        parsed.decisions.clone()
    }

    /// Returns the warning about releases that are not read.
    pub(in crate::management) fn unread_releases(&self) -> Option<String> {
        let (_, parsed) = self.decisions.known.as_ref()?;
        let why = parsed.unread.as_ref()?;
        Some(format!("read the released machines: {why}"))
    }

    /// Drops the CA, which contains the key.
    pub(super) fn forget_ca(&mut self) {
        self.ca.known = None;
    }

    /// Drops the kubeconfig, which contains a credential.
    pub(super) fn forget_kubeconfig(&mut self) {
        self.kubeconfig.known = None;
    }

    /// The number of parsed objects.
    #[cfg(test)]
    pub(in crate::management) fn count(&self) -> usize {
        self.ca.parses + self.kubeconfig.parses + self.spec.parses + self.decisions.parses
    }
}

/// The last source, with the result of parsing it.
struct Last<S, T> {
    known: Option<(S, Arc<T>)>,
    #[cfg(test)]
    parses: usize,
}

impl<S, T> Default for Last<S, T> {
    fn default() -> Self {
        Self {
            known: None,
            #[cfg(test)]
            parses: 0,
        }
    }
}

impl<S: PartialEq, T> Last<S, T> {
    /// Returns the result for `source`. Parses `source` only if it differs from the last source.
    fn get(&mut self, source: S, parse: impl FnOnce() -> T) -> Arc<T> {
        let known = self.known.take();
        let known = known.filter(|(known, _)| *known == source);
        let result = if let Some((_, result)) = known {
            result
        } else {
            #[cfg(test)]
            {
                self.parses += 1;
            }
            Arc::new(parse())
        };
        // The new source replaces an equal source, so that an old version is not kept in memory.
        self.known = Some((source, result.clone()));
        result
    }
}

/// The values in a Secret. The supervisor holds the same Secret, so secrets do not remain in memory longer.
struct Values(Arc<Secret>);

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.data == other.0.data
    }
}

/// The settings in a `KubeletAuthentication`, without other fields, such as the status, which change often.
struct Spec(Arc<KeptAuthentication>);

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.spec == other.0.spec
    }
}

/// The annotations on a `KubeletAuthentication`.
struct Annotations(Arc<KeptAuthentication>);

impl PartialEq for Annotations {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&self.0, &other.0);
        Arc::ptr_eq(one, other) || one.metadata.annotations == other.metadata.annotations
    }
}

/// A digest of these parts and their boundaries.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}
