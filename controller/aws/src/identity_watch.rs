//! The watches that fill the identity store.
//!
//! Their user may get, list and watch the identities, Namespaces, Clusters and the objects that name identities; and
//! list and watch single Secrets and config maps, each by its name alone.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Secret, ServiceAccount as KubeServiceAccount,
};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::secret::Secret as SecretValue;
use node_attestation_core::crd::{AWS_ACCOUNT_ANNOTATION, KubeletAuthentication};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::logs::Failures;
use node_attestation_runtime::watch::{is_too_large, on_management, watch_config};
use serde_json::json;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::identity_objects::{
    Kind, Places, key_of, kind_of, put_custom, put_namespace, put_secret,
};
use crate::identity_store::{IdentityStore, MAX_SECRETS, Source};
use crate::sessions::Tokens;
use crate::tenancy::{IdentityKind, ServiceAccount};

/// The pause before a kind that is not served is looked for again: somebody may install it.
const NOT_SERVED: Duration = Duration::from_mins(1);

/// The pause after a failure to look for a kind.
const FAILED: Duration = Duration::from_secs(5);

/// The pause before an annotation is written again.
const WRITE_AGAIN: Duration = Duration::from_secs(15);

/// The field manager.
const CONTROLLER: &str = "node-attestation-controller";

/// The deadline of a call.
const CALL: Duration = Duration::from_secs(10);

/// Watches the management cluster for as long as it is polled.
#[derive(derive_more::Debug, Clone)]
#[debug("IdentityWatch({places:?})")]
pub struct IdentityWatch {
    client: Client,
    places: Places,
    store: Arc<IdentityStore>,
}

impl IdentityWatch {
    /// Fills `store` from the cluster of `client`.
    pub fn new(client: Client, places: Places, store: Arc<IdentityStore>) -> Self {
        Self {
            client,
            places,
            store,
        }
    }

    /// Watches all that the store needs, and never ends.
    pub async fn run(&self) {
        let static_identities = Notify::new();
        let mut watches = FuturesUnordered::new();
        let sources = self.store.sources();
        for source in sources {
            watches.push(self.follow(source, &static_identities));
        }
        tokio::join!(self.follow_secrets(&static_identities), async {
            while watches.next().await.is_some() {}
        });
    }

    /// Watches a source, and begins anew after each failure: only a new list tells that nothing was missed.
    async fn follow(&self, source: Source, changed: &Notify) {
        loop {
            let pause = match timeout(CALL, kind_of(&self.client, &source)).await {
                Ok(Ok(Kind::NotServed)) => {
                    self.store.retain(&source, &BTreeSet::new());
                    self.store.read(&source);
                    changed.notify_one();
                    NOT_SERVED
                }
                Ok(Ok(kind)) => {
                    let error = self.watch(&source, kind, changed).await;
                    self.report(&source, &error_chain(&error));
                    FAILED
                }
                Ok(Err(error)) => {
                    self.report(&source, &error_chain(&error));
                    FAILED
                }
                Err(_) => {
                    self.report(&source, "no answer in time");
                    FAILED
                }
            };
            sleep(pause).await;
        }
    }

    fn report(&self, source: &Source, error: &str) {
        // An outage is told once a source.
        if self.store.failed(source) {
            tracing::warn!(%source, error, "objects that name AWS identities cannot be watched");
        } else {
            tracing::debug!(%source, error, "objects that name AWS identities still cannot be watched");
        }
    }

