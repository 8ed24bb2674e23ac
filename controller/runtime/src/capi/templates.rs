//! The objects of a Cluster whose next machines could not join after attestation is enforced.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{Api, ListParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt as _};
use node_attestation_core::crd::{CLUSTER_NAME_LABEL, NodeIdentity};
use node_attestation_core::ledger::AllRecords;
use node_attestation_core::pace::Pace;

use super::api_discovery::{FetchError, NotServed};
use super::cache::Objects;
use super::inventory::CapiInventory;
use super::objects::{
    AnyControlPlane, CORE_GROUP, Cluster, ControlPlaneOf, ControlPlaneReference, Fields, Kept,
    KubeadmControlPlane, Machine, MachineDeployment, MachinePool, MachineTemplate, ObjectKey,
    PoolConfig, Raw, Reference, Watched as _, label_value,
};
use super::selection::Selection;
use crate::client::{CallError, Pages, cause};
use crate::watch::{ReadAlone, page_of};

/// The number of objects after which reading stops. One of them is enough for the decision, and a message contains only
/// a few names.
const MAX_WITHOUT_PLUGIN: usize = 6;

/// The label with the name of a Machine's `MachineDeployment`.
const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";

/// The label on every control-plane Machine.
const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";

/// The group of `KubeadmControlPlane`.
const CONTROL_PLANE_GROUP: &str = "controlplane.cluster.x-k8s.io";

/// The kind of control plane whose templates are found by label.
const KUBEADM_CONTROL_PLANE: &str = "KubeadmControlPlane";

/// The machines with a live record.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    machines: BTreeSet<String>,
    provider_ids: BTreeSet<String>,
}

impl Recorded {
    /// The machines with a live record among these records.
    pub(crate) async fn of(records: &AllRecords) -> Self {
        let (mut recorded, mut pace) = (Self::default(), Pace::default());
        for stored in &**records {
            let holder = &stored.record.holder;
            if stored.record.is_live() {
                recorded.add(holder.machine_name.as_deref(), holder.provider_id.as_str());
            }
            pace.step().await;
        }
        recorded
    }

    /// The machines of these node identities.
    pub(crate) fn of_live(identities: &[NodeIdentity]) -> Self {
        let mut recorded = Self::default();
        for identity in identities {
            let spec = &identity.spec;
            recorded.add(spec.machine_name.as_deref(), &spec.provider_id);
        }
        recorded
    }

    fn add(&mut self, machine: Option<&str>, provider_id: &str) {
        self.machines.extend(machine.map(ToOwned::to_owned));
        self.provider_ids.insert(provider_id.to_owned());
    }
}

