//! Determines the desired state of one cluster from the management cluster's objects, without I/O.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kubelet_attestation::ensure;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::Verifiers;

use super::Settings;
use super::ca_key_registry::{ClusterCaKey, OtherHolder};
use super::conditions::not_ready::NotReady;
use super::configuration::Configuration;
use super::kept_authentications::KeptAuthentication;
use super::single_object::Observed;
use crate::capi::{
    Cluster, ClusterCa, ObjectKey, TenantKubeconfig, ca_secret_name, is_paused,
    kubeconfig_secret_name,
};
use crate::watch::Unreadable;

mod parsed;

pub(super) use parsed::Parsed;
use parsed::{ParsedCa, digest};

/// The management cluster's objects that configure one cluster.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) cluster: Observed<Cluster>,
    /// The Secret with the controller's own kubeconfig, or with Cluster API's kubeconfig.
    pub(super) kubeconfig: Observed<Arc<Secret>>,
    /// The name of the Secret that contains the controller's own kubeconfig, if the controller uses that kubeconfig.
    pub(super) own_kubeconfig: Option<String>,
    pub(super) ca: Observed<Arc<Secret>>,
    pub(super) outdated: Outdated,
}

/// The reasons why the last versions of the Secrets cannot be read. Their previous versions remain in use.
#[derive(Debug, Default)]
pub(super) struct Outdated {
    pub(super) kubeconfig: Option<Unreadable>,
    pub(super) ca: Option<Unreadable>,
}

impl Sources {
    /// The name of the Secret with this cluster's kubeconfig.
    pub(super) fn kubeconfig_name(&self, cluster: &str) -> String {
        let own = self.own_kubeconfig.clone();
        own.unwrap_or_else(|| kubeconfig_secret_name(cluster))
    }

    /// The messages about unreadable versions of this cluster's Secrets.
    pub(super) fn outdated_messages(&self, cluster: &str) -> Vec<String> {
        let secrets = [
            (self.kubeconfig_name(cluster), &self.outdated.kubeconfig),
            (ca_secret_name(cluster), &self.outdated.ca),
        ];
        let messages = secrets.into_iter().filter_map(|(name, why)| {
            let why = why.as_ref()?;
            Some(format!(
                "cannot read the last version of Secret {name}: {why}"
            ))
        });
        messages.collect()
    }
}

/// The desired state of a served cluster.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) configuration: Configuration,
    pub(super) kubeconfig: Arc<TenantKubeconfig>,
    pub(super) ca: Arc<ClusterCa>,
    /// Whether the controller has an external signer, although the Secret contains the key.
    pub(super) signer_unused: bool,
    pub(super) fingerprint: Fingerprint,
}

/// A value that is equal for equal services. It is a digest, so that secrets are not stored for the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 32]);

/// The objects and options that determine the service of one cluster.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) authentication: &'a Arc<KeptAuthentication>,
    pub(super) sources: &'a Sources,
    pub(super) settings: &'a Settings,
}

/// The key of a cluster's CA. `None` without a readable CA.
pub(super) struct HeldKey(pub(super) Option<ClusterCaKey>);

impl Inputs<'_> {
    /// The key that is compared with the keys of other clusters. If the key is unknown, the last key remains. A paused
    /// or broken cluster also blocks other clusters that have its CA key.
    pub(super) fn ca_key(&self, parsed: &mut Parsed) -> Option<HeldKey> {
        let name = self.authentication.spec.cluster_name.as_str();
        if self.authentication.metadata.name.as_deref() != Some(name) {
            return None;
        }
        // The CA of a Cluster that does not exist does not block other clusters.
        if missing(self.sources, name).is_some() {
            return Some(HeldKey(None));
        }
        match &self.sources.ca {
            Observed::Unknown => None,
            Observed::Absent | Observed::Unreadable(_) => Some(HeldKey(None)),
            Observed::Present(secret) => Some(HeldKey(self.parsed_ca(secret, parsed).key)),
        }
    }

    fn parsed_ca(&self, secret: &Arc<Secret>, parsed: &mut Parsed) -> Arc<ParsedCa> {
        let namespace = self.authentication.metadata.namespace.as_deref();
        let name = self.authentication.spec.cluster_name.as_str();
        let cluster = ObjectKey::new(namespace.unwrap_or_default(), name);
        parsed.ca(secret, &cluster, || {
            let external = self.settings.external_signer.as_ref()?;
            Some(external.key(&cluster.namespace, &cluster.name))
        })
    }
}