    /// Watches until something fails.
    async fn watch(&self, source: &Source, kind: Kind, changed: &Notify) -> watcher::Error {
        let (client, store) = (self.client.clone(), &*self.store);
        match (source, kind) {
            (_, Kind::Custom(resource)) => {
                let api: Api<DynamicObject> = match &self.places.namespace {
                    Some(namespace) if source.is_namespaced() => {
                        Api::namespaced_with(client, namespace, &resource)
                    }
                    Some(_) | None => Api::all_with(client, &resource),
                };
                let events = on_management(api, watch_config());
                let put = |key: &ObjectKey, object: Option<&DynamicObject>| {
                    put_custom(store, source, key, object);
                    if *source == Source::Identities(IdentityKind::Static) {
                        changed.notify_one();
                    }
                };
                fill(store, source, events, changed, put).await
            }
            (Source::Secret(name), _) => {
                let api: Api<Secret> = Api::namespaced(client, &self.places.capa_namespace);
                let events =
                    on_management(api, watch_config().fields(&format!("metadata.name={name}")));
                fill(store, source, events, changed, |_, object| {
                    put_secret(store, name, object);
                })
                .await
            }
            (Source::ConfigMap(name), _) => {
                let api: Api<ConfigMap> = Api::namespaced(client, &self.places.ack_namespace);
                let events =
                    on_management(api, watch_config().fields(&format!("metadata.name={name}")));
                let put = |_: &ObjectKey, object: Option<&ConfigMap>| {
                    let data = object.map(|object| object.data.clone().unwrap_or_default());
                    store.update(|objects| objects.put_config_map(name, data));
                };
                fill(store, source, events, changed, put).await
            }
            _ => {
                let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
                let events = on_management(api, watch_config());
                fill(store, source, events, changed, |key, object| {
                    put_namespace(store, key, object);
                })
                .await
            }
        }
    }

    /// Watches each Secret that an identity names, and no other.
    async fn follow_secrets(&self, changed: &Notify) {
        let mut watches = FuturesUnordered::new();
        let mut running: BTreeMap<String, oneshot::Sender<()>> = BTreeMap::new();
        let mut is_told = false;
        loop {
            let mut wanted = self.store.secrets();
            running.retain(|name, _| {
                let is_wanted = wanted.contains(name);
                if !is_wanted {
                    self.store.forget(&Source::Secret(name.clone()));
                }
                is_wanted
            });
            // Those that are watched stay: one more identity takes nothing from others.
            let mut room = MAX_SECRETS.saturating_sub(running.len());
            let mut left_out = BTreeSet::new();
            wanted.retain(|name| {
                let is_new = !running.contains_key(name);
                if is_new && room == 0 {
                    left_out.insert(name.clone());
                    return false;
                }
                room -= usize::from(is_new);
                true
            });
            if left_out.is_empty() {
                is_told = false;
            } else if !is_told {
                is_told = true;
                let (count, limit) = (left_out.len(), MAX_SECRETS);
                tracing::warn!(
                    count,
                    limit,
                    "Secrets of AWS identities are not read: there are too many"
                );
            }
            self.store.leave_out(left_out);
            for name in wanted {
                if let Entry::Vacant(entry) = running.entry(name) {
                    let (stop, stopped) = oneshot::channel();
                    let name = entry.key().clone();
                    watches.push(self.follow_secret(name, stopped, changed));
                    entry.insert(stop);
                }
            }
            tokio::select! {
                () = changed.notified() => {}
                Some(()) = watches.next() => {}
            }
        }
    }

    async fn follow_secret(&self, name: String, stopped: oneshot::Receiver<()>, changed: &Notify) {
        tokio::select! {
            // First: what it would still hear is not wanted.
            biased;
            _ = stopped => {}
            () = self.follow(Source::Secret(name), changed) => {}
        }
    }

