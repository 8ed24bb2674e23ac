//! A Cluster's settings and objects in its management cluster.

use kube::Client;
use kube::api::Api;
use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::KubeletAuthentication;
use tokio::task::JoinSet;

use super::BoxError;
use crate::capi::{Cluster, ObjectKey, Objects, Selection};
use crate::metrics::Metrics;
use crate::watch::readable_one_of;

/// The settings and objects that were read from the management cluster.
pub(super) struct ClusterSnapshot {
    pub(super) authentication: KubeletAuthentication,
    /// `None` if the Cluster does not exist.
    pub(super) cluster: Option<Cluster>,
    pub(super) objects: Objects,
    pub(super) watches: JoinSet<()>,
}

impl ClusterSnapshot {
    pub(super) async fn read(client: &Client, key: &ObjectKey) -> Result<Self, BoxError> {
        let api: Api<KubeletAuthentication> = Api::namespaced(client.clone(), &key.namespace);
        let found = readable_one_of(&api, &key.name).await;
        let found = found.map_err(|error| {
            let error = error_chain(&error);
            format!("cannot read its KubeletAuthentication: {error}")
        })?;
        let authentication = found.ok_or("it has no KubeletAuthentication")?;
        let selection = Selection {
            namespace: Some(key.namespace.clone()),
            watch_filter: None,
        };
        let (objects, all) = Objects::new(client.clone(), selection, &Metrics::default());
        let mut watches = JoinSet::new();
        watches.spawn(all);
        let mut changes = objects.changes();
        while !objects.is_ready() {
            ensure!(
                changes.changed().await.is_ok(),
                "the watches of its objects stopped".into()
            );
        }
        let cluster = objects.cluster(key);
        Ok(Self {
            authentication,
            cluster,
            objects,
            watches,
        })
    }
}