/// The objects or their templates could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplatesUnread {
    /// The objects of this kind could not be listed.
    #[error("cannot list {0}s")]
    List(&'static str, #[source] CallError),
    /// The object with this kind and name could not be read.
    #[error("cannot read {0}")]
    One(String, #[source] FetchError),
    /// The reads did not finish before their deadline.
    #[error("could not read the bootstrap templates within 30 s")]
    Late,
}

impl CapiInventory {
    /// Creates an inventory without watches, for commands. Such an inventory can only read templates and the Cluster.
    pub(crate) fn of_command(client: Client, cluster: ObjectKey) -> Self {
        Self::new(Objects::empty(client, Selection::default(), None), cluster)
    }

    /// Reads the Cluster. `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the Cluster could not be read.
    pub(crate) async fn read_cluster(&self) -> Result<Option<Cluster>, FetchError> {
        let reference = self.cluster_reference();
        let read = self.objects.fetch(&self.cluster.namespace, &reference);
        Box::pin(read).await
    }

    fn cluster_reference(&self) -> Reference {
        Reference {
            group: CORE_GROUP.to_owned(),
            version: None,
            kind: Cluster::KIND.to_owned(),
            name: self.cluster.name.clone(),
        }
    }

    /// The control planes, `MachineDeployment`s and `MachinePool`s of the Cluster that have neither a member in
    /// `recorded`, nor the plugin in their bootstrap template: at most [`MAX_WITHOUT_PLUGIN`], with their kinds. Their
    /// next machines could not join after attestation is enforced.
    ///
    /// # Errors
    ///
    /// Returns an error if the objects or their templates could not be read.
    pub(crate) async fn without_plugin(
        &self,
        recorded: &Recorded,
    ) -> Result<Vec<String>, TemplatesUnread> {
        let reads = Box::pin(self.read_without_plugin(recorded));
        let read = self.objects.read_slowly(&self.cluster, reads).await;
        read.unwrap_or(Err(TemplatesUnread::Late))
    }

    async fn read_without_plugin(
        &self,
        recorded: &Recorded,
    ) -> Result<Vec<String>, TemplatesUnread> {
        let mut without = Box::pin(self.control_planes_without_plugin(recorded)).await?;
        without.extend(Box::pin(self.other_control_plane_without_plugin(recorded)).await?);
        let deployments = Box::pin(self.deployments_without_plugin(recorded));
        without.extend(deployments.await?);
        without.extend(Box::pin(self.pools_without_plugin(recorded)).await?);
        without.truncate(MAX_WITHOUT_PLUGIN);
        Ok(without)
    }

    async fn control_planes_without_plugin(
        &self,
        recorded: &Recorded,
    ) -> Result<Vec<String>, TemplatesUnread> {
        const KIND: &str = KUBEADM_CONTROL_PLANE;
        let planes = self.listed::<KubeadmControlPlane, _>(CONTROL_PLANE_GROUP, KIND, "", |raw| {
            let name = raw.name_any();
            // An object that cannot be decoded counts as an object without the plugin.
            let plane = raw.kept().unwrap_or_default();
            let is_with = plane.is_some_and(|plane| plane.deleting || plane.has_plugin);
            (!is_with).then_some(format!("{KIND} {name}"))
        });
        let planes = Box::pin(planes).await?;
        if planes.is_empty() || self.has_member(CONTROL_PLANE, recorded).await? {
            return Ok(Vec::new());
        }
        Ok(planes)
    }

    /// The Cluster's control plane, if its kind is not `KubeadmControlPlane`. The kinds of control planes do not have a
    /// common field for templates. Therefore, any text in its spec counts. Only a control plane with Machines can
    /// create another Machine: a managed control plane does not have Machines.
    async fn other_control_plane_without_plugin(
        &self,
        recorded: &Recorded,
    ) -> Result<Option<String>, TemplatesUnread> {
        let cluster = self.cluster_reference();
        let found = self.found::<ControlPlaneOf>(&cluster).await?;
        let Some(reference) = found.and_then(|found| found.reference) else {
            return Ok(None);
        };
        if let ControlPlaneReference::Valid(reference) = &reference
            && reference.group == CONTROL_PLANE_GROUP
            && reference.kind == KUBEADM_CONTROL_PLANE
        {
            return Ok(None);
        }
        let members = self.listed::<Machine, _>(CORE_GROUP, Machine::KIND, CONTROL_PLANE, |raw| {
            Some(recorded.machines.contains(&raw.name_any()))
        });
        let members = Box::pin(members).await?;
        if members.is_empty() || members.contains(&true) {
            return Ok(None);
        }
        let (kind, name, has_plugin) = match &reference {
            ControlPlaneReference::Valid(plane) => {
                let of = |found: AnyControlPlane| found.deleting || found.has_plugin;
                (&plane.kind, &plane.name, self.configures(plane, of).await?)
            }
            ControlPlaneReference::Invalid(kind) => (kind, &self.cluster.name, false),
        };
        Ok((!has_plugin).then(|| match kind.as_str() {
            "" => format!("control plane of {name}"),
            kind => format!("{kind} {name}"),
        }))
    }

    async fn deployments_without_plugin(
        &self,
        recorded: &Recorded,
    ) -> Result<Vec<String>, TemplatesUnread> {
        const KIND: &str = "MachineDeployment";
        let deployments = self.listed::<MachineDeployment, _>(CORE_GROUP, KIND, "", |raw| {
            let name = raw.name_any();
            let deployment = raw.kept().unwrap_or_default();
            let is_deleting = deployment.as_ref().is_some_and(|one| one.deleting);
            (!is_deleting).then_some((name, deployment.and_then(|one| one.template)))
        });
        let mut known: BTreeMap<Reference, bool> = BTreeMap::new();
        let mut without = Vec::new();
        for (name, template) in Box::pin(deployments).await? {
            if without.len() >= MAX_WITHOUT_PLUGIN {
                break;
            }
            if let Some(template) = template {
                let has_plugin = if let Some(has_plugin) = known.get(&template) {
                    *has_plugin
                } else {
                    let of = |found: MachineTemplate| found.has_plugin;
                    self.configures(&template, of).await?
                };
                known.insert(template, has_plugin);
                if has_plugin {
                    continue;
                }
            }
            let label = format!("{DEPLOYMENT_NAME}={}", label_value(&name));
            if !self.has_member(&label, recorded).await? {
                without.push(format!("{KIND} {name}"));
            }
        }
        Ok(without)
    }

    async fn pools_without_plugin(
        &self,
        recorded: &Recorded,
    ) -> Result<Vec<String>, TemplatesUnread> {
        let pools = self.listed::<MachinePool, _>(CORE_GROUP, MachinePool::KIND, "", |raw| {
            let name = raw.name_any();
            let Some(pool) = raw.kept().unwrap_or_default() else {
                return Some((name, None));
            };
            let mut members = pool.provider_ids.iter();
            let has_member = members.any(|id| recorded.provider_ids.contains(id.as_str()));
            (!pool.deleting && !has_member).then_some((name, pool.config))
        });
        let mut without = Vec::new();
        for (name, config) in Box::pin(pools).await? {
            if without.len() >= MAX_WITHOUT_PLUGIN {
                break;
            }
            let has_plugin = if let Some(config) = config {
                let of = |found: PoolConfig| found.has_plugin;
                self.configures(&config.complete(), of).await?
            } else {
                false
            };
            if !has_plugin {
                without.push(format!("{} {name}", MachinePool::KIND));
            }
        }
        Ok(without)
    }

    /// Whether `has_plugin` is true for the referenced object. For a missing object, the result is false.
    async fn configures<K: Kept>(
        &self,
        reference: &Reference,
        has_plugin: impl Fn(K) -> bool,
    ) -> Result<bool, TemplatesUnread>
    where
        Fields<K>: ReadAlone,
    {
        Ok(self.found(reference).await?.is_some_and(has_plugin))
    }

    /// The referenced object. `None` if it is missing.
    async fn found<K: Kept>(&self, reference: &Reference) -> Result<Option<K>, TemplatesUnread>
    where
        Fields<K>: ReadAlone,
    {
        let read = self.objects.fetch::<K>(&self.cluster.namespace, reference);
        match Box::pin(read).await {
            Ok(found) => Ok(found),
            // A tenant can write any version into a reference.
            Err(FetchError::NotServed(_)) => Ok(None),
            Err(error) => {
                let Reference { kind, name, .. } = reference;
                Err(TemplatesUnread::One(format!("{kind} {name}"), error))
            }
        }
    }

    /// Whether one of the Machines with this label has a record.
    async fn has_member(&self, label: &str, recorded: &Recorded) -> Result<bool, TemplatesUnread> {
        let members = self.listed::<Machine, ()>(CORE_GROUP, Machine::KIND, label, |raw| {
            recorded.machines.contains(&raw.name_any()).then_some(())
        });
        Ok(!Box::pin(members).await?.is_empty())
    }

    /// The results of `of` for the Cluster's objects of this kind with this label. Empty if the kind is not served.
    async fn listed<K: Kept, T>(
        &self,
        group: &str,
        kind: &'static str,
        label: &str,
        of: impl Fn(Raw<K>) -> Option<T>,
    ) -> Result<Vec<T>, TemplatesUnread>
    where
        Fields<K>: ReadAlone,
    {
        let namespace = self.cluster.namespace.as_str();
        let reference = &Reference {
            group: group.to_owned(),
            version: None,
            kind: kind.to_owned(),
            name: String::new(),
        };
        let list = move |page: ListParams| {
            let client = self.objects.client().clone();
            async move {
                let call = move |resource: ApiResource| async move {
                    let api: Api<Raw<K>> = Api::namespaced_with(client, namespace, &resource);
                    page_of(&api, &page).await
                };
                let called = self.objects.call_served(namespace, reference, call);
                Box::pin(called).await.map_err(kube::Error::from)
            }
        };
        let mut labels = format!("{CLUSTER_NAME_LABEL}={}", self.cluster.name);
        if !label.is_empty() {
            labels = format!("{labels},{label}");
        }
        let wanted = ListParams::default().labels(&labels);
        let (mut pages, mut all) = (Pages::new(wanted.clone()), Vec::new());
        let mut is_repeated = false;
        loop {
            match pages.next(&list).await {
                Ok(None) => return Ok(all),
                Ok(Some(page)) => all.extend(page.into_iter().filter_map(&of)),
                Err(error) if cause::<NotServed>(&error).is_none() => {
                    return Err(TemplatesUnread::List(kind, error));
                }
                Err(_) if is_repeated => return Ok(Vec::new()),
                // The known version is no longer served. The next call looks up the kind again.
                Err(_) => {
                    is_repeated = true;
                    all.clear();
                    pages = Pages::new(wanted.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