    /// Writes the first accounts of clusters down, each on its `KubeletAuthentication`.
    pub async fn write_accounts(&self, mut accounts: mpsc::UnboundedReceiver<(ObjectKey, String)>) {
        let mut writes = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some((cluster, account)) = accounts.recv() => writes.push(self.write_account(cluster, account)),
                Some(()) = writes.next() => {}
                else => return,
            }
        }
    }

    /// Tries until the annotation is there, or nothing to write it on. An account that is there already stays.
    async fn write_account(&self, cluster: ObjectKey, account: String) {
        const MESSAGE: &str = "the account of the cluster cannot be written down";
        let mut failures = Failures::default();
        loop {
            let error = match timeout(CALL, self.annotate(&cluster, &account)).await {
                Ok(Ok(())) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                Ok(Err(error)) => error_chain(&error),
                Err(_) => "no answer in time".to_owned(),
            };
            if failures.is_first() {
                tracing::warn!(%cluster, error, "{MESSAGE}");
            } else {
                tracing::debug!(%cluster, error, "{MESSAGE}");
            }
            sleep(WRITE_AGAIN).await;
        }
    }

    async fn annotate(&self, cluster: &ObjectKey, account: &str) -> Result<(), kube::Error> {
        let api: Api<KubeletAuthentication> =
            Api::namespaced(self.client.clone(), &cluster.namespace);
        let found = api.get_metadata(&cluster.name).await?;
        if found.annotations().contains_key(AWS_ACCOUNT_ANNOTATION) {
            return Ok(());
        }
        // Of this version alone: another replica may write an account meanwhile.
        let patch = json!({"metadata": {
            "resourceVersion": found.resource_version(),
            "annotations": {AWS_ACCOUNT_ANNOTATION: account},
        }});
        let params = PatchParams::apply(CONTROLLER);
        let patch = Patch::Merge(patch);
        api.patch_metadata(&cluster.name, &params, &patch)
            .await
            .map(drop)
    }
}

/// Follows a watch until it fails, and returns the error.
async fn fill<K: ResourceExt>(
    store: &IdentityStore,
    source: &Source,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    changed: &Notify,
    put: impl Fn(&ObjectKey, Option<&K>),
) -> watcher::Error {
    let mut events = pin!(events);
    let mut listed = BTreeSet::new();
    loop {
        match events.next().await {
            Some(Ok(Event::Init)) => listed.clear(),
            Some(Ok(Event::InitApply(object))) => {
                let key = key_of(&object);
                put(&key, Some(&object));
                listed.insert(key);
            }
            Some(Ok(Event::InitDone)) => {
                store.retain(source, &listed);
                store.read(source);
                changed.notify_one();
                listed.clear();
            }
            Some(Ok(Event::Apply(object))) => put(&key_of(&object), Some(&object)),
            Some(Ok(Event::Delete(object))) => put(&key_of(&object), None),
            // It lists anew, fewer at once: an object of one tenant stops no other.
            Some(Err(error)) if is_too_large(&error) => {
                store.failed(source);
                listed.clear();
            }
            Some(Err(error)) => return error,
            // It never ends.
            None => return watcher::Error::NoResourceVersion,
        }
    }
}

/// Tokens of service accounts of the management cluster.
#[derive(derive_more::Debug, Clone)]
#[debug("KubeTokens")]
pub struct KubeTokens {
    client: Client,
}

impl KubeTokens {
    /// Asks the cluster of `client`, whose user may create `serviceaccounts/token`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait::async_trait]
impl Tokens for KubeTokens {
    async fn token(&self, account: &ServiceAccount) -> Result<SecretValue<String>, String> {
        let api: Api<KubeServiceAccount> = Api::namespaced(self.client.clone(), &account.namespace);
        let params = PostParams::default();
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: account.audiences.clone(),
                expiration_seconds: i64::try_from(account.token_validity.as_secs()).ok(),
                bound_object_ref: None,
            },
            ..TokenRequest::default()
        };
        let answer = api.create_token_request(&account.name, &params, &request);
        let answer = timeout(CALL, answer)
            .await
            .map_err(|_| "no answer in time".to_owned())?;
        let answer = answer.map_err(|error| error_chain(&error))?;
        let status = answer.status.ok_or("the answer has no token")?;
        Ok(SecretValue::new(status.token))
    }
}

#[cfg(test)]
mod tests;
