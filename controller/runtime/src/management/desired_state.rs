//! Computes the desired state of one cluster from the objects of the management cluster, without input or output.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kubelet_attestation::ensure;
use kubelet_attestation::names::Audience;
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationSpec};
use node_attestation_core::serving::AddressRange;
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifiers;
use sha2::{Digest as _, Sha256};

use crate::capi::{Cluster, ClusterCa, KUBECONFIG_KEY, TenantKubeconfig, is_paused};
use crate::settings_file::check_stored;

use super::ca_key_registry::{CaKey, CaKeyHolder};
use super::conditions::not_ready::NotReady;
use super::single_object::Observed;
use super::spec_mapping::serving_address_ranges;
use super::{Settings, VerifierFactory};

/// The objects of the management cluster that configure one cluster.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) cluster: Observed<Cluster>,
    pub(super) kubeconfig: Observed<Arc<Secret>>,
    pub(super) ca: Observed<Arc<Secret>>,
}

/// The configuration of a served cluster.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) spec: KubeletAuthenticationSpec,
    pub(super) cluster: Cluster,
    pub(super) kubeconfig: TenantKubeconfig,
    pub(super) ca: Arc<ClusterCa>,
    /// The signer that uses this CA.
    pub(super) signer: Arc<Signer>,
    /// Whether the controller has an external signer, and the Secret has the key.
    pub(super) signer_unused: bool,
    pub(super) verifiers: Verifiers,
    pub(super) audiences: Vec<Audience>,
    pub(super) serving_address_ranges: Vec<AddressRange>,
    pub(super) fingerprint: Fingerprint,
}

/// Equal for equal services. It is a digest, so that secrets are not kept for the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 32]);

/// The desired configuration of the cluster. `None` while not all objects have been read. `ca_key` compares the
/// cluster's key with the keys of other clusters.
///
/// # Errors
///
/// The reason why the cluster is not served.
pub(super) fn service(
    authentication: &KubeletAuthentication,
    sources: &Sources,
    ca_key: &mut CaKeyHolder,
    settings: &Settings,
    verifiers: &VerifierFactory,
) -> Result<Option<Service>, NotReady> {
    let spec = &authentication.spec;
    let name = spec.cluster_name.as_str();
    if authentication.metadata.name.as_deref() != Some(name) {
        return Err(NotReady::Misnamed(name.to_owned()));
    }
    // If the Cluster does not exist, its Secrets are not read, and it does not share a CA.
    if sources.cluster == Observed::Absent {
        drop(ca_key.hold(None));
        ensure!(!is_paused(&authentication.metadata), NotReady::Paused);
        return Err(NotReady::ClusterNotFound(name.to_owned()));
    }
    // Checked first, because a paused or broken cluster also shares its CA.
    let ca_name = format!("{name}-ca");
    let ca = match &sources.ca {
        Observed::Unknown => return Ok(None),
        Observed::Absent => Err(NotReady::CaNotFound(ca_name.clone())),
        Observed::Present(secret) => ClusterCa::from_secret(secret).map_err(|source| {
            let name = ca_name.clone();
            NotReady::CaRefused { name, source }
        }),
    };
    let shared = ca_key.hold(ca.as_ref().ok().map(CaKey::of));
    ensure!(!is_paused(&authentication.metadata), NotReady::Paused);
    let cluster = match &sources.cluster {
        Observed::Unknown | Observed::Absent => return Ok(None),
        Observed::Present(cluster) => cluster,
    };
    ensure!(!cluster.paused, NotReady::ClusterPaused);
    let verifiers = verifiers(authentication, &cluster.uid);
    if let Some(why) = verifiers.none_available() {
        return Err(NotReady::NoAttestor {
            why: why.clone(),
            availability: Box::new(verifiers.availability()),
        });
    }
    let kubeconfig_name = format!("{name}-kubeconfig");
    let (text, kubeconfig) = match &sources.kubeconfig {
        Observed::Unknown => return Ok(None),
        Observed::Absent => return Err(NotReady::KubeconfigNotFound(kubeconfig_name)),
        Observed::Present(secret) => {
            let text = value(secret, KUBECONFIG_KEY);
            let parsed = TenantKubeconfig::parse(text, settings.reach);
            let parsed = parsed.map_err(|source| NotReady::KubeconfigRefused {
                name: kubeconfig_name,
                source,
            })?;
            (text, parsed)
        }
    };
    let mut ca = ca?;
    let signer_unused = settings.external_signer.is_some() && ca.signer().is_some();
    if let Some(other) = shared {
        return Err(NotReady::SharedCa(other));
    }
    if let Some(external) = &settings.external_signer {
        let namespace = authentication.metadata.namespace.as_deref();
        let key = external.key(namespace.unwrap_or_default(), name);
        let signed = ca.or_signed_by(key);
        ca = signed.map_err(|source| NotReady::CaRefused {
            name: ca_name.clone(),
            source,
        })?;
    }
    let signer = ca.signer().cloned();
    let signer = signer.ok_or(NotReady::CaKeyNotFound(ca_name))?;
    let audiences = audiences(authentication, &ca, &kubeconfig)?;
    check_stored(spec).map_err(NotReady::Settings)?;
    let serving_address_ranges =
        serving_address_ranges(spec).map_err(NotReady::ServingAddressRange)?;
    let fingerprint = Fingerprint::of(authentication, sources, text);
    Ok(Some(Service {
        spec: spec.clone(),
        cluster: cluster.clone(),
        kubeconfig,
        ca: Arc::new(ca),
        signer,
        signer_unused,
        verifiers,
        audiences,
        serving_address_ranges,
        fingerprint,
    }))
}