/// The desired configuration of the cluster. `None` until all objects have been read. `shared` is another cluster that
/// has the private key of the cluster's CA. `parsed` contains the results from the last call, which only save time.
///
/// # Errors
///
/// Returns the reason why the cluster is not served.
pub(super) fn service(
    inputs: Inputs<'_>,
    shared: Option<OtherHolder>,
    parsed: &mut Parsed,
    verifiers: &dyn Fn(&KubeletAuthentication, &str) -> Verifiers,
) -> Result<Option<Service>, NotReady> {
    let Inputs {
        authentication,
        sources,
        settings,
    } = inputs;
    let spec = &authentication.spec;
    let name = spec.cluster_name.as_str();
    parsed.forget_gone(sources);
    if authentication.metadata.name.as_deref() != Some(name) {
        return Err(NotReady::Misnamed(name.to_owned()));
    }
    // If the Cluster does not exist, its Secrets are ignored.
    if let Some(missing) = missing(sources, name) {
        parsed.of_attestors = None;
        ensure!(!is_paused(&authentication.metadata), NotReady::Paused);
        return Err(missing);
    }
    let ca_name = ca_secret_name(name);
    let ca = match &sources.ca {
        Observed::Unknown => return Ok(None),
        Observed::Absent => Err(NotReady::CaNotFound(ca_name.clone())),
        Observed::Unreadable(source) => Err(NotReady::CaUnreadable {
            name: ca_name.clone(),
            source: source.clone(),
        }),
        Observed::Present(secret) => Ok(inputs.parsed_ca(secret, parsed)),
    };
    ensure!(!is_paused(&authentication.metadata), NotReady::Paused);
    let cluster = match &sources.cluster {
        Observed::Unknown | Observed::Absent | Observed::Unreadable(_) => return Ok(None),
        Observed::Present(cluster) => cluster,
    };
    ensure!(!cluster.paused, NotReady::ClusterPaused);
    let verifiers = verifiers(authentication, &cluster.uid);
    parsed.of_attestors = verifiers.settings().cloned();
    if let Some(why) = verifiers.none_available() {
        return Err(NotReady::NoAttestor {
            why: why.clone(),
            availability: Box::new(verifiers.availability()),
        });
    }
    let kubeconfig_name = sources.kubeconfig_name(name);
    let of_kubeconfig = match &sources.kubeconfig {
        Observed::Unknown => return Ok(None),
        Observed::Absent => return Err(NotReady::KubeconfigNotFound(kubeconfig_name)),
        Observed::Unreadable(source) => {
            return Err(NotReady::KubeconfigUnreadable {
                name: kubeconfig_name,
                source: source.clone(),
            });
        }
        Observed::Present(secret) => parsed.kubeconfig(secret, settings.egress),
    };
    let kubeconfig = of_kubeconfig.kubeconfig.clone();
    let kubeconfig = kubeconfig.map_err(|source| {
        let name = kubeconfig_name;
        match sources.outdated.kubeconfig.clone() {
            Some(source) => NotReady::KubeconfigUnreadable { name, source },
            None => NotReady::KubeconfigRefused { name, source },
        }
    })?;
    let of_ca = ca?;
    let signer_unused = settings.external_signer.is_some() && of_ca.has_own_key;
    // Only a readable CA can be compared with the CAs of other clusters.
    if let Some(other) = shared {
        return Err(NotReady::SharedCa(other.name));
    }
    let ca = of_ca.ca.clone().map_err(|source| {
        let name = ca_name.clone();
        match sources.outdated.ca.clone() {
            Some(source) => NotReady::CaUnreadable { name, source },
            None => NotReady::CaRefused { name, source },
        }
    })?;
    let signer = ca.signer().cloned();
    let signer = signer.ok_or(NotReady::CaKeyNotFound(ca_name))?;
    let of_spec = parsed.spec(authentication);
    let checked = of_spec.checked.clone().map_err(NotReady::Spec)?;
    let fingerprint = Fingerprint::of(
        authentication,
        cluster,
        [&of_spec.digest, &of_kubeconfig.digest, &of_ca.digest],
    );
    let of_cas = of_kubeconfig.audiences.iter().chain(&of_ca.audiences);
    let of_cas = of_cas.cloned();
    let configuration =
        Configuration::new(spec, checked, cluster.clone(), of_cas, verifiers, signer);
    Ok(Some(Service {
        configuration,
        kubeconfig,
        ca,
        signer_unused,
        fingerprint,
    }))
}

/// The reason why no Cluster with this name can be served.
fn missing(sources: &Sources, name: &str) -> Option<NotReady> {
    let name = name.to_owned();
    match &sources.cluster {
        Observed::Absent => Some(NotReady::ClusterNotFound(name)),
        Observed::Unreadable(source) => {
            let source = source.clone();
            Some(NotReady::ClusterUnreadable { name, source })
        }
        Observed::Unknown | Observed::Present(_) => None,
    }
}

impl Parsed {
    /// The kubeconfig, if it exists and is accepted.
    pub(super) fn accepted_kubeconfig(
        &mut self,
        sources: &Sources,
        settings: &Settings,
    ) -> Option<Arc<TenantKubeconfig>> {
        self.forget_gone(sources);
        let secret = sources.kubeconfig.present()?;
        let parsed = self.kubeconfig(secret, settings.egress);
        parsed.kubeconfig.clone().ok()
    }

    /// Drops the Secrets that the supervisor no longer holds.
    fn forget_gone(&mut self, sources: &Sources) {
        if sources.ca.present().is_none() {
            self.forget_ca();
        }
        if sources.kubeconfig.present().is_none() {
            self.forget_kubeconfig();
        }
    }
}

fn value<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    let value = secret.data.as_ref().and_then(|data| data.get(key));
    value.map(|bytes| bytes.0.as_slice()).unwrap_or_default()
}

/// The fields of a Cluster that affect its service. A change to another field, such as a label, must not interrupt the
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
    /// Creates the fingerprint. `parsed` contains the digests of the parsed objects.
    fn of(
        authentication: &KubeletAuthentication,
        cluster: &Cluster,
        parsed: [&[u8; 32]; 3],
    ) -> Self {
        // These fields contain only words and lists of words.
        let cluster = format!("{:?}", inputs_of_service(cluster));
        let uid = authentication.metadata.uid.as_deref().unwrap_or_default();
        let parts = [uid.as_bytes(), cluster.as_bytes()].into_iter();
        Self(digest(parts.chain(parsed.map(<[u8; 32]>::as_slice))))
    }
}

#[cfg(test)]
mod tests;