/// The kubeconfig, if it exists and is accepted.
pub(super) fn kubeconfig(sources: &Sources, settings: &Settings) -> Option<TenantKubeconfig> {
    let secret = sources.kubeconfig.present()?;
    TenantKubeconfig::parse(value(secret, KUBECONFIG_KEY), settings.reach).ok()
}

fn audiences(
    authentication: &KubeletAuthentication,
    ca: &ClusterCa,
    kubeconfig: &TenantKubeconfig,
) -> Result<Vec<Audience>, NotReady> {
    let trusted = kubeconfig.ca_certificates().iter();
    let mut audiences: BTreeSet<Audience> = trusted.map(|der| Audience::of_ca(der)).collect();
    audiences.extend(ca.audiences());
    for text in &authentication.spec.audiences {
        let audience = Audience::parse(text).map_err(|_| NotReady::Audience(text.clone()))?;
        audiences.insert(audience);
    }
    Ok(audiences.into_iter().collect())
}

fn value<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    let value = secret.data.as_ref().and_then(|data| data.get(key));
    value.map(|bytes| bytes.0.as_slice()).unwrap_or_default()
}

/// The fields of a Cluster that affect its service. A change of another field, such as a label, must not interrupt
/// requests in progress.
fn inputs_of_service(cluster: &Cluster) -> impl Debug {
    let Cluster {
        uid,
        endpoint,
        service_ranges,
        infrastructure,
        paused: _,
        deleting: _,
        watch_filter: _,
        control_plane: _,
        attestors: _,
    } = cluster;
    (uid, endpoint, service_ranges, infrastructure)
}

impl Fingerprint {
    fn of(authentication: &KubeletAuthentication, sources: &Sources, kubeconfig: &[u8]) -> Self {
        let ca = sources.ca.present();
        let ca = |key| ca.map(|secret| value(secret, key)).unwrap_or_default();
        let cluster = sources.cluster.present().map(inputs_of_service);
        // These are only words and lists of words.
        let cluster = format!("{cluster:?}");
        let uid = authentication.metadata.uid.as_deref().unwrap_or_default();
        // The spec has no map with an unstable order, and all of its values can be serialized.
        let spec = serde_json::to_vec(&authentication.spec).unwrap_or_default();
        let mut digest = Sha256::new();
        for part in [
            uid.as_bytes(),
            cluster.as_bytes(),
            &spec,
            kubeconfig,
            ca("tls.crt"),
            ca("tls.key"),
        ] {
            digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }
}

#[cfg(test)]
mod tests;
